"""The controller of a job that sleeps between bounded runs. It has no Spark session; `wakes` has its states."""

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Protocol

from elastream.core.wording import counted, duration_text
from elastream.errors import ElastreamError, EnvironmentProblem, in_one_line
from elastream.freshness.planner import (
    MEMORY_RUNS,
    Arrivals,
    BoundedRun,
    HostBounds,
    RunModel,
    Waiting,
    WakePlan,
    plan_wake,
)
from elastream.freshness.wakes import Progress, State, WakeOrder, entries_of, progress_of, runs_of, write_state
from elastream.freshness.watching import SourceWatch, Watched, watch_of
from elastream.recording.directory import RunDirectory
from elastream.recording.lease_log import LeaseLog
from elastream.recording.run_state import holder_of

log = logging.getLogger(__name__)

# Looks in a freshness, and bounds of the time between two of them (seconds).
LOOKS, SHORTEST_LOOK_S, LONGEST_LOOK_S = 60, 0.5, 10.0
# Start-up of a Spark session without a measurement (seconds).
SESSION_START_S = 20.0
# First wait after a second failure in a row (seconds). It doubles up to half a freshness, after MANY_FAILURES up to two.
RETRY_S, MANY_FAILURES = 5.0, 5


class RunProcess(Protocol):
    """Process of a bounded run."""

    def poll(self) -> int | None:
        """Return its exit status, the negated signal that killed it, or None while it lives."""
        ...

    def stop(self) -> None:
        """Ask it to end in order."""
        ...


class Controller:
    """Starts bounded runs of a job in `directory` so that records are committed within `freshness` seconds.

    Args:
        launch: Starts the process of a run. It must end by itself, also without the controller.
        say: Receives a line for people at each change.
        clock: Epoch seconds.
        remains: What earlier runs left.
    """

    def __init__(
        self,
        directory: RunDirectory,
        freshness: float,
        bounds: HostBounds,
        launch: Callable[[WakeOrder], RunProcess],
        *,
        say: Callable[[str], object] = log.info,
        clock: Callable[[], float] = time.time,
        watch: Callable[..., SourceWatch] = watch_of,
        remains: "Leftovers | None" = None,
    ) -> None:
        self._directory, self._freshness, self._bounds, self._launch = directory, freshness, bounds, launch
        self._say, self._clock, self._make_watch = say, clock, watch
        self._remains = remains or Leftovers(directory)
        self.pause = min(LONGEST_LOOK_S, max(SHORTEST_LOOK_S, freshness / LOOKS))
        entries = entries_of(directory)
        self._runs: deque[BoundedRun] = deque(runs_of(entries), MEMORY_RUNS)
        self._arrivals = Arrivals(freshness)
        for before, run in pairwise(self._runs):
            self._spread(run.records, before.snapshot, run.snapshot)
        self._progress = progress_of(entries)
        self._each: Mapping[str, float] = next((entry["each"] for entry in reversed(entries) if "each" in entry), {})
        self._watched: Watched | None = None
        self._process: RunProcess | None = None
        self._oldest = math.inf
        self._failures, self._retry_at, self._due = 0, -math.inf, math.inf
        self._remark, self._recovers = "", False
        self._orphan = True  # True until the last run of an earlier controller is known to have ended
        self._stop_reason, self._stop_sent = "", False
        self._last_line, self._look_at = "", -math.inf
        self._looked_at = clock()  # the last look at the sources, or the last start
        self.plan = WakePlan(-math.inf)
        self.state = self._progress.state

    def stop(self, reason: str = "stopped on request") -> None:
        """End in order: at once if asleep, else with the present run."""
        self._stop_reason = self._stop_reason or reason

    @property
    def done(self) -> bool:
        """Return True once nothing is left after `stop`."""
        return self.state is State.ENDED and bool(self._stop_reason)

    @property
    def is_awake(self) -> bool:
        """Return True while a run is under way."""
        return self._process is not None

    def describe(self) -> str:
        """Return the service level in words."""
        hosts = self._bounds.named(self._bounds.most, " on up to")
        return f"{duration_text(self._freshness)} of their arrival, by bounded runs{hosts}"

    def step(self) -> None:
        """Follow the run, or plan and start the next one.

        Raises:
            ElastreamError: The first run of the job failed by itself, or the folder cannot be written.
        """
        if self._directory.stop_requested:
            self.stop("elastream stop")
        waiting = self._look() if self._clock() >= self._look_at else None
        if self._process is not None:
            self._follow(self._process)
        elif self._remains.is_driven():
            self._report("a run that an earlier controller started is still under way")
        elif self._stop_reason:
            self._end()
        else:
            self._plan(waiting)

    def _end(self) -> None:
        self._directory.stop_request.unlink(missing_ok=True)
        self._enter(State.ENDED, reason=self._stop_reason, **_usage())
        self._say(f"ended: {self._stop_reason}")

    def _look(self) -> Waiting | None:
        """Return what waits and count arrivals; None if sources are unknown or cannot be read."""
        self._look_at = self._clock() + self.pause if self.is_awake else -math.inf
        if (watched := self._sources()) is None:
            return None
        try:
            waiting, arrived = watched.look()
        except OSError as error:
            self._report(f"the sources cannot be looked at: {in_one_line(error)}")
            return None
        self._arrivals.add(self._clock(), arrived)
        self._looked_at = self._clock()
        return waiting

    def _sources(self) -> Watched | None:
        """Return the sources that the first run reports; None if they cannot be watched now."""
        if self._watched is None and self._progress.sources:
            try:
                self._watched = Watched(self._progress.sources, self._make_watch)
            except (OSError, EnvironmentProblem) as error:
                self._report(f"the sources cannot be watched: {in_one_line(error)}")
                return None
            self._watched.restore(self._each)
        return self._watched

    def _plan(self, waiting: Waiting | None) -> None:
        now = self._clock()
        if self._orphan:
            self._take_over()
        if self.state not in (State.ASLEEP, State.ENDED):
            hosts = max(self._bounds.least, self._progress.hosts)
            why = "first run" if self.state is None else f"the run before did not end: it was {self.state}"
            self.plan = WakePlan(max(now, self._retry_at), min(hosts, self._bounds.most), why)
        elif waiting is not None:
            model = RunModel.of(self._runs, self._bounds.type.start + SESSION_START_S)
            self.plan = plan_wake(now, waiting, self._freshness, model, self._arrivals, self._bounds, margin=2 * self.pause)
        elif self._watched is None and not self._progress.sources:
            self.plan = WakePlan(now, self._bounds.least, "the sources are unknown until a run has read them")
        else:  # its records may wait since the last look
            self.plan = WakePlan(
                self._looked_at + self._freshness / 2, self._bounds.least, "the sources cannot be looked at"
            )
        if self.plan.start <= now + self.pause:
            self._start(waiting)

    def _take_over(self) -> None:
        self._progress, self._orphan = progress_of(entries_of(self._directory)), False
        self.state = self._progress.state
        if self._remains.has_leases():
            self.state = None if self.state is None else State.FAILED
        elif self.state is State.RELEASING:
            self._enter(State.ASLEEP)

    def _start(self, waiting: Waiting | None) -> None:
        number, plan = self._progress.run + 1, self.plan
        if self._failures == 0:
            self._oldest = -math.inf if waiting is None else waiting.oldest
            now, due = self._clock(), self._oldest + self._freshness
            self._due = due if now < due < math.inf else now + self._freshness
        behind = "" if waiting is None else f" for {counted(round(waiting.records), 'record')}"
        self._say(f"run {number} starts{self._bounds.named(plan.hosts, ' with')}{behind}: {plan.why}")
        if plan.remark and plan.remark != self._remark:
            self._say(plan.remark)
        self._remark = plan.remark
        about = {} if waiting is None else {"waiting": waiting.records}
        self._looked_at = self._clock()
        if self._watched is not None:
            self._watched.begin_run()
        self._recovers = self.state not in (None, State.ASLEEP, State.ENDED)
        self._progress = Progress(run=number, hosts=plan.hosts, sources=self._progress.sources)
        self._enter(State.LEASING, hosts=plan.hosts, why=plan.why, remark=plan.remark, **about)
        try:
            self._process = self._launch(WakeOrder(number, plan.hosts, self._freshness))
        except OSError as error:
            self._failed(f"its process cannot be started: {error.strerror or error}")
        self._stop_sent, self._last_line = False, ""

    def _follow(self, process: RunProcess) -> None:
        status = process.poll()
        if status is None:
            if self._clock() > self._due:
                self._due = math.inf
                self._say(f"run {self._progress.run} has not ended, and its deadline has passed")
            if self._stop_reason and not self._stop_sent:
                process.stop()
                self._stop_sent = True
            return
        self._process = None
        self._progress = progress_of(entries_of(self._directory))
        if status == 0 and self._progress.state is State.RELEASING:
            self._record_run(self._progress)
        elif self._stop_reason:
            self._end()
        elif status > 0 and not self._runs:
            self._enter(State.FAILED, reason=f"it ended with status {status}")
            raise FirstRunFailed(status)
        else:
            self._failed(f"killed by signal {-status}" if status < 0 else f"it ended with status {status}")

    def _record_run(self, progress: Progress) -> None:
        now, self._failures = self._clock(), 0
        records = math.fsum(progress.rows.values())
        run = BoundedRun(progress.start, progress.snapshot, progress.committed, now, max(1, progress.hosts), records)
        about: dict[str, Any] = {}
        passed_over = ""
        if not self._recovers:  # taking over a killed run's state takes time that other starts do not need
            self._runs.append(run)
            about["ran"] = asdict(run)
        if self._watched is not None and self._watched.specs != progress.sources:
            self._watched.close()
            self._watched = None
        if (watched := self._sources()) is not None:
            watched.record_run(progress.rows, progress.amounts)
            self._each = watched.records_per_unit
            passed_over = "" if self._recovers else watched.end_run()
        age = run.committed - self._oldest
        about["each"] = dict(self._each)
        if records and math.isfinite(age):
            about["age"] = age
        self._enter(State.ASLEEP, **about, **_usage())
        hosts = f"it took{self._bounds.named(run.hosts)} {duration_text(now - run.start)}"
        late = f", the oldest {age:.0f} s after its arrival" if "age" in about else ""
        self._say(f"run {progress.run} committed {counted(round(records), 'record')}{late}; {hosts}; asleep")
        if passed_over:
            why = "options such as maxFileAge, or an open transaction, keep them back"
            self._say(f"run {progress.run} passed over {passed_over}: no run starts for these until they change; {why}")

    def _failed(self, reason: str) -> None:
        most = self._freshness * (2.0 if self._failures >= MANY_FAILURES - 1 else 0.5)
        wait = min(most, RETRY_S * 2.0 ** min(self._failures - 1, 32)) if self._failures else 0.0
        self._failures += 1
        self._retry_at = self._clock() + wait
        self._enter(State.FAILED, reason=reason)
        after = f"in {duration_text(wait)}" if wait else "now"
        self._say(f"run {self._progress.run} failed: {reason}; the next starts {after}")
        if self._failures == MANY_FAILURES:
            upto = duration_text(2 * self._freshness)
            self._say(f"{MANY_FAILURES} runs in a row failed: mend the job; pauses now grow up to {upto}")

    def _spread(self, records: float, since: float, until: float) -> None:
        steps = max(1, math.ceil((until - since) / self._arrivals.bin))
        for step in range(1, steps + 1):
            self._arrivals.add(since + (until - since) * step / steps, records / steps)

    def _enter(self, state: State, **about: Any) -> None:
        write_state(self._directory, state, self._progress.run, self._clock(), **about)
        self.state = state

    def _report(self, sentence: str) -> None:
        if sentence != self._last_line:
            self._last_line = sentence
            self._say(sentence)

    def close(self) -> None:
        """Close the connections to sources."""
        if self._watched is not None:
            self._watched.close()


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Process and leases that an earlier controller left in a folder."""

    directory: RunDirectory

    def is_driven(self) -> bool:
        """Return True while a process drives a run."""
        return holder_of(self.directory.lock) is not None

    def has_leases(self) -> bool:
        """Return True if ended runs left leases."""
        with closing(LeaseLog(self.directory.leases)) as leases:
            return any(lease.active for lease in leases.earlier.values())


class FirstRunFailed(ElastreamError):
    """The first run of a job failed by itself, and has said why."""

    def __init__(self, status: int) -> None:
        super().__init__("the first run of the job failed, for the reason above")
        self.exit_status = status


def _usage() -> dict[str, float]:
    """Return the controller's CPU time (seconds) and memory (MB)."""
    pages = 0
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except OSError:
        pass
    return {
        "controller_cpu": round(time.process_time(), 2),
        "controller_mb": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6),
    }
