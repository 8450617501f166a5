"""The disk of simulated processes: all that is written durably goes through `recording.lines.WRITE`, and here it fails.

A process that dies in a write leaves nothing of it (before), a part (inside) or all of it (after). A full disk takes some
more bytes, and then no more until there is room again.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from typing import Protocol

from elastream.recording import lines


class Killed(BaseException):
    """The process is no more: nothing may catch this as an error."""


class Writer(Protocol):
    """The process that writes. dies: "before", "inside" or "after", if it is to die in its next write. room: bytes that
    the disk still takes from it.
    """

    dies: str
    room: float

    def die(self) -> None:
        """Never returns: raises Killed, and is dead."""

    def works(self) -> None:
        """Raises Killed where it is dead already."""


class Disk:
    """Writes of the processes whose folders are in `writers`, by the beginning of their paths."""

    def __init__(self) -> None:
        self.writers: dict[str, Writer] = {}
        self.writes = 0

    def write(self, file: FileIO, content: bytes) -> int:
        """As `FileIO.write`."""
        name = os.fspath(file.name) if not isinstance(file.name, int) else ""
        writer = next((each for folder, each in self.writers.items() if str(name).startswith(folder)), None)
        if writer is None:
            return file.write(content)
        writer.works()
        self.writes += 1
        if (dies := writer.dies) == "before":
            writer.die()
        if dies == "inside":
            file.write(content[: len(content) // 2])
            writer.die()
        if writer.room < len(content):
            taken, writer.room = int(writer.room), 0.0
            if taken:
                return file.write(content[:taken])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        writer.room -= len(content)
        written = file.write(content)
        if dies == "after":
            writer.die()
        return written


@contextmanager
def failing(disk: Disk) -> Iterator[None]:
    """Let `disk` be the one that is written to; nothing is forced to the real one, which takes most of the time."""
    write, sync = lines.WRITE, lines.SYNC
    lines.WRITE, lines.SYNC = disk.write, lambda descriptor: None
    try:
        yield
    finally:
        lines.WRITE, lines.SYNC = write, sync
