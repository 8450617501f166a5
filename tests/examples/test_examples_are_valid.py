"""Every example that runs a dataflow is accepted, its policy with it: their own runs are too long for each change."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = (
    "demand_response.py",
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
    command = Path(sys.executable).with_name("elastream")
    done = subprocess.run([command, "check", EXAMPLES / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "is valid" in done.stdout
