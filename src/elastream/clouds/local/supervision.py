"""The driver's side of the supervisor: starts it, sends it requests, and ends it. `supervisor.py` serves them."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from elastream.clouds.local.closed import for_others
from elastream.errors import EnvironmentProblem, HostsGone
from elastream.recording.directory import create_private

PATIENCE = 60.0
"""Seconds for an answer; one takes milliseconds, and on a machine that is far too busy, seconds."""


class Connection:
    """A supervisor and the driver's end of its socket; what it says of itself goes to the file `log`. For several threads.

    Python opens descriptors so that programs which the driver starts do not inherit them: the socket ends with the driver.
    patience: seconds for which an answer is waited for. A supervisor that is late (stopped, swapped out) loses nothing:
    what it answers afterwards is known by its number, and dropped.
    """

    def __init__(self, log: Path, patience: float = PATIENCE) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._patience, self._asked, self._pending = patience, 0, b""
        with theirs, create_private(log).open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "elastream.clouds.local.supervisor", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=for_others(os.environ),
            )

    def ask(self, wanted: str, **arguments: Any) -> Any:
        """The answer to a request: a method of `Supervisor` and its arguments; raises EnvironmentProblem where it fails."""
        try:
            with self._lock:
                self._asked += 1
                until = time.monotonic() + self._patience + float(arguments.get("grace", 0.0))
                self._socket.settimeout(self._patience)
                self._socket.sendall(json.dumps({"do": wanted, "asked": self._asked, **arguments}).encode() + b"\n")
                while (reply := self._reply(until)) is not None and reply["asked"] != self._asked:
                    pass  # to a request that nobody waits for any more
        except TimeoutError:
            late = f"its supervisor has not answered for {self._patience:g} s"
            raise EnvironmentProblem(f"the local cluster could not {wanted}: {late}") from None
        except OSError:
            reply = None
        if reply is None:
            raise HostsGone("the supervisor of the local cluster is gone, and all hosts with it")
        if "error" in reply:
            raise EnvironmentProblem(f"the local cluster could not {wanted}: {reply['error']}")
        return reply["value"]

    def _reply(self, until: float) -> dict[str, Any] | None:
        """The next reply; None where none comes any more. Raises TimeoutError."""
        while b"\n" not in self._pending:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            if not (arrived := self._socket.recv(1 << 16)):
                return None
            self._pending += arrived
        line, self._pending = self._pending.split(b"\n", 1)
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self, grace: float) -> None:
        """End everything within `grace` seconds, by force after that, and return when nothing is left."""
        with contextlib.suppress(EnvironmentProblem):  # it has ended already, or hangs
            self.ask("finish", grace=grace)
        self._socket.close()  # at which it ends what it started, and itself
        try:
            self.process.wait(self._patience)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the kernel then ends the first process of each host, and these end with their own
            self.process.wait()
