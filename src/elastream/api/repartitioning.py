"""A run that repartitions its state by itself, by its setting `repartition`."""

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from pathlib import Path

from pyspark import __version__ as SPARK
from pyspark.sql import SparkSession

from elastream.api.folder import PARTITIONS
from elastream.checkpoints.repartition import (
    MOST_PARTITIONS,
    Repartitioned,
    TooLong,
    check_release,
    predicted,
    repartition,
    undo,
)
from elastream.checkpoints.state import checkpoint_state, checkpoints_of
from elastream.control.width import WidthAdvice
from elastream.core.action import Action, Repartition
from elastream.core.alarm import Alarms
from elastream.core.cron import matches
from elastream.core.decision import Proposal
from elastream.core.fitting import state_partitions_of
from elastream.core.observation import Observation
from elastream.core.width import RepartitionRule
from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import read_manifest, write_manifest
from elastream.recording.paths import is_address
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
        raise InputError("repartition needs target_latency, by which records are late", where)
    if sleeps:
        raise InputError("repartition is for runs that go on, not for freshness: use elastream repartition between", where)
    if is_address(str(settings.runs)):
        raise InputError(f"repartition needs checkpoints on this machine, and runs is {settings.runs}", where)
    check_release(SPARK)


@dataclass(frozen=True, slots=True)
class CheckpointChange:
    checkpoint: Path
    done: Repartitioned

    def undo(self) -> None:
        undo(self.checkpoint, self.done)

    def keep(self) -> None:
        shutil.rmtree(self.done.before, ignore_errors=True)


@dataclass(eq=False)
class RunCheckpoints:
    directory: RunDirectory
    rule: RepartitionRule
    zone: tzinfo | None = None
    now: Callable[[], float] = time.time
    given_up: str = ""

    @classmethod
    def of(cls, directory: RunDirectory, settings: RunSettings) -> "RunCheckpoints":
        assert isinstance(settings.repartition, RepartitionRule)
        return cls(directory, settings.repartition, settings.scaling.zone)

    @property
    def longest_pause(self) -> float:
        return self.rule.longest_pause

    def is_allowed(self) -> bool:
        return matches(self.rule.when, self.now(), self.zone)

    def refusal(self, action: Repartition) -> str:
        if self.given_up:
            return self.given_up
        if not self.is_allowed():
            return f"'{self.rule.when}' does not match this minute"
        width, states = action.partitions, [*map(checkpoint_state, checkpoints_of(self.directory.root).values())]
        if first := next((each for each in states if each.committed < 0), None):
            return f"the first batch of {first.folder.name!r} is not committed"
        pauses = [predicted(each, width) for each in states if each.operators and each.width != width]
        if sum(each.longest for each in pauses) > self.longest_pause:
            pause = " and ".join(each.text for each in pauses)
            return f"the pause would be {pause}, and may be {format_duration(self.longest_pause)}"
        return ""

    def change(self, spark: SparkSession, checkpoint: Path, partitions: int, seconds: float) -> CheckpointChange | None:
        state = checkpoint_state(checkpoint)
        if not state.operators or state.width == partitions:
            return None
        if (pause := predicted(state, partitions)).longest > seconds:
            left = f"{seconds:.0f} s of the pause are left"
            raise EnvironmentProblem(f"the repartition of {checkpoint.name!r} takes {pause.text}, and {left}")
        try:
            done = repartition(spark, checkpoint, partitions, lambda _: None, stopped=True, longest=seconds)
        except TooLong as error:
            self.given_up = str(error)  # a pause in vain each night helps nobody
            raise
        return CheckpointChange(checkpoint, done)

    def changed(self, partitions: int) -> None:
        manifest = read_manifest(self.directory)
        write_manifest(self.directory, replace(manifest, identity={**manifest.identity, PARTITIONS: str(partitions)}))


class RepartitionExtension(WidthAdvice):
    def __init__(self, checkpoints: RunCheckpoints, partitions_a_host: int | None = None) -> None:
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
    """Return twice the state partitions, at most as many as a new run would have; 0 if it has those."""
    context = observation.context
    types, now = tuple(context.host_types.values()), min(context.partitions.values(), default=0)
    most = state_partitions_of(types, context.max_hosts, partitions_a_host) if types else MOST_PARTITIONS
    more = min(MORE * now, most, MOST_PARTITIONS)
    return more if more > now else 0
