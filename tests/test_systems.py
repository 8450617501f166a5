"""Other systems than Linux: imports work, and what does not work says what does."""

import subprocess
import sys

import pytest

from elastream.errors import EnvironmentProblem
from elastream.systems import check_system

WITHOUT = """
import psutil, sys  # which has its own module for each system
sys.modules["fcntl"] = sys.modules["resource"] = sys.modules["pwd"] = None
import elastream
from elastream import Autopilot, Dataflow, Local, RunResult, key_tables, run, simulate
import elastream.cli.app
from elastream.clouds import InProcess, Pool
from elastream.testing import run_records
print("imported")
"""


def test_everything_works_on_linux():
    check_system("Local()", system="linux")


@pytest.mark.parametrize(
    ("what", "system", "sentence"),
    [
        (
            "Local()",
            "darwin",
            "Local() needs Linux, and this is macOS: simulate, check, report and run(flow) in this process work here",
        ),
        ("Local()", "win32", "Local() needs Linux, and this is Windows: simulate, check and report work here"),
        ("Local()", "freebsd14", "Local() needs Linux, and this is freebsd14: simulate, check and report work here"),
    ],
)
def test_a_missing_system_is_one_sentence_with_what_works(what, system, sentence):
    with pytest.raises(EnvironmentProblem) as refused:
        check_system(what, system=system)
    assert str(refused.value) == sentence


def test_a_run_in_process_is_let_through_on_macos_only():
    check_system("run(...)", also=("darwin",), system="darwin")
    with pytest.raises(EnvironmentProblem, match=r"run\(\.\.\.\) needs Linux or macOS, and this is Windows"):
        check_system("run(...)", also=("darwin",), system="win32")


def test_imports_need_no_module_that_only_unix_has():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.stdout == "imported\n", done.stderr
