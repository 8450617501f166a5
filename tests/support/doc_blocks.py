"""The code blocks of README and docs, found as Markdown means them, and carried out page by page.

Blocks of a page follow each other: Python blocks share their names, and a block with a title (`title="mine.py"`) is a file
in the page's folder, so that a document can name functions of it. `run(...)` ends at the point where `elastream check`
would, with the dataflow checked and nothing started.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from elastream.api.result import RunResult
from elastream.api.run import launching
from elastream.dataflow.graph import Graph
from elastream.settings import RunSettings

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")))


@dataclass(frozen=True)
class Block:
    """A block of code. line: of its first line in the page. info: what stands behind its fence."""

    page: Path
    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        """The first word behind the fence; empty for an indented block."""
        return self.info.partition(" ")[0]

    @property
    def title(self) -> str | None:
        """The file that the block is, if it is one."""
        found = re.search(r'title="([^"]+)"', self.info)
        return found and found[1]

    @property
    def place(self) -> str:
        """Page and line, for people."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def _tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


def blocks(page: Path) -> Iterator[Block]:
    """Every block of code of a page, in order."""
    for token in _tokens(page):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            yield Block(page, token.map[0] + (2 if token.type == "fence" else 1), token.info.strip(), token.content)


def spans(page: Path) -> Iterator[str]:
    """What stands in single back-quotes in running text, headings and tables."""
    for token in _tokens(page):
        for child in token.children or ():
            if child.type == "code_inline":
                yield child.content


def ids(values: object) -> str | None:
    """How parametrised tests are called."""
    return str(values.relative_to(ROOT)) if isinstance(values, Path) else None


class DryRun(BaseException):
    """Ends a block at its `run(...)`. No Exception: nothing catches it."""


@dataclass
class Page:
    """A page being carried out in `folder`, with the names that its blocks share."""

    folder: Path
    names: dict[str, Any]
    flows: int = 0
    """Dataflows that were checked at a `run(...)`."""
    result: Any = None
    """Value of the last expression that ended a block, as in a notebook."""

    def execute(self, block: Block) -> None:
        """Run a Python block here; an error in it names the page and its line."""
        if block.title:
            file = self.folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        tree = ast.parse("\n" * (block.line - 1) + block.text, block.place)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with launching(self._checked):
            try:
                exec(compile(tree, str(block.page), "exec"), self.names)
                if isinstance(last, ast.Expr):
                    self.result = eval(compile(ast.Expression(last.value), str(block.page), "eval"), self.names)
            except DryRun:
                pass

    def _checked(self, graph: Graph, settings: RunSettings) -> RunResult:
        self.flows += 1
        raise DryRun


def page_of(folder: Path, names: Mapping[str, Any]) -> Page:
    """A page that begins with `names`; it is a program, whose functions reach Spark's workers by value."""
    return Page(folder, {**names, "__name__": "__main__"})
