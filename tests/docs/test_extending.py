"""What the page about extending Elastream shows works: its commands on its files, and its provider by the contract."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_blocks import PYTHON, command_in, folder, read, started

from conformance.provider_suite import Made, ProviderCase, provider_suite
from support.commands import invoke
from support.doc_blocks import ROOT, blocks

__all__ = ["folder"]  # the fixture

PAGE = ROOT / "docs/how-to/extend.md"


def carried_out(folder: Path) -> dict:
    """The names of the page's Python, its files written."""
    page = started(folder)
    for block in blocks(PAGE):
        if block.language in PYTHON:
            page.execute(block)
        elif block.language == "yaml":
            read(block, folder)
    return page.names


@pytest.mark.parametrize("command", ["elastream check", "elastream simulate"])
def test_the_pages_commands_work_on_its_files(command, folder):
    carried_out(folder)
    shown = [line for block in blocks(PAGE) for line in block.text.splitlines() if not block.language]
    (line,) = [found for found in map(command_in, shown) if found.startswith(command)]
    result = invoke(*line.split()[1:])
    assert ("late.py:LeaseWhenLate" if "simulate" in command else "is valid") in result.output
    assert result.exit_code in (0, 1), result.output  # 1: no policy meets the target


@contextmanager
def machines(folder: Path) -> Iterator[Made]:
    """The page's provider with two machines, on which a command sleeps."""
    cloud = carried_out(folder)["Machines"](("a", "b"), "sleep 600", "spark://127.0.0.1:7077", "127.0.0.1")
    provider, (kind,) = cloud.open(folder), cloud.types

    def kill(host: str) -> None:
        provider._hosts[host].process.send_signal(signal.SIGKILL)

    def fill(full: bool) -> None:
        if full:
            provider.lease({"x": kind, "y": kind})
        else:
            provider.release(["x", "y"])

    def running() -> int:
        return sum(each.process is not None and each.process.poll() is None for each in provider._hosts.values())

    try:
        yield Made(provider, kind, kill=kill, fill=fill, running=running)
    finally:
        provider.close()


TestMachines = provider_suite(ProviderCase("machines of the page", machines, ends_when_closed=True))
