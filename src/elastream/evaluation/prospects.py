"""Knowledge of policies about a simulated run before it begins: loads, hosts and links."""

from collections.abc import Mapping, Sequence

import numpy as np

from elastream.core.frames import Floats
from elastream.core.hosts import HostType
from elastream.core.plant import Prospect, Variation
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.stages import Layout
from elastream.loads.links import LinkTrace, pair_number
from elastream.loads.speeds import SpeedTrace, number_of
from elastream.simulator import Settings
from elastream.units import ROUNDING


def prospect_of(
    layout: Layout,
    host_types: Sequence[HostType],
    loads: Mapping[str, ArrivalPattern],
    settings: Settings,
    *,
    seconds: float | None = None,
    window: float | None = None,
) -> Prospect:
    """Return the prospect of a run; arguments as of `Prospect`."""
    costs = {operator: (each.cost, each.selectivity) for operator, each in settings.services.items()}
    speeds = None if settings.speed_trace is None else _speeds(settings.speed_trace)
    links = None if settings.link_trace is None else _links(settings.link_trace)
    return Prospect(layout, host_types, loads, seconds, window, costs, speeds, links)


def _speeds(trace: SpeedTrace) -> Variation:
    def course(host: str, times: Floats) -> Floats:
        number = number_of(host, -1)
        return np.full(times.shape, np.nan) if number < 0 else _row(trace.factors, number, trace.interval, times)

    return course


def _links(trace: LinkTrace) -> Variation:
    def course(link: str, times: Floats) -> Floats:
        ends = [number_of(host, -1) for host in link.split(">")]
        if min(ends) < 0 or len(ends) != 2:
            return np.full(times.shape, np.nan)
        pair = int(pair_number(np.array(ends[0]), np.array(ends[1])))
        return _row(trace.bandwidth, pair, trace.interval, times)

    return course


def _row(table: Floats, row: int, interval: float, times: Floats) -> Floats:
    slots = np.floor(times / interval + ROUNDING).astype(np.int64)
    values: Floats = table[row % table.shape[0], slots % table.shape[1]]
    return values
