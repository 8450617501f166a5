"""Where the state partitions of the running queries are, where they are wanted, and how they get there.

What moves a wanted move along:

    WANTED -> SENT      a batch of its query has just ended; the coordinator was told
    SENT   -> LANDED    the next batch ran it there
    SENT   -> WANTED    the next batch ran it elsewhere (its own report overwrote ours): told again
    WANTED, SENT -> DROPPED   its target is no longer usable, a newer move replaced it, or ATTEMPTS were made
"""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from elastream.model.action import TaskId
from elastream.spark.state_partitions import Location, StatePartitions

__all__ = ["Move", "Placing"]

ATTEMPTS = 20
"""Times a move is told again before it is dropped; one or two are normal."""


@dataclass(frozen=True, slots=True)
class Move:
    """A task on its way to `host`. `wanted_at`, `landed_at`: seconds of the run."""

    task: TaskId
    host: str
    wanted_at: float
    attempts: int = 0
    landed_at: float | None = None


class Placing:
    """State partitions of all keyed operators, by task. Thread-safe."""

    def __init__(self, states: Mapping[str, StatePartitions], clock: Callable[[], float]) -> None:
        self._states = states
        self._clock = clock
        self._lock = threading.Lock()
        self._where: dict[TaskId, Location] = {}
        self._wanted: dict[TaskId, Move] = {}
        self.landed: list[Move] = []

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """Every state partition there is."""
        return tuple(TaskId(name, index) for name, state in self._states.items() for index in range(state.partitions))

    def where(self) -> Mapping[TaskId, Location]:
        """Where each task ran last, as of the last `look`."""
        return dict(self._where)

    def wanted(self) -> Mapping[TaskId, str]:
        """Moves not landed yet: host by task."""
        with self._lock:
            return {task: move.host for task, move in self._wanted.items()}

    def want(self, task: TaskId, host: str) -> None:
        """Let `task` run on `host` from the next batch on; replaces an earlier wish for another host."""
        with self._lock:
            known = self._wanted.get(task)
            if known is None or known.host != host:
                self._wanted[task] = Move(task, host, self._clock())

    def look(self) -> None:
        """Ask the coordinator where every task is."""
        self._where = {
            TaskId(name, index): location
            for name, state in self._states.items()
            for index, location in state.where().items()
        }

    def send(self, operators: Collection[str], target: Callable[[str], Location | None]) -> None:
        """A batch of the query of `operators` has ended: settle their moves that landed, tell the coordinator the others.

        `target(host)` gives the executor of a usable host, None otherwise. Each host is told one task a batch: loading a
        partition takes time from the batch that needs it, and moving many at once would make one batch long.
        """
        self.look()
        loading: set[str] = set()
        with self._lock:
            for task, move in [(task, move) for task, move in self._wanted.items() if task.operator in operators]:
                place = target(move.host)
                if place is None or move.attempts >= ATTEMPTS:
                    del self._wanted[task]
                elif self._where.get(task) == place and move.attempts:
                    # The coordinator repeats what it was told; the batch that has ended since makes it true.
                    self.landed.append(replace(move, landed_at=self._clock()))
                    del self._wanted[task]
                elif move.host not in loading:
                    loading.add(move.host)
                    self._states[task.operator].move(task.index, place)
                    self._wanted[task] = replace(move, attempts=move.attempts + 1)
