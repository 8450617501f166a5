"""States of a job that sleeps between bounded runs, and their log `freshness.jsonl` in the run's folder.

Checkpoints, not the log, say what is committed, `leases.jsonl` what is leased, and locks who lives. A controller that finds
leases, or another last state than `asleep`, `ended` or `releasing`, starts at once. Its run takes them over, and repeats an
open batch.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from elastream.freshness.planner import BoundedRun
from elastream.recording.directory import RunDirectory
from elastream.recording.lines import Lines, whole_lines
from elastream.recording.manifest import process_lock

# Lines of the log after which older ones are dropped, and how many stay.
MAX_LINES, KEPT_LINES = 2_000, 1_000


#   state      next       event                      written by       order
#   asleep     leasing    a start is due             the controller   line, then the process of the run
#   leasing    running    queries started            the run          after the start
#   running    releasing  last batch committed       the run          after the commit, before hosts are released
#   releasing  asleep     hosts released, run ended  the controller   after the process has ended
#   (any run)  failed     the process ended wrongly  the controller   after the process has ended
#   failed     leasing    retry due                  the controller   line, then the process of the run
#   any        ended      stopped on request         the controller   after the process has ended
class State(StrEnum):
    """States of a job with a freshness."""

    ASLEEP = "asleep"
    LEASING = "leasing"
    RUNNING = "running"
    RELEASING = "releasing"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A source as a controller watches it without Spark.

    Attributes:
        kind: "files" or "kafka".
        place: Local path, folder or glob; topics, separated by commas.
    """

    kind: str
    place: str
    checkpoint: str
    number: int = 0
    names: str = ""
    servers: str = ""

    @property
    def name(self) -> str:
        return f"{self.checkpoint}#{self.number}"


@dataclass(frozen=True, slots=True)
class WakeOrder:
    """Order of a controller to a run: its number, its hosts, and the service level (seconds)."""

    run: int
    hosts: int
    freshness: float


@dataclass(frozen=True, slots=True)
class Progress:
    """State of the present run, from its lines in the log."""

    state: State | None = None
    run: int = 0
    start: float = math.nan
    snapshot: float = math.nan
    committed: float = math.nan
    hosts: int = 0
    rows: Mapping[str, float] = field(default_factory=dict)  # records that each source read in the run
    amounts: Mapping[str, float] = field(default_factory=dict)  # bytes of files that it read
    sources: tuple[SourceSpec, ...] = ()


def write_state(directory: RunDirectory, state: State, run: int, at: float, **about: Any) -> None:
    """Append a line to the log for epoch second `at`, and drop old ones. Raises JournalProblem.

    Only one process writes at a time: the controller lets a run write until its process has ended.
    """
    with closing(Lines(directory.freshness, "the log of starts")) as lines:
        if lines.count > MAX_LINES:
            lines.replace(lines.read()[-KEPT_LINES:])
        lines.append({"time": at, "state": state.value, "run": run, **about})


def entries_of(directory: RunDirectory) -> list[dict[str, Any]]:
    """Return the complete lines of the log; none without a log. Raises InputError if it is damaged."""
    path = directory.freshness
    return list(whole_lines(path.read_bytes(), path)) if path.is_file() else []


def progress_of(entries: list[dict[str, Any]]) -> Progress:
    """Return the state of the newest run in `entries`."""
    if not entries:
        return Progress()
    last = entries[-1]
    mine = {entry["state"]: entry for entry in entries if entry["run"] == last["run"]}
    leasing, running = mine.get("leasing", {}), mine.get("running", {})
    releasing = mine.get("releasing", {})
    specs = next((entry["sources"] for entry in reversed(entries) if entry.get("sources")), ())
    return Progress(
        State(last["state"]),
        int(last["run"]),
        float(leasing.get("time", math.nan)),
        float(running.get("time", math.nan)),
        float(releasing.get("committed", math.nan)),
        int(leasing.get("hosts", 0)),
        releasing.get("rows", {}),
        releasing.get("amounts", {}),
        tuple(SourceSpec(**each) for each in specs),
    )


def runs_of(entries: list[dict[str, Any]]) -> tuple[BoundedRun, ...]:
    """Return the runs that ended in order, oldest first."""
    return tuple(BoundedRun(**entry["ran"]) for entry in entries if "ran" in entry)


@dataclass(frozen=True, slots=True)
class RunReporter:
    """The run's side of the log: it writes the states `running` and `releasing`."""

    directory: RunDirectory
    order: WakeOrder
    clock: Callable[[], float] = time.time

    def started(self, at: float | None = None) -> None:
        """Note the snapshot of the queries, at epoch second `at` or now."""
        write_state(self.directory, State.RUNNING, self.order.run, self.clock() if at is None else at)

    def caught_up(
        self, committed: float, rows: Mapping[str, float], amounts: Mapping[str, float], sources: Sequence[SourceSpec]
    ) -> None:
        """Note what was read, and that all of the snapshot is committed, at `committed` (epoch seconds)."""
        about: dict[str, Any] = {"committed": committed, "rows": dict(rows), "amounts": dict(amounts)}
        about["sources"] = [asdict(each) for each in sources]
        write_state(self.directory, State.RELEASING, self.order.run, self.clock(), **about)


@contextmanager
def controller_lock(directory: RunDirectory) -> Iterator[int]:
    """Lock a folder for its controller; yield the descriptor. Raises EnvironmentProblem if another one lives."""
    directory.controller_lock.parent.mkdir(parents=True, exist_ok=True)
    what = f"{directory.root} has a controller"
    with process_lock(directory.controller_lock, lambda other: f"{what}, process {other}: stop that one first") as file:
        yield file
