"""The load of a recorded run, as arrivals for simulation."""

import math
from collections.abc import Sequence

import numpy as np

from elastream.core.metrics import Metric
from elastream.core.observation import MicroBatch
from elastream.dataflow.stages import Layout
from elastream.errors import InputError
from elastream.recording.recorder import Recording
from elastream.simulator.arrivals import Emissions

# Seconds over which replayed arrivals are spread evenly.
STEP = 0.1


def recorded_loads(
    recording: Recording, layout: Layout, batches: Sequence[MicroBatch], origin: float
) -> dict[str, Emissions]:
    """Return each source's arrivals, in seconds after `origin`.

    They pass through the recorded due times of batches; elsewhere they follow the recorded rate.
    """
    clock = recording.times - origin
    loads = {}
    for source in layout.graph.sources:
        rates = recording.operator(source.name, Metric.ARRIVAL_RATE)
        finite = np.isfinite(rates)
        if not finite.any():
            raise InputError(f"the recording shows no arrivals at source {source.name!r}")
        edges = np.arange(0.0, recording.end - origin + STEP, STEP)
        # The floor keeps the cumulative rate strictly increasing, so that due times map to it one to one.
        rate = np.maximum(np.interp(edges, clock[finite], rates[finite]), 1e-9 * rates[finite].max())
        summed = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2 * STEP)])
        numbers = np.cumsum([batch.records for batch in batches])
        due = [
            (at - origin, number)
            for batch, last in zip(batches, numbers, strict=True)
            for at, number in ((batch.end - batch.oldest, last - batch.records), (batch.end - batch.newest, last))
            if not math.isnan(at)
        ]
        if due:
            times, counted = (np.array(column) for column in zip(*due, strict=True))
            # Timestamps have millisecond resolution: due times of successive batches may overlap slightly.
            at = np.interp(np.maximum.accumulate(times), edges, summed)
            # Records due after the last batch are the final backlog.
            left = np.nan_to_num(recording.operator(source.name, Metric.BACKLOG))[-1]
            total = np.interp(summed, at, counted) + np.clip(summed - at[-1], 0.0, left)
        else:
            begins = clock[finite][0] - float(np.median(np.diff(clock)))
            total = np.maximum(0.0, summed - np.interp(begins, edges, summed))
        counts = np.diff(np.floor(total + 1e-6).astype(np.int64))
        if not counts.sum():
            raise InputError(f"the recording shows no arrivals at source {source.name!r}")
        loads[source.name] = Emissions(edges[:-1], counts, STEP)
    return loads
