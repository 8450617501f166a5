"""How long records took, as weighted spans: their mean and quantiles."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from elastream.core.frames import Floats
from elastream.core.metrics import Metric
from elastream.spark.telemetry.batches import weighted_quantile
from elastream.spark.telemetry.origins import Moments

Span: TypeAlias = tuple[float, float]
"""Seconds that records took, and how many these are."""


def spans_of(moments: Moments, until: float) -> list[Span]:
    """Seconds from `moments` until epoch second `until`."""
    return [(max(0.0, until - at), weight) for at, weight in moments]


def columns_of(spans: Sequence[Span]) -> tuple[Floats, Floats]:
    """The seconds of `spans`, and their weights."""
    table = np.array(spans, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def describe_durations(columns: dict[Metric, dict[str, float]], name: str, spans: Sequence[Span]) -> None:
    """Mean and quantiles of the time that records spent at the operator `name`; unknown where there are none."""
    if spans:
        seconds, weights = columns_of(spans)
        columns[Metric.DURATION][name] = float(np.average(seconds, weights=weights))
        columns[Metric.DURATION_P50][name] = weighted_quantile(seconds, weights, 0.5)
        columns[Metric.DURATION_P99][name] = weighted_quantile(seconds, weights, 0.99)
