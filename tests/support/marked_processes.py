"""What a process has left behind, whatever it started and however that came about."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path


def a_mark() -> Mapping[str, str]:
    """One variable of the environment that nothing else has; what a process starts inherits it."""
    return {"ELASTREAM_TEST": secrets.token_hex(8)}


def marked(mark: Mapping[str, str]) -> dict[int, str]:
    """Command lines of the living processes with `mark` in their environment, by process id."""
    ((name, value),) = mark.items()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"{name}={value}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # it has ended meanwhile
                continue
    return found
