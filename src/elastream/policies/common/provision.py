"""Sizing for a known load: for baselines, the start of a run, and the cost of a static peak.

Work is in cores of speed 1 by operator, from declared costs or a recorded run.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from elastream.core.frames import Floats
from elastream.core.hosts import HostType
from elastream.core.observation import Composition
from elastream.core.qos import offered_rates
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Kind, Operator
from elastream.dataflow.stages import Layout
from elastream.errors import CloudError, DataflowError, InputError
from elastream.loads.pattern import counts
from elastream.units import ROUNDING

# Part of a host's cores to fill (Flink's autoscaler: `job.autoscaler.utilization.target`).
TARGET_UTILISATION = 0.7
# Most windows of a load when its peak is computed; a longer load has longer windows.
MOST_WINDOWS = 500_000
# Shortest period over which the work per record is averaged, to compare periods (seconds).
MINUTE_S = 60.0

At: TypeAlias = Literal["peak", "mean"]
# Measured (core-seconds per record, records out per record in) by operator; they replace declared ones.
Costs: TypeAlias = Mapping[str, tuple[float | None, float | None]]


@dataclass(frozen=True, slots=True)
class Provision:
    """A number of hosts of one type, and the instances that fill them.

    Attributes:
        rate: Records/s that the hosts are sized for; NaN if unknown.
    """

    hosts: int
    parallelism: Mapping[str, int] = field(default_factory=dict)
    rate: float = field(default=math.nan, compare=False)
    cores: float = field(default=math.nan, compare=False)

    def cost(self, type: HostType, seconds: float) -> float:
        return self.hosts * type.billing.units(seconds) * type.price


def declared_cores(
    graph: Graph, rates: Mapping[str, float], costs: Costs | None = None, composition: Composition | None = None
) -> dict[str, float]:
    """Return the cores of speed 1 that each operator needs for `rates` (records/s by source).

    Measured `costs` replace declared ones, unless they are None.

    Raises:
        DataflowError: An operator declares no cost.
    """
    running = composition or Composition()
    per_record: dict[str, float] = {}
    selectivity: dict[str, float] = {}
    for operator in graph.operators:
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED):
            alternate = running.alternate(operator)
            cost, emitted = (costs or {}).get(operator.name, (None, None))
            cost = alternate.cost if cost is None else cost
            emitted = alternate.selectivity if emitted is None else emitted
            if cost is None:
                raise DataflowError(
                    f"operator {operator.name!r} declares no cost, so that hosts cannot be sized for it: declare its "
                    "`cost` in core-seconds per record, or give a number of hosts"
                )
            per_record[operator.name] = 0.0 if operator.waits else cost
            selectivity[operator.name] = 1.0 if emitted is None else emitted
    arriving = offered_rates(graph, rates, selectivity, composition)
    return {name: arriving[name] * cost for name, cost in per_record.items()}


def rates_of(
    graph: Graph,
    loads: Mapping[str, ArrivalPattern],
    at: At,
    *,
    seconds: float | None = None,
    window: float | None = None,
    costs: Costs | None = None,
) -> dict[str, float]:
    """Return records/s by source: the mean, or those of the window with the most work.

    Args:
        seconds: Length of the load that counts; None: all of it.
        window: Seconds over which a peak is averaged. Shorter peaks may wait within the target latency.

    Raises:
        InputError: A load has no end, or a source has no load.
    """
    missing = [source.name for source in graph.sources if source.name not in loads]
    if missing:
        raise InputError(f"source {missing[0]!r} declares no load, so that its {at} is unknown: give a number of hosts")
    length = max((load.seconds for load in loads.values()), default=0.0) if seconds is None else seconds
    if not 0 < length < math.inf:
        raise InputError(f"the load has no end, so that its {at} is unknown: give it an end, or a number of hosts")
    if at == "mean":
        return {name: load.count(length) / length for name, load in loads.items()}
    each = max(min(window or 1.0, length), length / MOST_WINDOWS)
    edges = np.append(np.arange(0.0, length - each / 2, each), length)
    rates = {name: np.diff(counts(load, edges)) / np.diff(edges) for name, load in loads.items()}
    units = {name: sum(declared_cores(graph, {name: 1.0}, costs).values()) for name in loads}
    work: Floats = np.sum([units[name] * rate for name, rate in rates.items()], axis=0)
    busiest = int(np.argmax(work))
    return {name: float(rate[busiest]) for name, rate in rates.items()}


def declared_provision(
    layout: Layout,
    type: HostType,
    loads: Mapping[str, ArrivalPattern],
    at: At = "peak",
    *,
    seconds: float | None = None,
    window: float | None = None,
    costs: Costs | None = None,
) -> Provision:
    """Return the provision that a load's peak or mean fills to TARGET_UTILISATION, from declared costs.

    Parameters and errors as in `rates_of`; CloudError if an operator fits no host.
    """
    rates = rates_of(layout.graph, loads, at, seconds=seconds, window=window, costs=costs)
    return provision_for_cores(layout, type, declared_cores(layout.graph, rates, costs))


def provision_for_cores(
    layout: Layout, type: HostType, cores: Mapping[str, float], utilisation: float = TARGET_UTILISATION
) -> Provision:
    """Return the fewest hosts that `cores` (of speed 1, by operator) fill to `utilisation`, and their instances.

    Unchained, each operator has the instances that its own work fills; hosts hold them by first fit, largest first.
    Chained, tasks share cores, and a stage is as wide as the hosts have slots.
    """
    if not layout.unchained:
        hosts = max(1, math.ceil(math.fsum(cores.values()) / (type.cores * type.speed * utilisation) - ROUNDING))
        return Provision(hosts, instances_to_fill(layout, type, hosts, cores))
    needed = {
        operator.name: max(
            1, math.ceil(cores.get(operator.name, 0.0) / (_own(operator) * type.speed * utilisation) - ROUNDING)
        )
        for operator in _placed(layout)
    }
    return Provision(max(1, _packed(layout, type, needed)), needed)


def first_provision(layout: Layout, type: HostType) -> Provision:
    """Return the provision at the start of a run: hosts for one instance of every operator.

    Raises:
        CloudError: An operator fits no host.
    """
    return provision_for_cores(layout, type, {})


def instances_to_fill(layout: Layout, type: HostType, hosts: int, cores: Mapping[str, float]) -> dict[str, int]:
    """Return the instances that fill `hosts` hosts in proportion to `cores` by operator.

    Every operator has at least one, even without room. Unchained, further ones go to the operator with the most work per
    instance. Chained, a stateless stage is as wide as the hosts have slots.
    """
    if not layout.unchained:
        return {stage.name: hosts * type.width for stage in layout.stages if not stage.keyed}
    placed = _placed(layout)
    room = [_Room(type) for _ in range(hosts)]
    instances = {operator.name: 1 for operator in placed}
    for operator in sorted(placed, key=lambda each: -each.cores):
        _place(room, operator)
    equal = not any(cores.get(operator.name, 0.0) > 0 for operator in placed)
    open_for = [operator for operator in placed if equal or cores.get(operator.name, 0.0) > 0]
    while open_for:
        neediest = max(
            open_for,
            key=lambda each: (1.0 if equal else cores[each.name]) / (instances[each.name] * _own(each)),
        )
        if _place(room, neediest):
            instances[neediest.name] += 1
        else:
            open_for.remove(neediest)
    return instances


class Work:
    """Work and highest arrival rate of a run, summed over its observations.

    Work is what the hosts' cores did (operators' cores, if no host measures it) per processed record, with all overheads.

    Args:
        window: Seconds over which the highest rate is averaged.
    """

    def __init__(self, window: float | None) -> None:
        self._window = window or 0.0
        self._time = self._known_time = self._cores = self._records = self._arrived = self._peak = 0.0
        self._past = deque([(0.0, 0.0)])
        # Of the present minute: begin, work and records. Of earlier minutes: records, and the first two moments of the
        # work.
        self._minute, self._moments = (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)

    def add(self, time: float, offered: float, processed: float, busy: float) -> None:
        """Add an observation: rates in records/s, `busy` cores of speed 1; NaN if unknown."""
        width, self._time = time - self._time, time
        if not math.isnan(busy) and not math.isnan(processed):
            self._cores += busy * width
            self._records += processed * width
            self._end_minute(time)
        if not math.isnan(offered):
            self._known_time += width
            self._arrived += offered * width
        self._past.append((time, self._arrived))
        begin = max(time - max(self._window, width), 0.0)
        while len(self._past) > 2 and self._past[1][0] <= begin:
            self._past.popleft()
        (before, had), (after, has) = self._past[0], self._past[1]
        at = had + (has - had) * min(1.0, (begin - before) / max(after - before, ROUNDING))
        self._peak = max(self._peak, (self._arrived - at) / max(time - begin, ROUNDING))

    def _end_minute(self, time: float) -> None:
        since, cores, records = self._minute
        if time - since < MINUTE_S:
            return
        counted, work = self._records - records, self._cores - cores
        if counted > 0:
            each = work / counted
            terms = (counted, work, work * each)
            self._moments = cast(tuple[float, float, float], tuple(map(sum, zip(self._moments, terms, strict=True))))
        self._minute = time, self._cores, self._records

    @property
    def each(self) -> float:
        """Core-seconds of speed 1 of a record; NaN if unknown."""
        return self._cores / self._records if self._records > 0 else math.nan

    @property
    def spread(self) -> float:
        """Relative standard deviation of the work of a record between minutes; 0 before the first."""
        records, work, squares = self._moments
        if not work > 0:
            return 0.0
        return math.sqrt(max(0.0, squares * records / work**2 - 1))

    def to_json(self) -> dict[str, Any]:
        sums = [self._time, self._known_time, self._cores, self._records, self._arrived, self._peak]
        minutes = [list(self._minute), list(self._moments)]
        return {"sums": sums, "past": [list(each) for each in self._past], "minutes": minutes}

    @classmethod
    def of_json(cls, window: float | None, fields: Mapping[str, Any]) -> "Work":
        work = cls(window)
        work._time, work._known_time, work._cores, work._records, work._arrived, work._peak = fields["sums"]
        work._past = deque((time, arrived) for time, arrived in fields["past"])
        work._minute, work._moments = map(tuple, fields.get("minutes", [work._minute, work._moments]))
        return work

    def provision(self, type: HostType, more: float = 0.0) -> Provision | None:
        """Return the hosts that the load's peak fills; None if unknown. more: relative increase of the work per record."""
        if not self._records > 0 or not self._known_time > 0:
            return None
        rate = self._peak
        cores = rate * self.each * max(0.1, 1 + more)
        hosts = max(1, math.ceil(cores / (type.cores * type.speed * TARGET_UTILISATION) - ROUNDING))
        return Provision(hosts, rate=rate, cores=cores)


def _placed(layout: Layout) -> list[Operator]:
    by_name = layout.graph.by_name
    return [by_name[name] for name in layout.graph.order if by_name[name].kind in (Kind.TRANSFORM, Kind.KEYED)]


def _own(operator: Operator) -> float:
    """Return the cores of an instance; 1 if it declares none."""
    return operator.cores or 1.0


class _Room:
    def __init__(self, type: HostType) -> None:
        self.cores, self.memory = type.cores, type.memory

    def takes(self, operator: Operator) -> bool:
        if operator.cores > self.cores + ROUNDING or operator.memory > self.memory + ROUNDING:
            return False
        self.cores -= operator.cores
        self.memory -= operator.memory
        return True


def _place(room: list[_Room], operator: Operator) -> bool:
    if operator.cores <= 0 and operator.memory <= 0:
        return False
    return any(host.takes(operator) for host in room)


def _packed(layout: Layout, type: HostType, instances: Mapping[str, int]) -> int:
    room: list[_Room] = []
    by_name = layout.graph.by_name
    for name in sorted(instances, key=lambda each: (-by_name[each].cores, -by_name[each].memory)):
        operator = by_name[name]
        if operator.cores > type.cores + ROUNDING or operator.memory > type.memory + ROUNDING:
            raise CloudError(
                f"operator {name!r} needs {operator.cores:g} cores and {operator.memory:g} MB for one instance; a host of "
                f"type {type.name!r} has {type.cores:g} and {type.memory:g}: declare fewer `cores` for it, or larger hosts"
            )
        if operator.cores <= 0 and operator.memory <= 0:
            continue
        since = 0  # earlier hosts have no room for another instance of this operator
        for _ in range(instances[name]):
            while since < len(room) and not room[since].takes(operator):
                since += 1
            if since == len(room):
                room.append(_Room(type))
                room[-1].takes(operator)
    return len(room)
