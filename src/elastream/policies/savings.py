"""Savings: the cost so far beside that of other fleets on the same load.

The load is replayed through constant fleets and Spark's dynamic allocation, by `common.service` with the run's own figures.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from elastream.core.frames import Floats, known_sum
from elastream.core.hosts import HostState, HostType, known_cost
from elastream.core.metrics import Metric
from elastream.core.observation import MicroBatch, Observation
from elastream.core.wording import hosts_text, money
from elastream.policies.common.chained import stateless_tasks
from elastream.policies.common.provision import Provision, Work
from elastream.policies.common.service import FIRST_OVERHEAD, MOST_OVERHEAD, Service
from elastream.policies.common.sizing import FIRST_BATCHES_S
from elastream.policies.horizon.budget import hosts_for
from elastream.policies.horizon.policy import IN_TIME
from elastream.policies.rivals.batches import SHUFFLE_PARTITIONS, widest
from elastream.policies.rivals.dra import Dra, pending_seconds
from elastream.units import ROUNDING

if TYPE_CHECKING:
    from elastream.recording.recorder import Recording

# Names of the fleets.
PEAK, CONSTANT, DYNAMIC = "fixed at the peak", "best constant", "dynamic allocation"
# Capacities of constant fleets: their ratio, and their number. The lowest is a 2,700th of the highest rate.
STEP, CAPACITIES = 1.02, 400
# Highest utilisation for which a batch's length follows from its fixed part.
MOST_LOAD = 0.95
# Length of limited batches (seconds): the default of simulations.
LIMIT_S = 1.0
# Errors of the work per record with which fleets are replayed, as multiples of its standard error.
OFFSETS = (0.0, -1.0, 1.0)


@dataclass(frozen=True, slots=True)
class FleetCost:
    """Cost of a fleet so far.

    Attributes:
        hosts: Their number; NaN if it changes.
        cost: NaN without a price.
        error: Half the difference between the costs at one standard deviation more and less work per record.
    """

    name: str
    hosts: float
    cost: float
    error: float = 0.0

    def __str__(self) -> str:
        """Return `"fixed at the peak 40 ± 3 (8 hosts)"`."""
        error = f" ± {money(self.error)}" if self.error > 0 else ""
        hosts = "" if math.isnan(self.hosts) else f" ({hosts_text(self.hosts)})"
        return f"{self.name} {money(self.cost)}{error}{hosts}"


class Tasks(NamedTuple):
    """Tasks of the widest stage with state, and the share of the busy cores in such stages."""

    number: int = SHUFFLE_PARTITIONS
    keyed: float = 0.0

    def unevenness(self, slots: float) -> float:
        """Return the cores over busy ones that `slots` slots need because the last wave of tasks is not full."""
        if not slots > 0 or not self.keyed > 0:
            return 1.0
        return 1 + self.keyed * (math.ceil(self.number / slots - ROUNDING) * slots / self.number - 1)


@dataclass(frozen=True, slots=True)
class Sample:
    """The load and the hosts of an observation.

    Attributes:
        offered, processed: Records/s; NaN if unknown.
        comparable: True if the batches show the overhead of hosts: one query, and tasks that fill the slots evenly.
        since: Time of the last change of the hosts.
    """

    time: float
    offered: float
    processed: float
    busy: float
    capacity: float
    comparable: bool
    since: float
    version: float
    slots: float
    tasks: Tasks
    batches: Sequence[MicroBatch] = ()


@dataclass(slots=True)
class ConstantFleets:
    """Late records of constant fleets. Each serves a power of STEP (records/s), the largest first.

    Attributes:
        top: Exponent of the largest fleet, which serves more than any rate so far.
    """

    top: int | None = None
    arrived: float = 0.0
    waiting: Floats = field(default_factory=lambda: np.zeros(CAPACITIES))
    late: Floats = field(default_factory=lambda: np.zeros(CAPACITIES))

    def add(self, rate: float, seconds: float, budget: float) -> None:
        """Serve `rate` for `seconds`, of which records may wait `budget` seconds."""
        if rate > 0:
            top = math.ceil(math.log(rate, STEP)) + 1
            if self.top is None or top > self.top:
                # This fleet serves more than any earlier rate, so no record has waited.
                more = CAPACITIES if self.top is None else min(CAPACITIES, top - self.top)
                self.top = top
                for column in (self.waiting, self.late):
                    column[more:] = column[: CAPACITIES - more].copy()
                    column[:more] = 0.0
        if self.top is None:
            return
        capacity = self._capacities
        self.arrived += rate * seconds
        self.waiting = np.maximum(0.0, self.waiting + (rate - capacity) * seconds)
        self.late[self.waiting > budget * capacity] += rate * seconds

    @property
    def _capacities(self) -> Floats:
        return np.asarray(STEP ** (float(self.top or 0) - np.arange(CAPACITIES)))

    def least(self, allowance: float) -> float:
        """Return the least capacity that leaves at most a part `allowance` of all records late; NaN if unknown."""
        if not self.arrived > 0:
            return math.nan
        return float(self._capacities[int(np.flatnonzero(self.late <= allowance * self.arrived)[-1])])


@dataclass(slots=True)
class DynamicFleet:
    """Fleet of Spark's dynamic allocation.

    Attributes:
        leases: (since, ready, hosts), oldest first.
        decides: End of the batch whose waiting tasks requested hosts last.
    """

    leases: list[tuple[float, float, int]] = field(default_factory=lambda: [(0.0, 0.0, 1)])
    waiting: float = 0.0
    paid: float = 0.0
    used: float = 0.0
    decides: float = 0.0

    def add(self, sample: Sample, seconds: float, kind: HostType, each: float, batch: float, most: int) -> None:
        """Serve the arrivals of `seconds` with hosts of `each` records/s, then request and release hosts.

        Args:
            batch: Seconds of a batch without records.
        """
        rule, now = Dra(), sample.time
        ready = max(1, sum(count for _, at, count in self.leases if at <= now))
        host_count = sum(count for _, _, count in self.leases)
        capacity = ready * each / sample.tasks.unevenness(ready * kind.width)
        self.waiting = max(0.0, self.waiting + (sample.offered - capacity) * seconds)
        if sample.offered > 0 or self.waiting > 0:
            self.used = now
        if now >= self.decides:
            usual = min(LIMIT_S, batch / (1 - min(MOST_LOAD, sample.offered / capacity)))
            lasts = max(batch, usual) + self.waiting / capacity
            needed = min(most, math.ceil(sample.tasks.number / kind.width))
            added = rule.requested(host_count, needed, pending_seconds(sample.tasks.number, ready * kind.width, lasts))
            if added:
                self.leases.append((now, now + kind.start, added))
            self.decides = now + lasts
        if now - self.used >= rule.idle_timeout:
            self._release(now, seconds, kind, host_count - 1)

    def _release(self, now: float, pace: float, kind: HostType, surplus: int) -> None:
        left = []
        for since, ready, count in self.leases:
            units = kind.billing.units(now - since)
            due = since + units * kind.billing.unit - now <= pace + ROUNDING
            released = min(count, surplus) if due else 0
            surplus -= released
            self.paid += released * kind.billing.units(now + kind.stop - since) * kind.price
            if count > released:
                left.append((since, ready, count - released))
        self.leases = left

    def cost(self, kind: HostType, time: float) -> float:
        current = (count * kind.billing.units(time - since) for since, _, count in self.leases)
        return self.paid + sum(current) * kind.price


class Savings:
    """The load of a run so far, replayed through other fleets.

    Args:
        target: Target latency (seconds), or None.
        since: Time from which the load counts (seconds).
    """

    def __init__(self, target: float | None, since: float = 0.0) -> None:
        self._target = target
        self.work = Work(target)
        self._service = Service()
        self._batches: dict[str, tuple[int, float]] = {}
        self._budget, self._overhead = 0.0, (1.0, 0.0)
        self._constant = ConstantFleets()
        self._dynamic = tuple(DynamicFleet() for _ in OFFSETS)
        self._time = since
        self._tasks = Tasks()

    def observed(self, observation: Observation) -> None:
        context = observation.context
        types = tuple(context.host_types.values())
        governed = all(source.load is not None for source in context.graph.sources)
        self.add(_sample(observation), types[0] if types else None, context.max_hosts, governed=governed)

    def add(self, sample: Sample, kind: HostType | None, most: int, *, governed: bool) -> None:
        """Add an observation.

        Args:
            governed: True if the size of batches is limited.
        """
        seconds, self._time = sample.time - self._time, sample.time
        self.work.add(sample.time, sample.offered, sample.processed, sample.busy)
        self._tasks = sample.tasks if sample.tasks.keyed > 0 else self._tasks
        capacity = sample.capacity / self._tasks.unevenness(sample.slots) if sample.comparable else math.nan
        if sample.batches:
            # Batches on new hosts are slower; those of a fleet that stays are not.
            ended = {name: count for name, (count, _) in self._batches.items()}
            starts = {name: start for name, (_, start) in self._batches.items()}
            self._service = self._service.with_batches(
                sample.batches, ended, starts, capacity, self.work.each, sample.since + FIRST_BATCHES_S, sample.version
            )
            for batch in sample.batches:
                self._batches[batch.segment] = self._batches.get(batch.segment, (0, 0.0))[0] + 1, batch.start
            self._measure(governed)
        if not seconds > 0 or math.isnan(sample.offered):
            return
        if self._target is not None:
            if not self._batches:
                self._budget = self._service.budget(self._target, LIMIT_S if governed else None)
            self._constant.add(sample.offered, seconds, self._budget)
        if kind is None or not self._service.waits or not self.work.each > 0:
            return
        error = self.error
        for fleet, offset in zip(self._dynamic, OFFSETS, strict=True):
            fleet.add(sample, seconds, kind, self._host_rate(kind, offset * error), self._service.shortest, most)

    def _measure(self, governed: bool) -> None:
        """Derive from batches how long records may wait, and hosts' overhead with its error."""
        target = self._target or 0.0
        limit = LIMIT_S if governed else None
        self._budget = self._service.budget(target, limit)
        needs = self._service.needs(target, limit, margin=1.0)  # no margin: the load is known in hindsight
        # Several queries use the cores that one of them leaves idle.
        self._overhead = 1.0 if len(self._batches) > 1 else FIRST_OVERHEAD, 1 - 1 / FIRST_OVERHEAD
        if needs.size:
            usual = min(max(float(np.median(needs)), 1.0), MOST_OVERHEAD)
            self._overhead = usual, float(np.std(needs)) / math.sqrt(needs.size) / usual

    @property
    def error(self) -> float:
        """Return the relative error of the cores that a record needs."""
        return math.hypot(self.work.spread, self._overhead[1])

    def _host_rate(self, kind: HostType, more: float = 0.0) -> float:
        """Return the records/s of a host; `more`: relative increase of the work per record."""
        return kind.cores * kind.speed / (self.work.each * self._overhead[0] * max(0.1, 1 + more))

    def _hosts(self, rate: float, kind: HostType, more: float) -> int:
        each = self._host_rate(kind, more)
        tasks, fewest = self._tasks if self._batches else Tasks(), int(hosts_for(rate, each))
        enough = (n for n in range(fewest, 2 * fewest) if n * each >= rate * tasks.unevenness(n * kind.width))
        return next(enough, fewest)

    def provision(self, kind: HostType, more: float = 0.0) -> Provision | None:
        return self.work.provision(kind, more)

    def fleets(self, types: Sequence[HostType], time: float) -> tuple[FleetCost, ...]:
        """Return the costs until `time` of the known fleets, with hosts of the first of `types`."""
        if not types:
            return ()
        kind, fleets, error = types[0], [], self.error

        def constant(name: str, hosts: Sequence[float]) -> FleetCost:
            cost, low, high = (Provision(round(count)).cost(kind, time) for count in hosts)
            return FleetCost(name, hosts[0], known_cost(cost, types[:1]), (high - low) / 2)

        peaks = [self.provision(kind, offset * error) for offset in OFFSETS]
        if peaks[0] is not None:
            fleets.append(constant(PEAK, [each.hosts for each in peaks if each is not None]))
            least = self._constant.least(1 - IN_TIME)
            if least > 0:
                fleets.append(constant(CONSTANT, [self._hosts(least, kind, at * error) for at in OFFSETS]))
        if self._service.waits and peaks[0] is not None:
            costs = [each.cost(kind, time) for each in self._dynamic]
            fleets.append(FleetCost(DYNAMIC, math.nan, known_cost(costs[0], types[:1]), (max(costs) - min(costs)) / 2))
        return tuple(fleets)

    def to_json(self) -> dict[str, Any]:
        constant, service = self._constant, self._service
        return {
            "time": self._time,
            "work": self.work.to_json(),
            "service": [[*map(list, service.shown)], list(service.waits)],
            "shortest": service.shortest if service.waits else None,
            "overhead": [self._budget, *self._overhead],
            "batches": {name: list(each) for name, each in self._batches.items()},
            "constant": [constant.top, constant.arrived, constant.waiting.tolist(), constant.late.tolist()],
            "tasks": self._tasks,
            "dynamic": [asdict(each) for each in self._dynamic],
        }

    @classmethod
    def of_json(cls, target: float | None, fields: Mapping[str, Any]) -> "Savings":
        savings = cls(target)
        savings._time, savings.work = float(fields["time"]), Work.of_json(target, fields["work"])
        shown, waits, *old = fields["service"]  # an earlier form had three lists
        shortest = math.inf if fields["shortest"] is None else float(fields["shortest"])
        savings._service = Service(() if old else tuple(map(tuple, shown)), tuple(waits), shortest)
        savings._budget, *overhead = fields["overhead"]
        savings._overhead = overhead[0], overhead[1]
        savings._batches = {name: (int(count), float(start)) for name, (count, start) in fields["batches"].items()}
        savings._tasks = Tasks(*fields["tasks"])
        top, arrived, waiting, late = fields["constant"]
        savings._constant = ConstantFleets(top, arrived, np.array(waiting), np.array(late))
        savings._dynamic = tuple(
            DynamicFleet(**{**each, "leases": [tuple(lease) for lease in each["leases"]]}) for each in fields["dynamic"]
        )
        return savings

    def copy(self) -> "Savings":
        return Savings.of_json(self._target, self.to_json())


def savings_text(fleets: Iterable[FleetCost]) -> str:
    return "; ".join(str(each) for each in fleets if not math.isnan(each.cost))


def savings_of(recording: "Recording", before: Savings) -> Savings:
    savings, header = before.copy(), recording.header
    kind = recording.host_types[0] if recording.host_types else None
    governed = all(each.get("governed", False) for each in header.operators if each["kind"] == "source")
    for sample in _samples(recording):
        savings.add(sample, kind, header.max_hosts, governed=governed)
    return savings


def _sample(observation: Observation) -> Sample:
    hosts, operators, context = observation.hosts, observation.operators, observation.context
    of_hosts = [hosts.value(name, Metric.CPU) * observation.capacities[name] for name in hosts]
    of_operators = [observation.mean_speed * operators.value(name, Metric.BUSY_CORES) for name in operators]
    stateful = {name for stage in context.layout.stages if stage.keyed for name in stage.operators}
    keyed = [each for name, each in zip(operators, of_operators, strict=True) if name in stateful]
    slots = observation.cores.slots(observation.working)[0]
    return Sample(
        observation.time,
        observation.overall(Metric.ARRIVAL_RATE),
        observation.overall(Metric.THROUGHPUT),
        _most(known_sum(of_hosts), known_sum(of_operators)),
        observation.cores.of(observation.working),
        len(context.layout.segments) == 1 and slots > 0 and not any(each % slots for each in stateless_tasks(observation)),
        observation.time - observation.since_change,
        observation.composition.version,
        slots,
        Tasks(widest(observation), _share(known_sum(keyed), known_sum(of_operators))),
        observation.batches,
    )


def _samples(recording: "Recording") -> Iterable[Sample]:
    times, header = recording.times, recording.header
    capacity, slots, since = np.zeros((3, len(times)))
    for lease in recording.hosts:
        for (begin, state), (end, _) in pairwise([*lease.history, (math.inf, lease.state)]):
            if state in (HostState.RUNNING, HostState.DRAINING):
                first, last = np.searchsorted(times, [begin, end])
                slots[first:last] += lease.type.width
                since[first:] = np.maximum(since[first:], begin)
                capacity[first:last] += lease.type.cores * lease.type.speed
    one = len({stage["segment"] for stage in header.stages}) == 1
    waits = {str(each["name"]) for each in header.operators if each["waits"]}
    comparable = (slots > 0) & one
    for stage in header.stages:
        tasks = recording.series.composed.column(stage["name"], "parallelism", len(times))
        if not stage["keyed"] and stage["name"] not in waits:
            comparable &= ~(np.nan_to_num(tasks) % np.maximum(slots, 1) > 0)
    stateful = [stage for stage in header.stages if stage["keyed"]]
    widths = [recording.operator(stage["name"], Metric.PARALLELISM) for stage in stateful]
    tasks = np.nan_to_num(np.max(widths, axis=0)) if widths else np.zeros(len(times))
    busy = {name: recording.operator(name, Metric.BUSY_CORES) for name in recording.operators}
    keyed = _summed(busy[name] for stage in stateful for name in stage["operators"]) + 0 * times
    total = _summed(busy.values()) + 0 * times
    version = np.full(len(times), math.nan)
    for number, query, composition in recording.series.compositions:
        if not query:
            version[number:] = composition["version"]
    offered, processed = recording.application(Metric.ARRIVAL_RATE), recording.application(Metric.THROUGHPUT)
    columns = (
        times,
        offered,
        processed,
        _busy(recording),
        capacity,
        comparable,
        since,
        version,
        slots,
        tasks,
        keyed,
        total,
    )
    ends, batches, upto = np.append(times[:-1], math.inf) if len(times) else times, recording.batches, 0
    for end, row in zip(ends.tolist(), zip(*(column.tolist() for column in columns), strict=True), strict=True):
        first = upto
        while upto < len(batches) and batches[upto].end <= end:
            upto += 1
        time, arrived, done, cores, host_count, alike, changed, number, width, wide, part, all_ = row
        of = Tasks(round(wide) or SHUFFLE_PARTITIONS, _share(part, all_))
        yield Sample(time, arrived, done, cores, host_count, alike, changed, number, width, of, batches[first:upto])


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 and part == part else 0.0


def _most(of_hosts: float, of_operators: float) -> float:
    return of_operators if math.isnan(of_hosts) else float(np.fmax(of_hosts, of_operators))


def _busy(recording: "Recording") -> Floats:
    speeds = {lease.host: _speed(recording, lease.host, lease.type.speed) for lease in recording.hosts}
    of_hosts = _summed(
        recording.host(lease.host, Metric.CPU) * lease.type.cores * speeds[lease.host] for lease in recording.hosts
    )
    speed = np.mean([*speeds.values()], axis=0) if speeds else 1.0
    of_operators = speed * _summed(recording.operator(name, Metric.BUSY_CORES) for name in recording.operators)
    busy = np.where(np.isnan(of_hosts), of_operators, np.fmax(of_hosts, of_operators))
    return np.broadcast_to(busy, recording.times.shape)


def _speed(recording: "Recording", host: str, nominal: float) -> Floats:
    measured = recording.host(host, Metric.SPEED)
    return np.where(np.isnan(measured), nominal, measured)


def _summed(columns: Iterable[Floats]) -> Floats:
    total: Floats | float = np.nan
    for column in columns:
        total = np.where(np.isnan(total), column, total + np.nan_to_num(column))
    return np.asarray(total)
