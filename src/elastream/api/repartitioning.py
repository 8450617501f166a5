"""Repartition of a live run's state, automatically or by `elastream repartition`."""

# A request of `elastream repartition`. What the run does meanwhile: spark/queries/repartitioning.py.
#
# | request | event | next | the command |
# | --- | --- | --- | --- |
# | none | another command waits | none | fails |
# | none | the state cannot change, by the checkpoint's files | none | fails |
# | none | else | filed | waits, with its lock |
# | filed | the command ends | withdrawn | - |
# | filed | the run ends | dead: no later driver reads it | fails |
# | filed | a round: arbitration, or the run, refuses | refused | fails with the reason |
# | filed | a round | tried, in the journal | waits |
# | withdrawn | a round | refused | - |
# | withdrawn | another command files one | superseded: no round sees it | - |
# | tried | all queries run with the new width | done | succeeds |
# | tried | it fails | failed, and undone | fails with the reason |
# | tried | the command ends while a checkpoint has the old width | failed, and undone | - |
# | tried | the command ends later | done | - |
# | tried | the run is killed | interrupted | fails |
# | interrupted | a round of the next driver | refused, or dropped where it is in force | - |

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from functools import partial
from pathlib import Path

from pyspark import __version__ as SPARK
from pyspark.sql import SparkSession

from elastream.api.folder import PARTITIONS
from elastream.checkpoints.repartition import (
    MOST_PARTITIONS,
    Repartitioned,
    check_release,
    predicted,
    predicted_together,
    repartition,
    states_to_change,
    undo,
)
from elastream.checkpoints.state import checkpoint_state, checkpoints_of, local_root
from elastream.control.width import WidthAdvice
from elastream.core.action import Action, Outcome, Repartition, Status
from elastream.core.alarm import Alarms
from elastream.core.cron import matches
from elastream.core.decision import Proposal
from elastream.core.fitting import state_partitions_of
from elastream.core.observation import Observation
from elastream.core.width import WITHDRAWN, PauseLimit, RepartitionRule, TooLong
from elastream.core.wording import counted
from elastream.errors import ElastreamError, EnvironmentProblem, InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.form import read_decision
from elastream.recording.manifest import process_lock, read_manifest, write_manifest
from elastream.recording.paths import is_address
from elastream.recording.recorder import Recording, check_live
from elastream.recording.request_log import Request, RequestLog
from elastream.recording.run_state import driver_of, holder_of
from elastream.recording.tail import Tail
from elastream.settings import RunSettings
from elastream.units import format_duration

# Proposer in decision records.
BY = "repartition"
# Multiple of the state partitions that one repartition gives.
MORE = 2
# Seconds between two proposals: what is refused or fails now does so in the next minute, too.
RETRY_S = 3600.0


def check_repartitions(settings: RunSettings, *, keyed: bool, sleeps: bool) -> None:
    """Raise ElastreamError if a run with the setting `repartition` can never repartition its state."""
    where = ("repartition",)
    if not keyed:
        raise InputError("repartition: the dataflow keeps no state, as it has no keyed operator", where)
    if settings.state_store != "disk":
        raise InputError(
            "repartition needs state_store='disk', because Spark repartitions the state of RocksDB only", where
        )
    if settings.latency is None and not sleeps:
        raise InputError("repartition needs target_latency, which defines late records", where)
    if sleeps:
        raise InputError("repartition is for continuous runs, not for freshness: use elastream repartition between", where)
    if is_address(str(settings.runs)):
        raise InputError(f"repartition needs checkpoints on this machine, and runs is {settings.runs}", where)
    check_release(SPARK)


@dataclass(frozen=True, slots=True)
class CheckpointChange:
    checkpoint: Path
    done: Repartitioned

    @property
    def rows(self) -> int:
        return self.done.rows

    def undo(self) -> None:
        undo(self.checkpoint, self.done)

    def keep(self) -> None:
        shutil.rmtree(self.done.before, ignore_errors=True)


@dataclass(eq=False)
class RunCheckpoints:
    directory: RunDirectory
    rule: RepartitionRule | None = None
    zone: tzinfo | None = None
    now: Callable[[], float] = time.time
    given_up: str = ""

    @classmethod
    def of(cls, directory: RunDirectory, settings: RunSettings) -> "RunCheckpoints":
        assert settings.repartition is None or isinstance(settings.repartition, RepartitionRule)
        return cls(directory, settings.repartition, settings.scaling.zone)

    @property
    def longest_pause(self) -> float:
        return math.inf if self.rule is None else self.rule.longest_pause

    def is_allowed(self) -> bool:
        return self.rule is not None and matches(self.rule.when, self.now(), self.zone)

    def is_withdrawn(self, action: Repartition) -> bool:
        """Return True once the command that requested `action` has ended."""
        if not action.requested or holder_of(self.directory.repartition_lock) is None:
            return action.requested > 0
        requests = (each for each in RequestLog(self.directory.requests).newer() if each.action == "repartition")
        return max((each.time for each in requests), default=0.0) > action.requested  # the lock is that of a later one

    def limit(self, action: Repartition) -> PauseLimit:
        return PauseLimit(self.longest_pause, partial(self.is_withdrawn, action), requested=action.requested > 0)

    def refusal(self, action: Repartition) -> str:
        if refusal := self._not_requested(action) if action.requested else self._not_due():
            return refusal
        try:
            check_release(SPARK)
            folders = checkpoints_of(local_root(self.directory.root))
            if first := next((each for each in map(checkpoint_state, folders.values()) if each.committed < 0), None):
                return f"the first batch of {first.folder.name!r} is not committed"
            states = states_to_change(folders, action.partitions, skip_open_batch=True, stopped=True)
        except (ElastreamError, OSError) as error:
            return str(error)
        pause = predicted_together(states.values(), action.partitions)
        if pause.longest > self.longest_pause:
            return f"the pause would be {pause.text}, above the limit of {format_duration(self.longest_pause)}"
        return ""

    def _not_requested(self, action: Repartition) -> str:
        if action.requested < self.directory.lock.stat().st_mtime:
            return "the run was resumed since the request"
        return WITHDRAWN if self.is_withdrawn(action) else ""

    def _not_due(self) -> str:
        if self.rule is None:
            return "the run has no setting `repartition`"
        if self.given_up:
            return self.given_up
        return "" if self.is_allowed() else f"'{self.rule.when}' does not match this minute"

    def change(self, spark: SparkSession, checkpoint: Path, partitions: int, limit: PauseLimit) -> CheckpointChange | None:
        state = checkpoint_state(checkpoint)
        if not state.operators or state.width == partitions:
            return None
        if (pause := predicted(state, partitions)).longest > limit.left:
            left = f"{limit.left:.0f} s of the pause are left"
            raise EnvironmentProblem(f"the repartition of {checkpoint.name!r} takes {pause.text}, and {left}")
        try:
            done = repartition(spark, checkpoint, partitions, lambda _: None, stopped=True, limit=limit)
        except TooLong as error:
            if not limit.requested:  # a pause in vain each night helps nobody
                self.given_up = str(error)
            raise
        return CheckpointChange(checkpoint, done)

    def changed(self, partitions: int) -> None:
        manifest = read_manifest(self.directory)
        write_manifest(self.directory, replace(manifest, identity={**manifest.identity, PARTITIONS: str(partitions)}))


class RepartitionExtension(WidthAdvice):
    def __init__(self, checkpoints: RunCheckpoints, partitions_a_host: int | None = None) -> None:
        assert checkpoints.rule is not None
        super().__init__(f"they are repartitioned when '{checkpoints.rule.when}' matches")
        self._checkpoints, self._partitions_a_host = checkpoints, partitions_a_host
        self._proposed = -math.inf

    def urgent(self, observation: Observation) -> bool:
        return bool(self._due(observation))

    def proposals(self, observation: Observation, planned: Sequence[Action], alarms: Alarms) -> Sequence[Proposal]:
        partitions = self._due(observation)
        if not partitions:
            return ()
        self._proposed = observation.time
        return (Proposal(Repartition(partitions, self.history.reason), BY),)

    def _due(self, observation: Observation) -> int:
        if not self.history.too_small or observation.time - self._proposed < RETRY_S or not self._checkpoints.is_allowed():
            return 0
        return more_partitions(observation, self._partitions_a_host)


def more_partitions(observation: Observation, partitions_a_host: int | None) -> int:
    """Return twice the state partitions, at most a new run's number; 0 if reached."""
    context = observation.context
    types, now = tuple(context.host_types.values()), min(context.partitions.values(), default=0)
    most = state_partitions_of(types, context.max_hosts, partitions_a_host) if types else MOST_PARTITIONS
    more = min(MORE * now, most, MOST_PARTITIONS)
    return more if more > now else 0


# Proposer in decision records, and in the journal.
COMMAND = "elastream repartition"
# Seconds between looks for the answer of a run.
LOOK_S = 0.2
MOST_ENTRIES = 1_000


def request_repartition(
    directory: RunDirectory, partitions: int, say: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> str:
    """Let the live run in `directory` repartition its state; return the outcome as a sentence.

    An interruption withdraws the request. A second interruption returns at once, without an outcome.

    Raises:
        ElastreamError: Nothing is repartitioned.
    """
    root = directory.root
    check_live(root, Recording.outline(root), "repartitions")
    if holder_of(directory.controller_lock) is not None:
        raise InputError(f"{root} runs only until it has caught up: repartition it while it sleeps")
    states = states_to_change(checkpoints_of(local_root(root)), partitions, skip_open_batch=True, stopped=True)
    pause, before = predicted_together(states.values(), partitions), max(each.width for each in states.values())
    answer = _Answer(directory, sleep)
    try:
        with process_lock(directory.repartition_lock, lambda other: f"process {other} repartitions {root} already"):
            answer.request = RequestLog(directory.requests).append(Request("repartition", COMMAND, partitions=partitions))
            say(f"{pause.sentence}, and begins after the running batch")
            outcome = answer.wait()
    except KeyboardInterrupt:
        if answer.request is not None:
            say("the request is withdrawn: the run keeps or restores its partitions")
            outcome = answer.wait()
            say(_conclusion(directory, outcome))
        raise
    if outcome.status is not Status.DONE:
        raise EnvironmentProblem(_conclusion(directory, outcome))
    width = f"{counted(partitions, 'state partition')} ({before} before)"
    return f"{root} has {width}: {outcome.reason} (predicted: {pause.text})"


def _conclusion(directory: RunDirectory, outcome: Outcome) -> str:
    verb = {Status.REFUSED: "is refused", Status.FAILED: "failed"}.get(outcome.status, "is done")
    return f"the repartition of {directory.root} {verb}: {outcome.reason}"


class _Answer:
    """The outcome of a request in the recording of a run."""

    def __init__(self, directory: RunDirectory, sleep: Callable[[float], None]) -> None:
        self._directory, self._sleep, self._tail = directory, sleep, Tail(directory.root)
        self._tail.skip_parts()
        self._driver = self._now_driving()
        self.request: Request | None = None

    def wait(self) -> Outcome:
        """Return the outcome. Raises EnvironmentProblem if the run ends without one."""
        while True:
            ended = self._now_driving() != self._driver
            if (outcome := self._read()) is not None:
                return outcome
            if ended and not self._tail.behind:
                raise EnvironmentProblem(f"{self._directory.root} ended before its answer: see 'elastream state'")
            if not self._tail.behind:
                self._sleep(LOOK_S)

    def _now_driving(self) -> tuple[int, int] | None:
        # A driver that is started again in a container has the same process id. Each writes its lock at its start.
        driver = driver_of(self._directory)
        return None if driver is None else (driver, self._directory.lock.stat().st_mtime_ns)

    def _read(self) -> Outcome | None:
        entries = self._tail.read(MOST_ENTRIES)
        for fields in [each for each in entries if each.pop("kind") == "decision"]:
            decision = read_decision(fields)
            refused = [Outcome(each.action, Status.REFUSED, each.refused) for each in decision.proposals if each.refused]
            for outcome in (*decision.outcomes, *refused):
                action = outcome.action
                if isinstance(action, Repartition) and self.request and action.requested == self.request.time:
                    return outcome
        return None
