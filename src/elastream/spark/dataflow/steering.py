"""Tells the readers of our sources and durable edges what their next batch runs under.

Normally that is the newest composition wanted: a file that the control plane replaces for all queries at once. Where
records keep the version that they entered under (`Consistency.WAVE`), a query behind durable edges goes by its records:

    a query reads     its next batch runs under
    sources only      the newest version wanted; a version that comes when no record is due gets a batch without records
    durable edges     the lowest version that one of its edges has next: of its first record not taken, else, where all are
                      taken, of the newest batch that was written to it. An edge that is ahead waits, a source beside edges
                      goes with them. A version that has no records gets a batch without any, so that what follows
                      hears of it

Each reader is a process of its own and comes to its own conclusion, at another moment than the others of its query. That
does no harm: positions are those of the last batch planned, the same for all, and versions only grow along an edge. So what
an edge has next only grows while a batch is planned; whoever takes records of a version takes them because no edge has any
of a lower one, nor can get them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elastream.recording.places import Place, place_of
from elastream.spark.dataflow.edge_log import EdgeLog
from elastream.spark.worker.composition import Ran, Wanted, latest_batch, newest_ran, offsets_of, read_wanted

BEGINNING = Ran()


@dataclass(frozen=True, slots=True)
class Steering:
    """Where a reader finds what is requested of it, JSON-ready as `options` of a Spark data source.

    name: of the source or edge. wanted: file that `write_wanted` writes. partitions: tasks, unless that says otherwise.
    wave: whether records keep their version; then checkpoint is that of the query, edges the folders of all durable edges
    that it reads, by name, and before what holds on edges that nothing was written to yet.
    """

    name: str
    wanted: Path
    partitions: int = 1
    wave: bool = False
    checkpoint: Place | None = None
    edges: Mapping[str, Place] = field(default_factory=dict)
    before: Ran = BEGINNING

    def option(self) -> str:
        """As one text."""
        return json.dumps(
            [
                self.name,
                str(self.wanted.resolve()),
                self.partitions,
                self.wave,
                None if self.checkpoint is None else str(self.checkpoint.resolve()),
                {name: str(path.resolve()) for name, path in self.edges.items()},
                self.before,
            ]
        )

    @classmethod
    def of(cls, option: str) -> "Steering":
        """The inverse of `option`."""
        name, wanted, partitions, wave, checkpoint, edges, before = json.loads(option)
        return cls(
            name,
            Path(wanted),
            partitions,
            wave,
            None if checkpoint is None else place_of(checkpoint),
            {each: place_of(path) for each, path in edges.items()},
            Ran(*before),
        )


class Course:
    """What one reader's next batch runs under. log: of the reader's own edge, which it reads too."""

    def __init__(self, steering: Steering, log: EdgeLog | None = None) -> None:
        self._steering = steering
        self._logs = {name: EdgeLog(folder, versions=True) for name, folder in steering.edges.items()}
        if log is not None and steering.wave:
            self._logs[steering.name] = log
        self._own = log
        self.wanted = Wanted()
        self.next = self.last = steering.before

    def look(self) -> None:
        """See what is wanted now, the composition of the next batch, and that of the newest one planned (`last`)."""
        self.wanted = read_wanted(self._steering.wanted)
        self.next = self.wanted.ran
        if not self._steering.wave:
            return
        assert self._steering.checkpoint is not None
        planned = latest_batch(self._steering.checkpoint)
        offsets = offsets_of(self._steering.checkpoint, planned) if planned >= 0 else []
        self.last = newest_ran(offsets) or self._steering.before
        taken = {str(offset["edge"]): int(offset["n"]) for offset in offsets if "edge" in offset}
        if self._logs:
            self.next = min(self._has_next(name, taken.get(name, 0)) for name in self._logs)

    @property
    def wave(self) -> bool:
        """Whether records keep the version that they entered under."""
        return self._steering.wave

    @property
    def partitions(self) -> int:
        """Tasks of the next batch, at most."""
        return self.wanted.partitions.get(self._steering.name, self._steering.partitions)

    @property
    def announces(self) -> bool:
        """Whether the next batch is due also without records, because those that follow are to hear of its version."""
        return self._steering.wave and self.next.version > self.last.version

    def _has_next(self, edge: str, taken: int) -> Ran:
        log = self._logs[edge]
        log.refresh()
        if log is not self._own:
            log.forget(taken)
        return log.ran(taken) or self._steering.before
