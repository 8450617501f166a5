"""The end of a recording, read from behind: what a run that goes on needs of one that may be gigabytes long."""

import json
import os
from pathlib import Path

BLOCK = 1 << 16
"""Bytes read at first; doubled until what is looked for is found."""


def whole_length(path: Path) -> int:
    """Bytes of `path` up to the end of its last whole line; a killed writer may have torn one."""
    return path.stat().st_size - len(_tail(path, lines=1)[-1])


def last_time(path: Path) -> float:
    """The newest time, seconds of the run, that the recording at `path` tells of; 0 where it tells of none."""
    if not path.exists():
        return 0.0
    wanted = 2
    while True:
        *lines, _ = _tail(path, lines=wanted)
        for line in reversed(lines):
            try:
                return float(json.loads(line)["time"])
            except (ValueError, TypeError, KeyError):
                continue  # a header, or damage: what comes before it
        if len(lines) < wanted:
            return 0.0
        wanted *= 2


def _tail(path: Path, lines: int) -> list[bytes]:
    """At least the last `lines` whole lines, as far as there are so many, and behind them what follows the last one."""
    size, block = path.stat().st_size, BLOCK
    with path.open("rb") as file:
        while True:
            file.seek(-min(block, size), os.SEEK_END)
            found = file.read()
            parts = found.split(b"\n")
            if block >= size:
                return parts
            if len(parts) > lines + 1:
                return parts[1:]
            block *= 2
