"""A recording that grows: each read continues where the last one ended, also across its parts."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from elastream.errors import InputError
from elastream.recording.parts import entries_of, file_of, files_of
from elastream.recording.recorder import Recording, RecordingBuilder

Json = dict[str, Any]
# Decisions in memory; of twice as many, every second of the older ones goes.
MOST_DECISIONS = 2_000
EMPTY: Json = {"ids": [], "values": {}}
NO_TASKS: Json = {"operator": [], "index": [], "host": []}


class Tail:
    """The recording of a run's folder, of which `read` adds what is new.

    Figures of single hosts, tasks and links are kept of the newest observation alone.

    Attributes:
        behind: True if the last read ended at a limit.
        newest: Entry of the newest observation; empty before the first.
    """

    def __init__(self, run: Path) -> None:
        self._file = file_of(run)
        self._stream: IO[bytes] | None = None
        self._characters = 0
        self._part: Iterator[Json] | None = None  # an earlier part
        self._done: set[str] = set()  # names of the parts that were read
        self._builder = RecordingBuilder(str(self._file))
        self.behind = False
        self.newest: Json = {}

    def skip_parts(self) -> None:
        """Leave out the earlier parts that exist now."""
        self._done |= set(self._parts())

    def read(self, most: int, characters: int = 10_000_000) -> list[Json]:
        """Add new entries up to these limits, at least one, and return them. Raises InputError for a damaged one."""
        entries: list[Json] = []
        for entry in self._entries():
            try:
                self._add(entry)
            except (ValueError, TypeError, KeyError) as error:
                raise InputError(f"{self._file}: not an entry of a recording ({error})") from error
            entries.append(entry)
            # An earlier part is small enough; its lines are not counted.
            if len(entries) >= most or self._characters >= characters:
                break
        self.behind = len(entries) >= most or self._characters >= characters
        self._characters = 0
        return entries

    @property
    def recording(self) -> Recording:
        return self._builder.recording

    def _entries(self) -> Iterator[Json]:
        while self._begin():
            if self._part is not None:
                while (entry := next(self._part, None)) is not None:
                    yield entry
                self._part = None
                continue
            assert self._stream is not None
            at = self._stream.tell()
            for line in self._stream:
                if not line.endswith(b"\n"):  # it is being written
                    self._stream.seek(at)
                    return
                at += len(line)
                self._characters += len(line)
                yield json.loads(line)
            if not self._is_replaced():
                return
            self._stream.close()
            self._stream = None
            self._done |= set(list(self._parts())[:1])  # the file that was read here

    def _parts(self) -> dict[str, Path]:
        parts = {part.name.removesuffix(".gz"): part for part in files_of(self._file)[:-1]}
        return {name: part for name, part in parts.items() if name not in self._done}

    def _begin(self) -> bool:
        while self._stream is None and self._part is None:
            for name, part in self._parts().items():
                self._done.add(name)
                self._part = entries_of(part)
                return True
            if not self._file.exists():
                return False
            self._stream = self._file.open("rb")
            if self._parts():  # a new part was begun meanwhile
                self._stream.close()
                self._stream = None
        return True

    def _is_replaced(self) -> bool:
        assert self._stream is not None
        try:
            return os.fstat(self._stream.fileno()).st_ino != self._file.stat().st_ino
        except FileNotFoundError:  # between two parts
            return False

    def _add(self, entry: Json) -> None:
        if entry["kind"] == "observation":
            self.newest = entry
            entry = {**entry, "hosts": EMPTY, "links": EMPTY, "tasks": NO_TASKS}
        self._builder.add(entry)
        decisions = self._builder.decisions
        if len(decisions) > 2 * MOST_DECISIONS:
            quiet = [number for number, each in decisions.items() if not (each.outcomes or each.proposals or each.faults)]
            acted = decisions.keys() - set(quiet)
            for numbers in (quiet, sorted(acted)):
                for number in numbers[: len(numbers) - MOST_DECISIONS // 2 : 2]:
                    del decisions[number]
