"""The claim of a driver on a run whose files are on a file system that knows no lock: a record in the folder is the lock.

    state   event                                                                 next
    free    a driver writes a record of its own, and finds it after SETTLES       held
    free    the same, and it finds another's                                      held by that one: refused
    held    its driver writes the next number into it, each RENEWED seconds       held
    held    its driver ends in order, and removes it                              free
    held    its driver finds another's there                                      lost: it ends its queries
    held    another driver wants it, and sees its number change within PATIENCE   held: refused
    held    another driver wants it, and it does not change                       free: its driver is gone

Clocks of two machines are never compared: whoever wants a claim looks whether it moves. A driver that was cut off from
the file system for longer than PATIENCE, and comes back, finds itself replaced; its queries wrote no checkpoint meanwhile.
"""

import json
import os
import platform
import secrets
import time
from collections.abc import Callable
from typing import Any

from elastream.errors import EnvironmentProblem
from elastream.recording.formats import marked, unmarked
from elastream.recording.places import RemotePath, write_whole

RENEWED = 5.0
"""Seconds between two numbers of a claim."""
PATIENCE = 20.0
"""Seconds without a new number after which a claim is free."""
SETTLES = 1.0
"""Seconds after which a driver that has written a claim looks whether another has, too."""


class DriverClaim:
    """The claim of this process on the run in `files`. wait: pauses for seconds."""

    def __init__(self, files: RemotePath, wait: Callable[[float], object] = time.sleep) -> None:
        self._place, self._wait = files / "driver.json", wait
        self._own, self._number = secrets.token_hex(8), 0
        self.lost = False

    def take(self) -> None:
        """Take the claim. Raises EnvironmentProblem where another driver has it, OSError where nothing can be read."""
        if (before := self._read()) and before.get("claim") != self._own:
            waited = 0.0
            while waited < PATIENCE:
                self._wait(SETTLES)
                waited += SETTLES
                now = self._read()
                if not now:
                    break
                if now != before:
                    raise EnvironmentProblem(self._refused(now))
        self._write()
        self._wait(SETTLES)
        if (now := self._read()).get("claim") != self._own:
            raise EnvironmentProblem(self._refused(now))

    def renew(self) -> None:
        """Say that this driver is there; sets `lost` where another has taken its place. Raises OSError."""
        if self._read().get("claim", self._own) != self._own:
            self.lost = True
        if not self.lost:
            self._write()

    def release(self) -> None:
        """Give the claim up, if it is held. Raises OSError."""
        if self._read().get("claim") == self._own:
            self._place.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        try:
            return unmarked(json.loads(self._place.read_text()), self._place)
        except FileNotFoundError:
            return {}
        except ValueError:  # of another program, or half written where nothing is atomic
            return {"claim": "unreadable"}

    def _write(self) -> None:
        self._number += 1
        about = {"claim": self._own, "number": self._number, "machine": platform.node(), "process": os.getpid()}
        write_whole(self._place, json.dumps(marked(about)).encode())

    def _refused(self, by: dict[str, Any]) -> str:
        who = f"process {by.get('process', '?')} on {by.get('machine', 'another machine')}"
        return f"{self._place.parent} is held by another driver ({who}), which runs it"
