"""Service of a query: throughput, latency from an event's due time to its commit, and the share in time."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from elastream.loads.pattern import Pattern, dues

POINTS = 50  # events of a batch whose latency is computed


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch that has ended.

    Attributes:
        start: Its beginning (seconds since 1970).
        position: Events that all streams of the query have had by its end.
        began: Beginning of the load (seconds since 1970); 0 before it.
    """

    start: float
    seconds: float
    position: int
    began: float
    state_bytes: int

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True, slots=True)
class Service:
    """Figures of a run.

    Attributes:
        seconds: Time from the load's beginning to the last commit.
        in_time: Share of the load's events that were committed within the target latency.
        p99: 99th percentile of latency (seconds).
        lag_growth: Growth of the events that are due and not committed, by a line through the second half of the load, over
            the rate of the load.
        began: Beginning of the load (seconds since 1970).
    """

    events: int = 0
    seconds: float = 0.0
    in_time: float = 0.0
    p50: float = math.nan
    p99: float = math.nan
    longest_batch: float = math.nan
    state_bytes: int = 0
    lag_growth: float = math.nan
    began: float = 0.0

    @property
    def throughput(self) -> float:
        return self.events / self.seconds if self.seconds else 0.0


def batches_of(progress: Iterable[Mapping[str, Any]], control: Path | None = None) -> list[Batch]:
    """Return the batches in a query's progress. Events count once all sources have had them.

    Args:
        control: Folder of sources that read Kafka; it tells which topic has which events.
    """
    batches = []
    for each in progress:
        ends = [end for source in each["sources"] if (end := _progress_of(source["endOffset"], control)) is not None]
        if not ends:
            continue
        state = sum(int(operator["memoryUsedBytes"]) for operator in each["stateOperators"])
        batches.append(
            Batch(
                datetime.fromisoformat(each["timestamp"]).timestamp(),
                each["durationMs"]["triggerExecution"] / 1e3,
                min(position for position, _ in ends),
                max(began for _, began in ends),
                state,
            )
        )
    return batches


def _progress_of(value: Any, control: Path | None) -> tuple[int, float] | None:
    """Return the events that a source has had, and when its load began (0: not yet); None if it tells neither."""
    offset: Mapping[str, Any] = (json.loads(value) if isinstance(value, str) else value) or {}
    if "n" in offset:
        return int(offset["n"]), float(offset.get("started", 0))
    if control is None or not offset:
        return None
    from elastream.bench.kafka import reached_in  # of an optional broker

    return reached_in(control, offset)


def service(batches: Sequence[Batch], load: Pattern, target: float) -> Service:
    """Return the figures of a run under `load` with a target latency (seconds)."""
    total = load.count(load.seconds)
    began = max((batch.began for batch in batches), default=0.0)
    latencies: list[float] = []
    weights: list[float] = []
    before = in_time = 0
    last = began
    for batch in batches:
        position = min(batch.position, total)
        if not began or position <= before:
            continue
        in_time += max(0, position - max(before, load.count(max(0.0, batch.end - target - began))))
        points = np.unique(np.linspace(before, position - 1, min(position - before, POINTS)).astype(np.int64))
        latencies += (batch.end - began - dues(load, points)).tolist()
        weights += [(position - before) / len(points)] * len(points)
        before, last = position, batch.end
    if not before:
        return Service()
    p50, p99 = np.quantile(latencies, (0.5, 0.99), weights=weights, method="inverted_cdf")
    return Service(
        before,
        last - began,
        in_time / total,
        float(p50),
        float(p99),
        max(batch.seconds for batch in batches if batch.end > began),
        max(batch.state_bytes for batch in batches),
        lag_growth(batches, load, began),
        began,
    )


def lag_growth(batches: Sequence[Batch], load: Pattern, began: float) -> float:
    """Return the growth of the lag in the second half of a load, over its rate; NaN with fewer than three batches."""
    ends = [(each.end - began, each.position) for each in batches if load.seconds / 2 <= each.end - began <= load.seconds]
    if len(ends) < 3:
        return math.nan
    times = np.array([at for at, _ in ends])
    lags = np.array([load.count(at) - position for at, position in ends])
    return float(np.polyfit(times, lags, 1)[0]) / (load.count(load.seconds) / load.seconds)
