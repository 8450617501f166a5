"""A job whose bounded runs are played by the clock, so that a test can kill it between any two of its steps.

A run leases hosts, takes a snapshot, logs a batch, writes it, commits it, says so, and releases its hosts. Written results
of a batch replace those of its first try, as sinks do. Hosts outlive a killed run, as those of a cloud do.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from elastream.core.hosts import Billing, HostType
from elastream.freshness.controller import Controller
from elastream.freshness.planner import HostBounds
from elastream.freshness.wakes import RunReporter, SourceSpec, WakeOrder
from elastream.freshness.watching import Look
from elastream.recording.directory import RunDirectory

TYPE = HostType("tiny", cores=1, price=1.0, start=20.0, billing=Billing(1.0))
SPEC = SourceSpec("kafka", "topic", "checkpoint")


class Killed(BaseException):
    """The controller was killed."""


@dataclass
class Job:
    """The job, its plant, and what would survive it: sink, checkpoint and leases.

    Attributes:
        arrivals: Time of each record, ascending.
        startup, work: Seconds until the snapshot; seconds for a record on one host.
        kills: Steps after which the run ("run"), the controller ("controller") or both ("both") are killed.
    """

    directory: RunDirectory
    arrivals: Sequence[float]
    freshness: float = 600.0
    startup: Callable[[], float] = lambda: 20.0
    work: float = 0.1
    most: int = 4
    kills: dict[int, str] = field(default_factory=dict)
    now: float = 0.0
    steps: int = 0
    planned: tuple[int, ...] | None = None
    sink: dict[int, tuple[int, ...]] = field(default_factory=dict)
    committed: int = 0
    commits: list[tuple[float, int]] = field(default_factory=list)  # (time, records so far)
    leases: set[str] = field(default_factory=set)
    leased_seconds: float = 0.0
    starts: int = 0
    run: "Run | None" = None
    before: int | None = None
    say: Callable[[str], object] = lambda line: None

    def controller(self) -> Controller:
        self.before = None
        bounds = HostBounds(TYPE, 1, self.most)
        return Controller(
            self.directory, self.freshness, bounds, self.launch, clock=lambda: self.now, watch=lambda spec: self,
            remains=self, say=self.say,
        )  # fmt: skip

    def step(self, controller: bool = True) -> None:
        """Count a step; raise Killed, or kill the run, if the schedule says so."""
        self.steps += 1
        who = self.kills.pop(self.steps, "")
        if who in ("run", "both") and self.run is not None:
            self.run.status = -9
        if who in ("controller", "both"):
            raise Killed

    def launch(self, order: WakeOrder) -> "Run":
        self.step()
        self.run = Run(self, order)
        self.starts += 1
        self.step()
        return self.run

    # -- the watched source --------------------------------------------------------------------------------------------

    @property
    def arrived(self) -> int:
        return sum(at <= self.now for at in self.arrivals)

    def look(self) -> Look:
        arrived, before = self.arrived, self.before
        self.before = arrived
        waiting = arrived - self.committed
        oldest = self.arrivals[self.committed] if waiting else math.inf
        return Look(waiting, oldest, 0.0 if before is None else arrived - before)

    def begin_run(self) -> None: ...

    def end_run(self) -> str:
        return ""

    def close(self) -> None: ...

    # -- what earlier runs left ----------------------------------------------------------------------------------------

    def is_driven(self) -> bool:
        return self.run is not None and self.run.poll() is None

    def has_leases(self) -> bool:
        return bool(self.leases)

    # -- the world -----------------------------------------------------------------------------------------------------

    def play(self, until: float) -> None:
        """Let time pass with a controller that is started again whenever it was killed."""
        controller = self.controller()
        while self.now < until:
            try:
                if self.run is not None:
                    self.run.advance()
                controller.step()
            except Killed:
                controller = self.controller()
            self.now += controller.pause
            self.leased_seconds += len(self.leases) * controller.pause


class Run:
    """A bounded run, played up to the present time by `advance`. status: None while it lives."""

    def __init__(self, job: Job, order: WakeOrder) -> None:
        self.job, self.order, self.status = job, order, None
        self._steps = self._work()
        self._due = job.now
        self._reporter = RunReporter(job.directory, order, lambda: job.now)

    def poll(self) -> int | None:
        return self.status

    def stop(self) -> None:
        self.status = 0

    def advance(self) -> None:
        while self.status is None and self._due <= self.job.now:
            self._due += next(self._steps)
            self.job.step()

    def _work(self) -> Iterator[float]:
        job = self.job
        job.leases |= {f"h{n}" for n in range(self.order.hosts)}  # those of a killed run are taken over
        yield job.startup()
        snapshot = job.arrived
        self._reporter.started()
        yield 0.0
        read = 0
        while job.planned is not None or job.committed < snapshot:
            if job.planned is None:
                job.planned = tuple(range(job.committed, snapshot))
            yield len(job.planned) * job.work / self.order.hosts
            job.sink[job.committed] = job.planned
            yield 0.0
            read += len(job.planned)
            job.committed, job.planned = job.committed + len(job.planned), None
            job.commits.append((job.now, job.committed))
            yield 0.0
        self._reporter.caught_up(job.now, {SPEC.name: read}, {}, [SPEC])
        yield 2.0
        job.leases.clear()
        yield 0.0
        self.status = 0
        yield math.inf
