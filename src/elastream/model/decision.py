"""The record of one planning round: what was seen, proposed, refused, done, predicted - and later, what came of it."""

import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from elastream.model.action import Action, Outcome, Status, describe, to_json

__all__ = ["Decision", "Fault", "Proposal"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """An action, who proposed it, and what arbitration said; `refused` is the reason, empty where it was granted."""

    action: Action
    by: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that raised and that the run survived. source: what raised. said: one sentence."""

    source: str
    said: str
    traceback: str = ""

    @classmethod
    def of(cls, source: str, said: str, error: BaseException) -> "Fault":
        """The fault with the traceback of `error`."""
        return cls(source, said, "".join(traceback.format_exception(error)))


@dataclass(frozen=True, slots=True)
class Decision:
    """One planning round.

    seen: the few numbers that the decision rests on, by name; NaN where unknown. predicted, actual: the same kind of
    numbers, as expected for the next round and as they then were. seconds: what planning took. note: what else needs
    saying: why nothing was done, what went wrong, what the policy remarks. faults: what raised since the last round.
    """

    round: int
    time: float
    policy: str
    seen: Mapping[str, float] = field(default_factory=dict)
    proposals: tuple[Proposal, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    predicted: Mapping[str, float] = field(default_factory=dict)
    actual: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    note: str = ""
    faults: tuple[Fault, ...] = ()

    @property
    def done(self) -> tuple[Outcome, ...]:
        """Outcomes of actions that took effect or are under way."""
        return tuple(outcome for outcome in self.outcomes if outcome.succeeded)

    def with_actual(self, actual: Mapping[str, float]) -> "Decision":
        """The record with what really happened."""
        return replace(self, actual=dict(actual))

    def headline(self) -> str:
        """What was done and why, on one line; empty where nothing was."""
        parts = []
        for outcome in self.outcomes:
            text = describe(outcome.action) + (f" ({outcome.action.why})" if outcome.action.why else "")
            parts.append(text if outcome.succeeded else f"{text}: {outcome.status}, {outcome.reason}")
        return "; ".join(parts) or self.note

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; NaN becomes null."""

        def clean(values: Mapping[str, float]) -> dict[str, float | None]:
            return {name: (None if value != value else value) for name, value in values.items()}

        return {
            "round": self.round,
            "time": self.time,
            "policy": self.policy,
            "seen": clean(self.seen),
            "proposals": [{**to_json(p.action), "by": p.by, "refused": p.refused} for p in self.proposals],
            "outcomes": [
                {**to_json(o.action), "status": Status(o.status).value, "reason": o.reason} for o in self.outcomes
            ],
            "predicted": clean(self.predicted),
            "actual": clean(self.actual),
            "seconds": self.seconds,
            "note": self.note,
            "faults": [asdict(fault) for fault in self.faults],
        }
