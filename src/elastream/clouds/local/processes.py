"""What processes of a local cluster ask of the kernel for themselves, between fork and exec. Imports next to nothing."""

import ctypes
import os
import signal

SET_PARENT_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
LIBC = ctypes.CDLL(None)  # loaded before any fork: loading takes locks
SECRET = "_SPARK_AUTH_SECRET"
"""Environment variable in which an executor gets the cluster's secret from the daemon that starts it."""


def end_with_parent() -> None:
    """The kernel kills the calling process once its parent is gone."""
    LIBC.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans() -> None:
    """Processes below the calling one whose parents end become its children."""
    LIBC.prctl(SET_CHILD_SUBREAPER, 1)


def take_only_idle_time() -> None:
    """The calling process and its children get CPU time that nothing else wants."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def wipe(name: str) -> None:
    """Remove a variable from this process's environment, and its value from what the system shows of it."""
    if name not in os.environ:
        return
    find = ctypes.CDLL(None).getenv
    find.restype = ctypes.c_void_p
    if (at := find(name.encode())) is not None:
        ctypes.memset(at, 0, len(os.fsencode(os.environ[name])))
    del os.environ[name]
