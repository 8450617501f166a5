"""Record of a planning round: figures, proposals, refusals, outcomes and predictions."""

import math
import re
import traceback
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from elastream.core.action import Action, Outcome, Status, to_json
from elastream.core.metrics import Metric, Rows
from elastream.core.wording import gist
from elastream.units import format_duration

# Unknown metrics are shown after this many rounds in a row; one or two are normal after a change.
SHOWN_AFTER_ROUNDS = 3

# Unknown metrics are not shown in the first seconds of a run: its first micro-batch takes some of them.
START_GRACE_S = 30.0
# Names of predicted figures: the arrival rate that a plan is for, and the seconds until then.
EXPECTED_RATE, EXPECTED_IN = "expected_arrival_rate", "expected_in"
# Durations of unknown metrics are written in minutes from here on (seconds).
MINUTES_FROM_S = 120.0


@dataclass(frozen=True, slots=True)
class Proposal:
    """Action, its proposer, and the reason of its refusal (empty: granted)."""

    action: Action
    by: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Exception that the run survived."""

    source: str
    said: str
    traceback: str = ""

    @classmethod
    def of(cls, source: str, message: str, error: BaseException) -> "Fault":
        return cls(source, message, "".join(traceback.format_exception(error)))

    @property
    def place(self) -> str:
        places = re.findall(r'^  File "(.+)", line (\d+), in', self.traceback, re.MULTILINE)
        return f" ({Path(places[-1][0]).name}, line {places[-1][1]})" if places else ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Unknown metric that prevented a part of a policy's decision.

    Attributes:
        row: Name of the row. Empty: each row, or the application.
        consequence: Effect on the policy, such as "cannot size".
        seconds: Duration of the gap.
        rounds: Rounds in a row without it.
    """

    metric: Metric
    rows: Rows
    row: str = ""
    consequence: str = "cannot size"
    seconds: float = 0.0
    rounds: int = 0

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> "Unknown":
        return cls(**{**fields, "metric": Metric(fields["metric"]), "rows": Rows(fields["rows"])})

    @property
    def key(self) -> tuple[Metric, Rows, str, str]:
        return self.metric, self.rows, self.row, self.consequence

    @property
    def lasting(self) -> bool:
        """Return True if it has lasted long enough to be shown."""
        return self.rounds >= SHOWN_AFTER_ROUNDS

    def __str__(self) -> str:
        name = self.metric.value.replace("_", " ")
        if self.rows is Rows.APPLICATION:
            of = "the application"
        elif self.row:
            of = repr(self.row) if self.rows is Rows.OPERATOR else f"{self.rows} {self.row!r}"
        else:
            of = f"every {self.rows}"
        lasting = f"{self.seconds:.0f} s" if self.seconds < MINUTES_FROM_S else format_duration(self.seconds)
        return f"{self.consequence}: {name} of {of} unknown" + (f" for {lasting}" if self.seconds else "")


@dataclass(frozen=True, slots=True)
class Decision:
    """One planning round.

    Attributes:
        round: Number, from 1.
        time: Time of the observation (seconds of the run).
        seen: Figures behind the decision, by name; NaN where unknown.
        predicted: Figures that the policy expects at the next round.
        seconds: Duration of planning.
        note: Remarks: reasons for doing nothing, problems, the policy's remarks.
        guards: Version of the guards in force; 0 without guards.
        hosts: Recommended number of hosts; NaN if unknown.
        mode: "observe only", "paused" or empty.
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
    def lasting(self) -> tuple[Unknown, ...]:
        return tuple(each for each in self.unknown if each.lasting and self.time >= START_GRACE_S)

    @property
    def done(self) -> tuple[Outcome, ...]:
        """Return outcomes of actions in effect or in progress."""
        return tuple(outcome for outcome in self.outcomes if outcome.succeeded)

    @property
    def remarks(self) -> str:
        """Return the note and the unknown metrics, as text."""
        return "; ".join(filter(None, [self.note, *map(str, self.lasting)]))

    @property
    def repeats(self) -> tuple[Hashable, ...]:
        """Return keys of all remarks, equal in rounds that repeat them."""
        noted = (gist(each) for each in self.note.split("; ") if each)
        return (*noted, *(each.key for each in self.lasting))

    def with_actual(self, actual: Mapping[str, float]) -> "Decision":
        return replace(self, actual=dict(actual))

    def headline(self) -> str:
        """Return actions and reasons on one line, or the remarks."""
        parts = []
        for outcome in self.outcomes:
            text = outcome.action.describe() + (f" ({outcome.action.why})" if outcome.action.why else "")
            parts.append(text if outcome.succeeded else f"{text}: {outcome.status}, {outcome.reason}")
        return "; ".join(parts) or self.remarks

    def to_json(self) -> dict[str, Any]:
        """Return the record JSON-ready; NaN becomes null."""

        def clean(values: Mapping[str, float]) -> dict[str, float | None]:
            return {name: (None if value != value else value) for name, value in values.items()}

        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            **{name: clean(getattr(self, name)) for name in ("seen", "predicted", "actual")},
            "proposals": [{**to_json(p.action), "by": p.by, "refused": p.refused} for p in self.proposals],
            "outcomes": [
                {**to_json(o.action), "status": Status(o.status).value, "reason": o.reason} for o in self.outcomes
            ],
            "faults": [asdict(fault) for fault in self.faults],
            "unknown": [asdict(each) for each in self.unknown],
            "hosts": None if self.hosts != self.hosts else self.hosts,
        }


def longest_lacked(decisions: Iterable[Decision], before: Iterable[Unknown] = ()) -> tuple[Unknown, ...]:
    """Return each metric that was unknown in consecutive rounds, at its longest; `before`: earlier ones."""
    longest: dict[Hashable, Unknown] = {each.key: each for each in before}
    for each in (each for decision in decisions for each in decision.lasting):
        if each.key not in longest or longest[each.key].seconds < each.seconds:
            longest[each.key] = each
    return tuple(longest.values())


def often_said(decisions: Sequence[Decision], queries: Collection[str]) -> dict[str, float]:
    """Return the newest text of each remark about a query, with its share of the decisions. Figures in it may differ."""
    shares, texts = Counter[str](), dict[str, str]()
    for decision in decisions:
        about = {gist(each): each for each in decision.note.split("; ") if each.startswith(tuple(queries))}
        shares.update(about.keys())
        texts |= about
    return {texts[key]: number / len(decisions) for key, number in shares.most_common()}
