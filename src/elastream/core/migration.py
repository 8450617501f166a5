"""Life cycle of a task's migration to another host.

The old host runs the task until the new one has loaded its state (cf. N-Storm's fixed delay, section 3.3).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from elastream.core.hosts import LifecycleError
from elastream.core.task_id import TaskId


class MigrationState(StrEnum):
    # planned; the task runs on the old host and Spark is not informed
    WANTED = "wanted"
    # the new executor loads the state; the old host runs the task
    WARMING = "warming"
    # state of a recent batch is loaded; the switch waits for a batch's end
    WARM = "warm"
    # Spark knows the new location; no batch planned since has ended
    FLIPPED = "flipped"
    # a batch planned after the flip ran the task on the new host
    LANDED = "landed"
    # abandoned: the task stays, or a newer migration replaces this one
    DROPPED = "dropped"


# State -> {next state: condition of the transition}.
TRANSITIONS: Mapping[MigrationState, Mapping[MigrationState, str]] = {
    MigrationState.WANTED: {
        MigrationState.WARMING: "it was selected: few at a time, the greatest benefit first",
        MigrationState.FLIPPED: "a batch ended, and there is nothing to warm or warming failed",
        MigrationState.LANDED: "Spark ran it there without a report",
        MigrationState.DROPPED: "its target is no longer usable, or a newer plan names another host",
    },
    MigrationState.WARMING: {
        MigrationState.WARM: "the new executor has loaded the state",
        MigrationState.WANTED: "loading failed or was not observed, or the target has a new executor",
        MigrationState.LANDED: "Spark ran it there without a report",
        MigrationState.DROPPED: "its target is no longer usable, or a newer plan names another host",
    },
    MigrationState.WARM: {
        MigrationState.FLIPPED: "reported to Spark: as soon as the state is loaded, or when a batch ended",
        MigrationState.WANTED: "the target has a new executor, which has loaded nothing",
        MigrationState.LANDED: "Spark ran it there without a report",
        MigrationState.DROPPED: "its target is no longer usable, or a newer plan names another host",
    },
    MigrationState.FLIPPED: {
        MigrationState.LANDED: "a batch planned after the flip ran it there",
        MigrationState.WANTED: "a batch ran it elsewhere: the running batch's report overwrote ours",
        MigrationState.DROPPED: "its target is no longer usable, a newer plan names another host, or it failed too often",
    },
    MigrationState.LANDED: {},
    MigrationState.DROPPED: {},
}


@dataclass(frozen=True, slots=True)
class Migration:
    task: TaskId
    host: str
    since: float  # request (seconds on the caller's clock)
    why: str = ""
    megabytes: float = math.nan  # of state that it loads, predicted; NaN if unknown
    state: MigrationState = MigrationState.WANTED
    flips: int = 0  # number of reports of the new location to Spark
    history: tuple[tuple[float, MigrationState], ...] = ()  # pairs of time and state, oldest first

    def __post_init__(self) -> None:
        if not self.history:
            object.__setattr__(self, "history", ((self.since, self.state),))

    @property
    def under_way(self) -> bool:
        return bool(TRANSITIONS[self.state])

    def to(self, state: MigrationState, at: float) -> "Migration":
        """Return the migration in `state` from time `at`, or raise LifecycleError."""
        if state not in TRANSITIONS[self.state]:
            past = ", ".join(f"{s} at {t:.1f} s" for t, s in self.history)
            raise LifecycleError(
                f"the migration of {self.task} to {self.host!r} cannot go from {self.state} to {state} at {at:.1f} s "
                f"(it was {past})"
            )
        flips = self.flips + (state is MigrationState.FLIPPED)
        return replace(self, state=state, flips=flips, history=(*self.history, (at, state)))
