"""A driver that is killed, with its JVM, while ten requests for hosts are pending: nothing is left that no ledger knows.

The same for every cluster: what differs is the cloud, and what the cluster says of the executors that it has and owes.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elastream.recording.lease_log import LeaseLog
from support.clusters import PROGRAMS
from support.waiting import ended, wait_until

PROGRAM = PROGRAMS / "ten_pending_hosts.py"


def killed_while_pending(
    folder: Path,
    cloud: Mapping[str, Any],
    *,
    room: int,
    granted: Callable[[], int],
    owed: Callable[[], int] | None = None,
    by_itself: bool = True,
) -> None:
    """Lease ten hosts on a cluster with room for `room` in all, kill everything, and go on with no need of them.

    granted, owed: executors that the cluster has granted, and those that it still is to grant, None where it does not say.
    by_itself: whether the cluster ends what a driver that is gone has left.
    """
    waiting = owed or (lambda: 0)

    def look() -> tuple[int, int, int]:
        return _leased(folder), granted(), waiting()

    full = (11, room, 0 if owed is None else 11 - room)
    first = _begin(folder, cloud, greedy=True)
    try:
        wait_until(lambda: first.poll() is not None or look() == full, progress=look, otherwise=look)
        assert first.poll() is None, first.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    if by_itself:
        wait_until(lambda: look()[1:] == (0, 0), progress=look, otherwise=look)
    second = _begin(folder, cloud, greedy=False)
    agree = False
    while second.poll() is None and not agree:
        wait_until(lambda: second.poll() is not None or look() == (1, 1, 0), progress=look, otherwise=look)
        agree = look() == (1, 1, 0)
    out, err = ended(second, progress=look)
    assert second.returncode == 0, err
    assert "every count is exact" in out
    assert agree, "while it ran there was no moment at which ledger and cluster had one host"
    wait_until(lambda: look() == (0, 0, 0), progress=look, otherwise=look)


def _begin(folder: Path, cloud: Mapping[str, Any], *, greedy: bool) -> subprocess.Popen[str]:
    environment = {**os.environ, "CLOUD": json.dumps(cloud), "GREEDY": "yes" if greedy else "no"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(
        [sys.executable, str(PROGRAM)], **pipes, cwd=folder, text=True, env=environment, start_new_session=True
    )


def _leased(folder: Path) -> int:
    """Leases in the run's ledger that have not ended."""
    found = next(iter((folder / "runs").glob("counted-*/leases.jsonl")), None)
    if found is None:
        return 0
    copy = folder / "ledger"  # reading it would cut off a line that is being written
    copy.write_bytes(found.read_bytes())
    log = LeaseLog(copy)
    log.close()
    return sum(lease.active for lease in log.earlier.values())
