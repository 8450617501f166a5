"""How long records took, as weighted spans: their mean and quantiles."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from elastream.core.frames import Floats
from elastream.core.latency import DURATIONS, figures
from elastream.core.metrics import Metric
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
    """Enter mean and quantiles of the time that records spent at the operator `name`, unless there are none."""
    if spans:
        latencies = figures(*columns_of(spans))
        for metric, of in DURATIONS.items():
            columns[metric][name] = latencies[of]
