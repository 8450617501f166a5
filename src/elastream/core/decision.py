"""The record of one planning round: what was seen, proposed, refused, done, predicted - and later, what came of it."""

import math
import re
import traceback
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from elastream.core.action import Action, Outcome, Status, to_json
from elastream.core.metrics import Metric, Rows
from elastream.core.wording import gist
from elastream.units import format_duration

STANDING = 3
"""Rounds in a row after which an unknown metric is shown to people: one or two rounds are normal after a change."""

STARTING = 30.0
"""Seconds of a run in which none is shown: its first micro-batch, of which all is to be learned, takes some of them."""
MINUTES = 120.0
"""Seconds from which on it is written in minutes for how long a metric has been unknown."""


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

    @property
    def place(self) -> str:
        """Where it was raised, `" (mine.py, line 5)"`; empty where that is not known."""
        places = re.findall(r'^  File "(.+)", line (\d+), in', self.traceback, re.MULTILINE)
        return f" ({Path(places[-1][0]).name}, line {places[-1][1]})" if places else ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A metric that a policy needs, unknown in the observation that it planned for, so that a part of it did nothing.

    rows, row: what kind of thing it is a metric of, and its name; empty: of each of them, or of the application.
    consequence: what the policy could not do. seconds, rounds: for how long, and in how many rounds in a row, as the loop
    counts them.
    """

    metric: Metric
    rows: Rows
    row: str = ""
    consequence: str = "cannot size"
    seconds: float = 0.0
    rounds: int = 0

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> "Unknown":
        """As it was written."""
        return cls(**{**fields, "metric": Metric(fields["metric"]), "rows": Rows(fields["rows"])})

    @property
    def key(self) -> tuple[Metric, Rows, str, str]:
        """What is unknown and what follows, without for how long."""
        return self.metric, self.rows, self.row, self.consequence

    @property
    def standing(self) -> bool:
        """Whether it has been lacking for long enough that people are shown it."""
        return self.rounds >= STANDING

    def __str__(self) -> str:
        name = self.metric.value.replace("_", " ")
        if self.rows is Rows.APPLICATION:
            of = "the application"
        elif self.row:
            of = repr(self.row) if self.rows is Rows.OPERATOR else f"{self.rows} {self.row!r}"
        else:
            of = f"every {self.rows}"
        lasting = f"{self.seconds:.0f} s" if self.seconds < MINUTES else format_duration(self.seconds)
        return f"{self.consequence}: {name} of {of} unknown" + (f" for {lasting}" if self.seconds else "")


@dataclass(frozen=True, slots=True)
class Decision:
    """One planning round.

    seen: the few numbers that the decision rests on, by name; NaN where unknown. predicted, actual: the same kind of
    numbers, as expected for the next round and as they then were. seconds: what planning took. note: what else needs
    saying: why nothing was done, what went wrong, what the policy remarks. faults: what raised since the last round.
    unknown: metrics that the policy lacked, each with for how long. guards: version of the guards in force, 0 without.
    hosts: how many the policy wanted, NaN where that is unknown. mode: "observe only" or "paused", else
    empty.
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
    unknown: tuple[Unknown, ...] = ()
    guards: int = 0
    hosts: float = math.nan
    mode: str = ""

    @property
    def standing(self) -> tuple[Unknown, ...]:
        """Metrics that the policy has lacked for so many rounds that people are shown it, once the run has begun."""
        return tuple(each for each in self.unknown if each.standing and self.time >= STARTING)

    @property
    def done(self) -> tuple[Outcome, ...]:
        """Outcomes of actions that took effect or are under way."""
        return tuple(outcome for outcome in self.outcomes if outcome.succeeded)

    @property
    def said(self) -> str:
        """The note, and which metrics the policy has lacked for rounds."""
        return "; ".join(filter(None, [self.note, *map(str, self.standing)]))

    @property
    def repeats(self) -> tuple[Hashable, ...]:
        """What is said, one by one, without figures and for how long a metric has been unknown: alike in rounds that say it
        again."""
        noted = (gist(each) for each in self.note.split("; ") if each)
        return (*noted, *(each.key for each in self.standing))

    def with_actual(self, actual: Mapping[str, float]) -> "Decision":
        """The record with what really happened."""
        return replace(self, actual=dict(actual))

    def headline(self) -> str:
        """What was done and why, on one line; empty where nothing was."""
        parts = []
        for outcome in self.outcomes:
            text = outcome.action.describe() + (f" ({outcome.action.why})" if outcome.action.why else "")
            parts.append(text if outcome.succeeded else f"{text}: {outcome.status}, {outcome.reason}")
        return "; ".join(parts) or self.said

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
            "unknown": [asdict(each) for each in self.unknown],
            "guards": self.guards,
            "hosts": None if self.hosts != self.hosts else self.hosts,
            "mode": self.mode,
        }


def longest_lacked(decisions: Iterable[Decision], before: Iterable[Unknown] = ()) -> tuple[Unknown, ...]:
    """Metrics that a policy lacked for rounds in a row, each with the longest time for which it did; `before`: others."""
    longest: dict[Hashable, Unknown] = {each.key: each for each in before}
    for each in (each for decision in decisions for each in decision.standing):
        if each.key not in longest or longest[each.key].seconds < each.seconds:
            longest[each.key] = each
    return tuple(longest.values())
