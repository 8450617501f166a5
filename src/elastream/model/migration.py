"""The life of a task's migration, from the moment a plan wants it elsewhere until it runs there.

The old host keeps the task until the new one is warm; only then does the plan flip (N-Storm's lazy task killing, section
3.3, turned round: there the old task outlives the new one's start by a fixed delay, here the flip waits for the event).
The states are one table, `TRANSITIONS`; nothing sets a state except `Migration.to`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from elastream.model.action import TaskId

__all__ = ["TRANSITIONS", "Migration", "MigrationError", "MigrationState"]


class MigrationState(StrEnum):
    """Where a migration is in its life."""

    WANTED = "wanted"
    """A plan names another host; the old one works on and nothing has been told."""
    WARMING = "warming"
    """The new host's executor loads the task's state; the old one works on."""
    WARM = "warm"
    """The new executor has the state of a recent batch; the flip waits for the end of a batch."""
    FLIPPED = "flipped"
    """The engine was told between two batches; no batch that was planned since has ended."""
    LANDED = "landed"
    """A batch planned after the flip ran the task on the new host."""
    DROPPED = "dropped"
    """Given up; the task stays where it is, or a newer migration takes it."""


TRANSITIONS: Mapping[MigrationState, Mapping[MigrationState, str]] = {
    MigrationState.WANTED: {
        MigrationState.WARMING: "its turn came: few at a time, the greatest benefit first",
        MigrationState.FLIPPED: "a batch ended, and there is nothing to warm or it could not be warmed",
        MigrationState.LANDED: "the engine ran it there by itself",
        MigrationState.DROPPED: "its target is no longer usable, or a newer plan names another host",
    },
    MigrationState.WARMING: {
        MigrationState.WARM: "the new executor has loaded the state",
        MigrationState.WANTED: "loading failed or was not seen, or the target has another executor by now",
        MigrationState.LANDED: "the engine ran it there by itself",
        MigrationState.DROPPED: "its target is no longer usable, or a newer plan names another host",
    },
    MigrationState.WARM: {
        MigrationState.FLIPPED: "the engine was told: as soon as the state is loaded, or when a batch ended",
        MigrationState.WANTED: "the target has another executor by now, which has loaded nothing",
        MigrationState.LANDED: "the engine ran it there by itself",
        MigrationState.DROPPED: "its target is no longer usable, or a newer plan names another host",
    },
    MigrationState.FLIPPED: {
        MigrationState.LANDED: "a batch planned after the flip ran it there",
        MigrationState.WANTED: "a batch ran it elsewhere: a report of the batch under way came after ours",
        MigrationState.DROPPED: "its target is no longer usable, a newer plan names another host, or it was told too often",
    },
    MigrationState.LANDED: {},
    MigrationState.DROPPED: {},
}
"""From each state the states that follow it, and when."""


class MigrationError(RuntimeError):
    """A migration was to go where the table has no edge; carries the story of how it came to be there."""


@dataclass(frozen=True, slots=True)
class Migration:
    """A task on its way to `host`, since `since` (seconds on the caller's clock).

    why: who wants it there. benefit: what orders migrations, any unit, more is sooner. flips: times that the engine was
    told. history: (time, state), oldest first.
    """

    task: TaskId
    host: str
    since: float
    why: str = ""
    benefit: float = 0.0
    state: MigrationState = MigrationState.WANTED
    flips: int = 0
    history: tuple[tuple[float, MigrationState], ...] = ()

    def __post_init__(self) -> None:
        if not self.history:
            object.__setattr__(self, "history", ((self.since, self.state),))

    @property
    def under_way(self) -> bool:
        """Whether it has neither landed nor been dropped."""
        return bool(TRANSITIONS[self.state])

    @property
    def landed_at(self) -> float | None:
        """When it landed, or None."""
        return next((at for at, state in self.history if state is MigrationState.LANDED), None)

    def to(self, state: MigrationState, at: float) -> "Migration":
        """This migration after a step to `state` at time `at`; raises MigrationError where the table has no such edge."""
        if state not in TRANSITIONS[self.state]:
            story = ", ".join(f"{s} at {t:.1f} s" for t, s in self.history)
            raise MigrationError(
                f"the migration of {self.task} to {self.host!r} cannot go from {self.state} to {state} at {at:.1f} s "
                f"(it was {story})"
            )
        flips = self.flips + (state is MigrationState.FLIPPED)
        return replace(self, state=state, flips=flips, history=(*self.history, (at, state)))
