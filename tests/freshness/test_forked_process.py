"""The process of a bounded run ends with its work, whatever fails."""

import os
import sys

import pytest

from elastream.errors import InputError
from elastream.freshness.process import ForkedProcess


class Closed:
    """A stream whose reader has gone."""

    def write(self, text):
        raise BrokenPipeError

    def flush(self): ...


def status_of(work):
    parent = os.getpid()
    try:
        process = ForkedProcess(work)
    except BaseException:  # a child that escaped
        if os.getpid() != parent:
            os._exit(77)
        raise
    return os.waitstatus_to_exitcode(os.waitpid(process._pid, 0)[1])


def refused():
    sys.stderr = Closed()
    raise InputError("no such folder")


def interrupted_twice():
    class Twice:
        def flush(self):
            raise KeyboardInterrupt

    sys.stdout = Twice()
    raise KeyboardInterrupt


@pytest.mark.parametrize("work", [refused, interrupted_twice])
def test_child_that_cannot_even_say_its_error_ends(work):
    assert status_of(work) not in (0, 77)
