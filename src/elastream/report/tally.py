"""Totals of a run so far, of bounded size.

Latencies are grouped by quantiles of relative width STEP. All other figures are exact.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from elastream.core.action import MoveTask
from elastream.core.decision import Unknown, longest_lacked
from elastream.core.frames import Floats
from elastream.core.latency import Basis, share_within, weakest
from elastream.core.metrics import Metric
from elastream.core.observation import MicroBatch
from elastream.core.wording import UNKNOWN, percent
from elastream.policies.common.provision import Work
from elastream.policies.savings import Savings, savings_of
from elastream.recording.costs import queries_of, records_from_sources, split
from elastream.recording.form import without_nan
from elastream.recording.parts import Keep
from elastream.recording.recorder import Recording

Values: TypeAlias = Floats | float


@dataclass
class InTime:
    """Records and time within a target so far. Without a target nothing is counted."""

    target: float | None  # seconds
    judged: float = 0.0  # records with known latency
    within: float = 0.0  # records of them in time
    seconds: float = 0.0  # periods with a known 99th percentile
    kept: float = 0.0  # those of them in which it was within the target
    by_batches: bool = False  # True if batches report latencies

    def batches(self, batches: Iterable[MicroBatch]) -> None:
        """Add the records of `batches`, spread evenly between the latencies of the oldest and the newest one."""
        if self.target is None:
            return
        for batch in batches:
            if batch.records > 0 and not math.isnan(batch.oldest):
                self.judged += batch.records
                self.within += batch.records * share_within(self.target, batch.oldest, batch.newest)
                self.by_batches = True

    def period(self, seconds: Values, p99: Values, compliance: Values, records: Values) -> None:
        """Add periods: seconds, 99th percentiles, shares in time and records, as numbers or arrays of one shape.

        Records count only if no batch reports latencies.
        """
        if self.target is None:
            return
        measured = ~np.isnan(p99)
        self.seconds += float(np.sum(np.where(measured, seconds, 0.0)))
        self.kept += float(np.sum(np.where(measured & (np.asarray(p99) <= self.target), seconds, 0.0)))
        if not self.by_batches:
            judged = np.where(np.isnan(compliance), 0.0, records)
            self.judged += float(np.sum(judged))
            self.within += float(np.sum(judged * np.nan_to_num(compliance)))

    @property
    def records(self) -> float:
        """Share of the records that were in time; NaN if none is known."""
        return self.within / self.judged if self.judged > 0 else math.nan

    @property
    def time(self) -> float:
        """Share of the time in which the 99th percentile was within the target; NaN if it was never known."""
        return self.kept / self.seconds if self.seconds > 0 else math.nan

    def __str__(self) -> str:
        """Return `"99% of the records, 97% of the time"`, or one part if only one is known."""
        records, time = percent(self.records), percent(self.time)
        if records == UNKNOWN:
            return UNKNOWN if time == UNKNOWN else f"{time} of the time"
        return f"{records} of the records, {time} of the time"


def count_in_time(recording: Recording, before: InTime | None = None, widths: Floats | None = None) -> InTime:
    """Count what was in time in a recording, added to `before`. widths: seconds of each of its periods."""
    count = InTime(recording.header.target_latency) if before is None else replace(before)
    count.batches(recording.batches)
    widths = np.diff(recording.times, prepend=0.0) if widths is None else widths
    served = np.nan_to_num(recording.application(Metric.THROUGHPUT) * widths)
    count.period(widths, recording.application(Metric.LATENCY_P99), recording.application(Metric.COMPLIANCE), served)
    return count


# Relative width within which latencies count as one: as fine as any figure is shown.
STEP = 0.02


@dataclass(frozen=True)
class Totals:
    """Figures of a run, or of a part of it and all that came before."""

    in_time: InTime  # records and time within the target
    savings: Savings  # the load so far, and what other fleets would cost
    time: float = 0.0  # end [s]
    served: float = math.nan  # records, from throughput over time
    counted: float = 0.0  # records, from micro-batches that read sources
    weights: Floats = field(default_factory=lambda: np.empty(0))  # records of periods or groups of them
    p50: Floats = field(default_factory=lambda: np.empty(0))  # their median latencies [s]
    p99: Floats = field(default_factory=lambda: np.empty(0))  # their 99th percentiles [s]
    longest_batch: float = math.nan
    peak_hosts: int = 0
    moves: int = 0
    rounds: int = 0
    last: int = 0  # number of the newest round
    refused: int = 0
    lacked: tuple[Unknown, ...] = ()
    basis: Mapping[str, Basis] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)  # by query
    spent: float = 0.0  # cost in all

    def to_json(self) -> dict[str, Any]:
        rows = np.stack([self.weights, self.p50, self.p99])
        rows = rows[:, (self.weights > 0) & np.isfinite(self.p50) & np.isfinite(self.p99) & (self.p50 > 0)]
        steps = np.round(np.log(rows[1:]) / math.log1p(STEP)).astype(int)
        cells, of = np.unique(steps, axis=1, return_inverse=True)
        weights = np.bincount(of.reshape(-1), rows[0], cells.shape[1])
        means = [np.bincount(of.reshape(-1), rows[0] * each, cells.shape[1]) / weights for each in rows[1:]]
        plain = ("time", "served", "counted", "longest_batch", "peak_hosts", "moves", "rounds", "last", "refused")
        fields: dict[str, Any] = without_nan(
            {
                **{name: getattr(self, name) for name in plain},
                "latencies": [weights.tolist(), *(each.tolist() for each in means)],
                "kept": asdict(self.in_time),
                "savings": self.savings.to_json(),
                "lacked": [asdict(each) for each in self.lacked],
                "basis": {name: each.value for name, each in self.basis.items()},
                "costs": dict(self.costs),
                "spent": self.spent,
            }
        )
        return fields

    @classmethod
    def of_json(cls, fields: Mapping[str, Any], target: float | None) -> "Totals":
        """Read the totals before a part of a recording; empty at the beginning of a run."""
        if not fields:
            return cls(InTime(target), Savings(target))
        weights, p50, p99 = (np.array(each, dtype=float) for each in fields["latencies"])
        served, longest = (
            math.nan if fields[name] is None else float(fields[name]) for name in ("served", "longest_batch")
        )
        if "savings" in fields:
            savings = Savings.of_json(target, fields["savings"])
        else:  # of an earlier version
            savings = Savings(target)
            savings.work = Work.of_json(target, fields["work"])
        counts = {name: int(fields[name]) for name in ("peak_hosts", "moves", "rounds", "last", "refused")}
        return cls(
            InTime(**fields["kept"]),
            savings,
            weights=weights,
            p50=p50,
            p99=p99,
            lacked=tuple(Unknown.of_json(each) for each in fields["lacked"]),
            basis={name: Basis(each) for name, each in fields["basis"].items()},
            time=float(fields["time"]),
            served=served,
            counted=float(fields.get("counted", 0.0)),
            longest_batch=longest,
            costs={name: float(each) for name, each in fields.get("costs", {}).items()},
            spent=float(fields.get("spent", 0.0)),
            **counts,
        )


def tally_of(recording: Recording) -> Totals:
    before = Totals.of_json(recording.header.before, recording.header.target_latency)
    widths = np.diff(recording.times, prepend=before.time)
    served = np.nan_to_num(recording.application(Metric.THROUGHPUT) * _driven(recording, widths))
    decisions = [each for each in recording.decisions if each.round != before.last or not before.rounds]
    longest = [batch.seconds for batch in recording.batches]
    costs, spent = _costs(recording, before)
    return replace(
        before,
        time=float(recording.times[-1]) if len(recording.times) else before.time,
        in_time=count_in_time(recording, before.in_time, widths),
        savings=savings_of(recording, before.savings),
        served=float(served.sum() + np.nan_to_num(before.served)) if len(served) else before.served,
        counted=before.counted + _counted(recording),
        weights=np.concatenate([before.weights, served]),
        p50=np.concatenate([before.p50, recording.application(Metric.LATENCY_P50)]),
        p99=np.concatenate([before.p99, recording.application(Metric.LATENCY_P99)]),
        longest_batch=float(np.fmax(before.longest_batch, max(longest, default=math.nan))),
        peak_hosts=max(before.peak_hosts, int(max(recording.leased, default=0))),
        moves=before.moves + sum(isinstance(each.action, MoveTask) for d in decisions for each in d.done),
        rounds=before.rounds + len(decisions),
        last=decisions[-1].round if decisions else before.last,
        refused=before.refused + sum(bool(proposal.refused) for d in decisions for proposal in d.proposals),
        lacked=longest_lacked(recording.decisions, before.lacked),
        basis=weakest([before.basis, recording.latency_basis]),
        costs=costs,
        spent=spent,
    )


def _driven(recording: Recording, widths: Floats) -> Floats:
    """Return `widths` of periods [s] without the gaps between drivers."""
    driven = widths.copy()
    before = float(recording.header.before.get("time") or 0.0)
    for note in recording.header.resumed:
        if float(note["time"]) <= before:
            continue
        at = int(np.searchsorted(recording.times, float(note["time"])))
        if at < len(driven):
            driven[at] = max(0.0, driven[at] - (float(note["time"]) - float(note["seen"])))
    return driven


def _counted(recording: Recording) -> float:
    header = recording.header
    return records_from_sources(
        recording.batches,
        queries_of(header.stages),
        [str(operator["name"]) for operator in header.operators if operator["kind"] == "source"],
        [str(edge["target"]) for edge in header.edges if edge["durable"]],
    )


def _costs(recording: Recording, before: Totals) -> tuple[Mapping[str, float], float]:
    cost, queries = recording.application(Metric.COST), queries_of(recording.header.stages)
    billed = ~np.isnan(cost)
    if not billed.any() or not queries:
        return before.costs, before.spent
    operators = [[recording.operator(name, Metric.BUSY_CORES) for name in each] for each in queries.values()]
    busy = np.array([np.nansum(each, axis=0) for each in operators])[:, billed]
    parts = split(np.maximum(np.diff(cost[billed], prepend=before.spent), 0.0), busy).tolist()
    by_query = dict(before.costs)
    for query, part in zip(queries, parts, strict=True):
        by_query[query] = by_query.get(query, 0.0) + part
    return by_query, float(cost[billed][-1])


def retention_of(seconds: float) -> Keep:
    """Return a retention of so many seconds of detail, and of totals for good."""
    return Keep(seconds, lambda recording: tally_of(recording).to_json())
