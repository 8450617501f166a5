"""Kernel settings of a cluster's processes, made between fork and exec. Imports next to nothing."""

import ctypes
import os
import signal

SET_PARENT_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
LIBC = None if os.name == "nt" else ctypes.CDLL(None)  # loaded before any fork: loading takes locks
SECRET = "_SPARK_AUTH_SECRET"  # an executor receives the cluster's secret in this environment variable


def end_with_parent() -> None:
    assert LIBC is not None
    LIBC.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans() -> None:
    assert LIBC is not None
    LIBC.prctl(SET_CHILD_SUBREAPER, 1)


def take_only_idle_time() -> None:
    """Run the calling process and its children only in idle CPU time."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def wipe(name: str) -> None:
    """Remove a variable from this process's environment, and its value from what the system shows."""
    if name not in os.environ:
        return
    find = ctypes.CDLL(None).getenv
    find.restype = ctypes.c_void_p
    if (at := find(name.encode())) is not None:
        ctypes.memset(at, 0, len(os.fsencode(os.environ[name])))
    del os.environ[name]
