"""The page about the architecture names the packages of the import contracts, in their order."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
LAYERED = [contract for contract in CONTRACTS if contract["type"] == "layers"]


def tables(text: str) -> list[list[set[str]]]:
    """Of each table of the page, the packages that each row names first."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [line.split("|")[1] for line in table.splitlines()[2:]]
        found.append([set(re.findall(r"`([\w.]+)`", row)) for row in rows])
    return found


@pytest.mark.parametrize("contract", LAYERED, ids=lambda contract: contract["name"])
def test_the_page_lists_the_layers_of_each_contract_in_order(contract):
    layers = [{name.strip().rpartition(".")[2] for name in layer.split("|")} for layer in contract["layers"]]
    assert layers in tables(PAGE)
