"""The driver's side of the supervisor: starts it, sends it requests, and ends it. `supervisor.py` serves them."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from elastream.model.errors import EnvironmentProblem

__all__ = ["Connection"]


class Connection:
    """A supervisor and the driver's end of its socket; what it says of itself goes to the file `log`. For several threads.

    Python opens descriptors so that programs which the driver starts do not inherit them: the socket ends with the driver.
    """

    def __init__(self, log: Path) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._replies = self._socket.makefile("rb")
        with theirs, open(log, "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "elastream.clouds.local.supervisor", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def ask(self, wanted: str, **arguments: Any) -> Any:
        """The answer to a request: a method of `Supervisor` and its arguments; raises EnvironmentProblem where it fails."""
        try:
            with self._lock:
                self._socket.sendall(json.dumps({"do": wanted, **arguments}).encode() + b"\n")
                line = self._replies.readline()
        except OSError:  # the supervisor is gone, as an empty line says
            line = b""
        if not line:
            raise EnvironmentProblem("the supervisor of the local cluster is gone, and all hosts with it")
        reply = json.loads(line)
        if "error" in reply:
            raise EnvironmentProblem(f"the local cluster could not {wanted}: {reply['error']}")
        return reply["value"]

    def close(self, grace: float) -> None:
        """End everything within `grace` seconds, by force after that, and return when nothing is left."""
        with contextlib.suppress(EnvironmentProblem):  # it has ended already
            self.ask("finish", grace=grace)
        self._replies.close()
        self._socket.close()
        self.process.wait()
