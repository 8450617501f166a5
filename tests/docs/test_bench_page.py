"""The page of the benchmark names the state of every query."""

import re

from elastream.bench.nexmark.queries import QUERIES
from support.doc_blocks import ROOT

PAGE = (ROOT / "docs/how-to/bench.md").read_text()


def rows():
    table = PAGE.split("| state | queries |\n| --- | --- |\n")[1].split("\n\n")[0]
    cells = [line.strip("|").split("|") for line in table.splitlines()]
    return {state.strip(): re.findall(r"q\d+", names) for state, names in cells}


def test_page_has_each_query_under_one_kind_of_state():
    names = [name for queries in rows().values() for name in queries]
    assert sorted(names) == sorted(QUERIES)


def test_page_names_the_queries_without_state_and_with_state_in_python():
    assert rows()["none"] == [name for name, query in QUERIES.items() if query.state.startswith("none")]
    python = next(names for state, names in rows().items() if "transformWithState" in state)
    assert python == [name for name, query in QUERIES.items() if query.python_state]
