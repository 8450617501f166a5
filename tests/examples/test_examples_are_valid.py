"""Every example that runs a dataflow is accepted, its policy with it: their own runs are too long for each change."""

from pathlib import Path

import pytest

from support.commands import invoke

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = (
    "demand_response.py",
    "existing_job.py",
    "linear_road.py",
    "manufacturing.py",
    "setpoints.py",
    "trending.py",
    "word_count.py",
    "word_count.yaml",
)
"""Those that `elastream check` reads; the others are modules of these, or start several runs by themselves."""


@pytest.mark.parametrize("name", RUN)
def test_an_example_is_valid(name):
    done = invoke("check", EXAMPLES / name)
    assert done.exit_code == 0, done.output
    assert "is valid" in done.output
