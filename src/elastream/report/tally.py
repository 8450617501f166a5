"""What a run has come to so far, of bounded size: so that the figures of months do not need the recording of months.

Each part of a recording begins with the tally of all before it; the summary adds up that and what is there. Latencies are
kept as a mixture of distributions whose quantiles are told apart by STEP; all other figures are exact.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from elastream.core.action import MoveTask
from elastream.core.decision import Unknown, longest_lacked
from elastream.core.frames import Floats
from elastream.core.latency import Basis, weakest
from elastream.core.metrics import Metric
from elastream.policies.common.provision import Work, work_of
from elastream.recording.costs import queries_of, records_from_sources, split
from elastream.recording.form import without_nan
from elastream.recording.parts import Keep
from elastream.recording.recorder import Recording
from elastream.report.in_time import InTime, in_time

STEP = 0.02
"""Relative width within which latencies count as one: as fine as any figure is shown."""


@dataclass(frozen=True)
class Totals:
    """Figures of a run, or of a part of it and all that came before.

    time: at which it ends, seconds. served: records, by what passed a second; counted: as micro-batches that read sources
    say. weights, p50, p99: of periods, or of groups of them, the records and
    their quantiles of latency, seconds. last: number of the newest round counted. costs: money by query; spent: in all.
    """

    kept: InTime
    work: Work
    time: float = 0.0
    served: float = math.nan
    counted: float = 0.0
    weights: Floats = field(default_factory=lambda: np.empty(0))
    p50: Floats = field(default_factory=lambda: np.empty(0))
    p99: Floats = field(default_factory=lambda: np.empty(0))
    longest_batch: float = math.nan
    peak_hosts: int = 0
    moves: int = 0
    rounds: int = 0
    last: int = 0
    refused: int = 0
    lacked: tuple[Unknown, ...] = ()
    basis: Mapping[str, Basis] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    spent: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As JSON has it, its latencies grouped."""
        rows = np.stack([self.weights, self.p50, self.p99])
        rows = rows[:, (self.weights > 0) & np.isfinite(self.p50) & np.isfinite(self.p99) & (self.p50 > 0)]
        steps = np.round(np.log(rows[1:]) / math.log1p(STEP)).astype(int)
        cells, of = np.unique(steps, axis=1, return_inverse=True)
        weights = np.bincount(of.reshape(-1), rows[0], cells.shape[1])
        means = [np.bincount(of.reshape(-1), rows[0] * each, cells.shape[1]) / weights for each in rows[1:]]
        plain = ("time", "served", "counted", "longest_batch", "peak_hosts", "moves", "rounds", "last", "refused")
        found: dict[str, Any] = without_nan(
            {
                **{name: getattr(self, name) for name in plain},
                "latencies": [weights.tolist(), *(each.tolist() for each in means)],
                "kept": asdict(self.kept),
                "work": self.work.to_json(),
                "lacked": [asdict(each) for each in self.lacked],
                "basis": {name: each.value for name, each in self.basis.items()},
                "costs": dict(self.costs),
                "spent": self.spent,
            }
        )
        return found

    @classmethod
    def of_json(cls, fields: Mapping[str, Any], target: float | None) -> "Totals":
        """What a part of a recording says of all before it; an empty one where it begins a run."""
        if not fields:
            return cls(InTime(target), Work(target))
        weights, p50, p99 = (np.array(each, dtype=float) for each in fields["latencies"])
        served, longest = (
            math.nan if fields[name] is None else float(fields[name]) for name in ("served", "longest_batch")
        )
        counts = {name: int(fields[name]) for name in ("peak_hosts", "moves", "rounds", "last", "refused")}
        return cls(
            InTime(**fields["kept"]),
            Work.of_json(target, fields["work"]),
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
    """What a recording, and all before it, came to."""
    before = Totals.of_json(recording.header.before, recording.header.target_latency)
    widths = np.diff(recording.times, prepend=before.time)
    served = np.nan_to_num(recording.application(Metric.THROUGHPUT) * _driven(recording, widths))
    decisions = [each for each in recording.decisions if each.round != before.last or not before.rounds]
    longest = [batch.seconds for batch in recording.batches]
    costs, spent = _costs(recording, before)
    return replace(
        before,
        time=float(recording.times[-1]) if len(recording.times) else before.time,
        kept=in_time(recording, before.kept, widths),
        work=work_of(recording, before.work),
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
    """`widths` of periods, seconds, without what lay between two drivers of a run that was resumed."""
    found = widths.copy()
    before = float(recording.header.before.get("time") or 0.0)
    for note in recording.header.resumed:
        if float(note["time"]) <= before:
            continue
        at = int(np.searchsorted(recording.times, float(note["time"])))
        if at < len(found):
            found[at] = max(0.0, found[at] - (float(note["time"]) - float(note["seen"])))
    return found


def _counted(recording: Recording) -> float:
    """Return the records that micro-batches took from sources."""
    header = recording.header
    return records_from_sources(
        recording.batches,
        queries_of(header.stages),
        [str(operator["name"]) for operator in header.operators if operator["kind"] == "source"],
        [str(edge["target"]) for edge in header.edges if edge["durable"]],
    )


def _costs(recording: Recording, before: Totals) -> tuple[Mapping[str, float], float]:
    """(money by query, money in all) up to the last observation whose cost is known."""
    cost, queries = recording.application(Metric.COST), queries_of(recording.header.stages)
    known = ~np.isnan(cost)
    if not known.any() or not queries:
        return before.costs, before.spent
    operators = [[recording.operator(name, Metric.BUSY_CORES) for name in each] for each in queries.values()]
    busy = np.array([np.nansum(each, axis=0) for each in operators])[:, known]
    parts = split(np.maximum(np.diff(cost[known], prepend=before.spent), 0.0), busy).tolist()
    found = dict(before.costs)
    for query, part in zip(queries, parts, strict=True):
        found[query] = found.get(query, 0.0) + part
    return found, float(cost[known][-1])


def kept_for(seconds: float) -> Keep:
    """Keep the recording of a run for so many seconds, and what it came to for good."""
    return Keep(seconds, lambda recording: tally_of(recording).to_json())
