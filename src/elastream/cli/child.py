"""Runs what imports a user's code in a child process: whatever that does to it, the
command goes on, and says what happened.
"""

import contextlib
import io
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from elastream.errors import ElastreamError

ENDED = 1
"""Exit status where the child has printed a stack trace: a fault of this package."""


def in_child(file: Path, work: Callable[[], None]) -> None:
    """Call `work`, which loads `file`, in a fork of this process; what it prints is printed here.

    Raises the ElastreamError that it raises, and one that says so where its process ended before it returned.
    """
    import typer

    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        _work(theirs, work)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if not told:
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        raise ElastreamError(
            f"{file}: the process that read it {how} before it was done: its code, or what that imports, ends it"
        )
    out, err, error = pickle.loads(told)
    sys.stdout.write(out)
    sys.stderr.write(err)
    if isinstance(error, int):
        raise typer.Exit(error)
    if error is not None:
        raise error


def _work(pipe: int, work: Callable[[], None]) -> None:
    """In the child: do it, tell what came of it, and end without what this process would do at its end."""
    os.environ["COLUMNS"] = str(shutil.get_terminal_size().columns)
    out, err = io.StringIO(), io.StringIO()
    error: ElastreamError | int | None = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            error = _outcome(work)
        with open(pipe, "wb") as file:
            file.write(pickle.dumps((out.getvalue(), err.getvalue(), error)))
    finally:
        os._exit(0)


def _outcome(work: Callable[[], None]) -> ElastreamError | int | None:
    import traceback

    import typer

    try:
        work()
    except ElastreamError as error:
        found = ElastreamError(str(error))
        found.exit_status = error.exit_status
        return found
    except typer.Exit as ended:
        return ended.exit_code
    except Exception:
        traceback.print_exc()
        return ENDED
    return None
