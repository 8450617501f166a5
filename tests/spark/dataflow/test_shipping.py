"""Users' functions reach a process that has none of their modules."""

import runpy
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from elastream.errors import DataflowError
from elastream.spark.dataflow.shipping import pickled

HELPER = """
import re

WORD = re.compile("[a-z]+")


def words(line):
    return WORD.findall(line)
"""

SCRIPT = """
import math

import helper_beside
from helper_beside import words
from elastream.spark.dataflow.shipping import pickled

LIMIT = 3


def longest(line):
    return max(map(len, words(line)))


def operator(line):
    return longest(line), len(helper_beside.words(line)), math.floor(2.5), LIMIT


shipped = pickled(operator, "operator 'operator'")
"""


def run_elsewhere(shipped: bytes, folder: Path) -> str:
    """What the shipped function says of a line, in a Python that knows nothing of where it came from."""
    (folder / "shipped").write_bytes(shipped)
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb'))('a bcd ef'))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "shipped")], capture_output=True, text=True, check=True, cwd="/"
    )
    return done.stdout.strip()


@pytest.mark.parametrize("run_name", ["__main__", "<run_path>"])
def test_a_script_run_by_path_ships_functions_helpers_and_imports(tmp_path, monkeypatch, run_name):
    (tmp_path / "helper_beside.py").write_text(HELPER)
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = runpy.run_path(str(tmp_path / "script.py"), run_name=run_name)
    sys.modules.pop("helper_beside")
    assert run_elsewhere(found["shipped"], tmp_path) == "(3, 3, 2, 3)"


def test_a_function_that_holds_a_lock_is_refused_by_name():
    lock = threading.Lock()
    with pytest.raises(DataflowError, match=r"operator 'f' cannot be sent to the workers: .*lock"):
        pickled(lambda n: lock and n, "operator 'f'")


@pytest.mark.parametrize("place", ["lib/python3.11/site-packages", "dist-packages"])
def test_a_library_that_is_installed_elsewhere_is_not_sent(tmp_path, monkeypatch, place):
    """`pip install --user`, a `.pth` file, a folder of another environment: a library cannot always be taken to pieces."""
    folder = tmp_path / place
    folder.mkdir(parents=True)
    (folder / "library_elsewhere.py").write_text("import threading\nLOCK = threading.Lock()\ndef f(n): return LOCK and n\n")
    monkeypatch.syspath_prepend(str(folder))
    from library_elsewhere import f

    try:
        assert b"library_elsewhere" in pickled(f, "operator 'f'")
    finally:
        sys.modules.pop("library_elsewhere")
