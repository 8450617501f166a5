"""Every block of README and docs is carried out or checked: Python, YAML, commands; names of modules and files exist."""

import importlib
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

import elastream
from elastream.cli.app import app
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect, records
from elastream.documents.dataflow import load_document
from elastream.guards.document import load_guards
from elastream.pool.document import load_manager
from elastream.recording.recorder import Recorder
from support.commands import invoke
from support.doc_blocks import PAGES, ROOT, Block, Page, blocks, ids, page_of, spans
from support.example_run import play

PYTHON = ("python", "py")
LANGUAGES = {*PYTHON, "yaml", "sh", "text", ""}
"""What a block may be. `text` and what is only indented are shown, and checked for commands."""

READERS: dict[str, Callable[[Path], object]] = {
    "dataflow": load_document,
    "arbiter": load_manager,
    "region": load_manager,
    "signals": load_guards,
}
"""Who reads a document, by its first key."""

FRAGMENT = """dataflow: fragment
operators: {lines: {source: simulated}, out: {from: lines, sink: simulated}}
"""
"""What stands before keys of a dataflow's document that are shown alone."""

FIRST_PAGES = (ROOT / "README.md", ROOT / "docs/index.md")
"""Pages whose blocks people paste into an empty folder."""

FILES = {"token": "a token of sixteen characters or more", "books/a.txt": "to be or not to be", "reviews/a.txt": "a review"}
"""Files that pages speak of."""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder to carry a page out in, with the files that pages speak of."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(folder: Path) -> Page:
    """A page that may use what `elastream` offers without importing it, and where it is about other things a `flow` and a
    folder of a run, `recorded`.
    """
    flow = Dataflow("flow")
    flow.source(records([{"value": "to be"}], "value string")).sink(collect("seen"))
    recorded = folder / "runs" / "words-1"
    play(Recorder(recorded / "recording.jsonl"))
    return page_of(
        folder, {"flow": flow, "recorded": recorded, **{name: getattr(elastream, name) for name in elastream.__all__}}
    )


def needs_spark(page: Path) -> bool:
    """Whether blocks of it speak of a session and a query that exist."""
    return any("Autopilot(spark" in block.text for block in blocks(page) if block.language in PYTHON)


def test_a_block_says_what_it_is():
    known = LANGUAGES | {"json"}
    assert [b.place for page in PAGES for b in blocks(page) if b.language not in known] == []


@pytest.mark.parametrize("page", [page for page in PAGES if not needs_spark(page) and page not in FIRST_PAGES], ids=ids)
def test_python_and_yaml_of_a_page_work(page, folder):
    carried_out = started(folder)
    for block in blocks(page):
        if block.language in PYTHON:
            carried_out.execute(block)
        elif block.language == "yaml":
            read(block, folder)
    for flow in carried_out.names.values():
        if isinstance(flow, Dataflow):
            assert flow.graph.operators


def test_readme_has_at_most_500_words():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 500


@pytest.mark.parametrize("page", FIRST_PAGES, ids=ids)
def test_program_of_a_first_page_checks_in_an_empty_folder(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    programs = [block for block in blocks(page) if block.title]
    assert programs
    for block in programs:
        Path(block.title).write_text(block.text)
        result = invoke("check", block.title)
        assert "is valid" in result.output, result.output


def read(block: Block, folder: Path) -> None:
    """Have the block read by the reader of its document; what it names is made."""
    (key,) = re.findall(r"^([a-z_]+):", block.text, re.MULTILINE)[:1]
    text = block.text if key in READERS else FRAGMENT + block.text
    file = folder / (block.title or "document.yaml")
    file.write_text(text)
    found = READERS.get(key, load_document)(file)
    for setting in (getattr(found, name, None) for name in ("policy", "cloud")):
        if setting is not None:
            setting.build()


def command_in(text: str) -> str:
    """The command of elastream, make or a benchmark that a line is, without what is said about it; else nothing."""
    line = re.split(r"\s#|\s{2,}|; ", text.strip())[0]
    return line if re.match(r"(\.venv/bin/)?(elastream|make|python) [a-z-]", line) else ""


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_of_a_page_exist_with_their_options(page):
    shown = [line for block in blocks(page) if block.language in ("sh", "") for line in block.text.splitlines()]
    for line in filter(None, map(command_in, shown)):
        check(line, whole=True)
    for line in filter(None, map(command_in, spans(page))):
        check(line, whole=False)


def check(line: str, whole: bool) -> None:
    """Check one command; one that is named in running text may lack arguments."""
    program, *words = shlex.split(line.removeprefix(".venv/bin/"))
    if program == "elastream":
        check_ours([word for word in words if word != "..."], whole)
    elif program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
    else:
        script = ROOT / words[0]
        code = "".join(each.read_text() for each in (script, script.with_name("_common.py")) if each.exists())
        assert [word for word in words if word.startswith("--") and f'"{word}"' not in code] == [], line


@cache
def command_line() -> Any:
    """Return our command line as click has it, which takes a while to build."""
    return typer.main.get_command(app)


def check_ours(words: list[str], whole: bool) -> None:
    """Have the command line parse `words` as it would, and do nothing."""
    parser = command_line()
    context = parser.make_context("elastream", [], resilient_parsing=True)
    command = parser.get_command(context, words[0])
    if words[0].startswith("-"):
        assert any(words[0] in option.opts for option in parser.get_params(context)), words
        return
    assert command is not None, words
    try:
        command.make_context(words[0], words[1:], parent=context)
    except Exception as error:
        if whole or type(error).__name__ != "MissingParameter":
            raise AssertionError(f"{' '.join(words)}: {error}") from error


def test_a_command_that_does_not_exist_is_found():
    for line in ("elastream rum FILE", "elastream run FILE --no-such", "elastream report", "make nothing"):
        with pytest.raises(AssertionError):
            check(line, whole=True)


PACKAGES = sorted(each.name for each in (ROOT / "src/elastream").iterdir() if each.is_dir() and each.name != "__pycache__")
SETTING = re.compile(
    r"spark\.(sql|locality|pyspark|python|cores|dynamicAllocation|decommission|shuffle|task|executor|driver|elastream|authenticate|network|kubernetes|yarn|streaming|scheduler)\b"
)
DOTTED = re.compile(rf"(?:elastream\.)?(?:{'|'.join(PACKAGES)})(?:\.\w+)+$")
IN_TREE = re.compile(r"(?:src|tests|examples|benchmarks|docs|scripts|probes)/[\w/.-]+\.(?:py|yaml|md|json|sh)$")


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_modules_and_files_that_a_page_names_exist(page):
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        assert exists(name), name
    for name in spans(page):
        if DOTTED.match(name) and not SETTING.match(name):
            assert exists(name if name.startswith("elastream.") else f"elastream.{name}"), name
        elif IN_TREE.match(name):
            assert (ROOT / name).exists(), name


def test_what_docstrings_and_comments_refer_to_exists():
    for folder in ("src", "tests", "benchmarks", "examples", "scripts"):
        for file in (ROOT / folder).glob("**/*.py"):
            for name in re.findall(r"`(elastream\.[\w.]+)`", file.read_text(encoding="utf-8")):
                assert exists(name), f"{file.relative_to(ROOT)}: {name}"


def exists(name: str) -> bool:
    """Whether `name` is a module of ours or something in one."""
    module, rest = name, []
    while module:
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest.insert(0, last)
            continue
        for attribute in rest:
            if not hasattr(found, attribute):
                return attribute in getattr(found, "__annotations__", {})
            found = getattr(found, attribute)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_files_that_a_page_links_to_exist(page):
    text = "\n".join(line for line in page.read_text().splitlines() if not line.startswith("    "))
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target
