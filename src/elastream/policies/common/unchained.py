"""Sizing of operators whose instances reserve cores: instances by each operator's own work, hosts by their instances.

A slow operator hides the load of those after it, so rates follow from the sources and selectivities.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elastream.core.action import Action, ReleaseHost
from elastream.core.decision import Unknown
from elastream.core.frames import Frame
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Observation
from elastream.core.qos import live_edges, rates_over
from elastream.core.task_id import TaskId
from elastream.core.wording import counted
from elastream.dataflow.operators import Kind, Operator
from elastream.dataflow.stages import Unit
from elastream.policies.common.draft import Draft
from elastream.policies.common.measures import due_back, mean_and_least, speeds_by_operator
from elastream.policies.common.sizing import WITHIN
from elastream.units import ROUNDING

# Records from which their mean cost is used: it is off by a tenth if single records vary by their mean.
ENOUGH = 100.0
# Cores that sums of decimal fractions may be off by.
CORE_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class CoreNeed:
    """Need of an operator in cores of speed 1.

    Attributes:
        drain: Cores for the late records in queues before it.
    """

    cores: float
    drain: float
    per_instance: float

    def instances(self, utilisation: float) -> int:
        return max(1, math.ceil((self.cores + self.drain) / (self.per_instance * utilisation) - ROUNDING))


def needs_of(
    observation: Observation, units: Sequence[Unit], rate: float, arriving: float, start: float, ahead: float
) -> tuple[dict[str, CoreNeed], tuple[Unknown, ...]]:
    """Return the need of each unit (one operator each), and the metrics that prevent one.

    Args:
        arriving: Records/s at which the newest figures were measured.
        start: Start of a host (seconds). Late records are processed within the target latency, or `start` if longer.
        ahead: Seconds for which queues grow until a host leased now works; 0 if hosts are coming.
    """
    graph, frame = observation.context.graph, observation.operators
    speeds = speeds_by_operator(observation)
    anywhere = mean_and_least([observation.speeds[host] for host in observation.usable])
    costs = {unit.name: _cost(observation, unit.name, speeds.get(unit.name, anywhere)[0]) for unit in units}
    selectivity = {o.name: _selectivity(observation, o.name) for o in graph.operators if o.kind is not Kind.SINK}
    growth = rate / arriving if arriving > 0 else 0.0
    rates = {source.name: growth * frame.value(source.name, Metric.ARRIVAL_RATE) for source in graph.sources}
    if arriving == 0:
        rates = dict.fromkeys(rates, 0.0)
    per_source = {name: value for name, value in selectivity.items() if graph.by_name[name].kind is not Kind.SOURCE}
    live = live_edges(graph, observation.composition)
    offered = rates_over(graph, live, rates, per_source)
    backlogs = {unit.name: frame.value(unit.name, Metric.BACKLOG) for unit in units}
    waiting = {name: 0.0 if math.isnan(value) else value for name, value in backlogs.items()}
    pending = rates_over(graph, live, waiting, per_source)
    target = observation.context.target_latency
    needs: dict[str, CoreNeed] = {}
    unknown: list[Unknown] = []
    for unit in units:
        name = unit.name
        speed, slowest = speeds.get(name, anywhere)
        own = (unit.cores or 1.0) * slowest  # instances get equal shares of the records, so the slowest host counts
        cost, busy = costs[name], frame.value(name, Metric.BUSY_CORES) * speed
        if math.isnan(offered[name]):
            continue
        if math.isnan(cost) and offered[name] > 0:
            unknown.append(Unknown(Metric.SERVICE_TIME, Rows.OPERATOR, name))
            continue
        cores = 0.0 if math.isnan(cost) else offered[name] * cost
        same = not _switches(observation, graph.by_name[name])
        if same and pending[name] <= offered[name] and busy >= 0 and arriving > 0:
            # Without a queue its busy cores are its need: a join takes two records for one that it finishes.
            cores = min(cores, busy * growth)
        late = 0.0
        if target is not None and cost > 0:
            processed = max(1.0, frame.value(name, Metric.PARALLELISM)) * own / cost
            late = _late_records(pending[name], offered[name], processed, ahead, target)
        needs[name] = CoreNeed(cores, late * cost / max(target or 0.0, start) if late > 0 else 0.0, own)
    return needs, tuple(unknown)


def _late_records(queued: float, offered: float, processed: float, ahead: float, target: float) -> float:
    """Return the records beyond what the target latency allows to wait, `ahead` seconds from now."""
    if queued > offered:
        queued = max(0.0, queued + (offered - processed) * ahead)
    return max(0.0, queued - offered * target * WITHIN)


def may_enlarge(observation: Observation, targets: Mapping[str, int], instances: Mapping[str, int], spare: int) -> bool:
    """Return True if `enlarge` may have something to do. Cheaper than a draft."""
    if spare > 0 or len(observation.usable) + len(observation.coming) < observation.context.min_hosts:
        return True
    return any(count > instances[name] > 0 for name, count in targets.items())


def may_reduce(
    observation: Observation, units: Sequence[Unit], instances: Mapping[str, int], surplus: Mapping[str, int], pace: float
) -> bool:
    """Return True if a host is due back and the free cores would suffice for its instances."""
    if observation.draining:
        return True  # once these hosts are empty, the room on them counts as free
    reserved = sum((instances[unit.name] - surplus.get(unit.name, 0)) * unit.cores for unit in units)
    whole, least = observation.usable_cores
    free = whole - reserved
    if not least <= free + CORE_TOLERANCE:
        return False
    running = (observation.leases[host] for host in observation.usable)
    return any(lease.type.cores <= free + CORE_TOLERANCE and due_back(lease, observation.time, pace) for lease in running)


def enlarge(
    draft: Draft,
    targets: Mapping[str, int],
    surplus: Mapping[str, int],
    why: Mapping[str, str],
    host_type: str | None,
    spare: int,
) -> None:
    """Add instances up to `targets`: on hosts with room, instead of `surplus` ones, on new hosts.

    The operators with the smallest part of their target come first, so that `max_hosts` is shared by need.
    """
    observation = draft.observation
    by_name = {unit.name: unit for unit in draft.scalable}
    open_for = [name for name in targets if targets[name] > draft.instances[name] > 0]
    while open_for:
        name = min(open_for, key=lambda each: draft.instances[each] / targets[each])
        unit = by_name[name]
        row = _roomiest(draft, unit)
        if row is None and (task := _surplus(draft, unit, surplus)) is not None:
            draft.remove(task, "its work has fitted fewer instances for long enough")
            row = _roomiest(draft, unit)
        if row is None and draft.may_lease:
            kind = draft.cheapest_type(unit, host_type)
            if kind is not None:
                draft.lease(kind, why[name])
                row = len(draft.hosts) - 1
        if row is None:
            open_for.remove(name)
            continue
        draft.add(unit, draft.hosts[row], why[name])
        if draft.instances[name] >= targets[name]:
            open_for.remove(name)
    least = max(0, observation.context.min_hosts - len(draft.hosts))
    if spare > 0:
        idle = sum(not draft.tasks_on(host) and host not in draft.received for host in draft.hosts)
        least = max(least, spare - idle)
    for _ in range(least):
        kind = draft.cheapest_type(max(draft.units, key=lambda each: each.cores), host_type)
        if kind is not None and draft.may_lease:
            draft.lease(kind, f"{counted(spare, 'spare host')}, at least {counted(observation.context.min_hosts, 'host')}")


def reduce(draft: Draft, surplus: Mapping[str, int], pace: float, spare: int) -> list[Action]:
    """Empty hosts that are due back if their instances fit on the others. Return the releases.

    A surplus instance is removed only where that frees a host; on a paid host it costs nothing.
    """
    observation = draft.observation
    by_name = {unit.name: unit for unit in draft.scalable}
    releases: list[Action] = []
    fit = _may_fit(draft, by_name, surplus)  # rules out most hosts in most rounds
    candidates = [
        host
        for host, lease in observation.leases.items()
        if lease.state is HostState.RUNNING and fit[draft.row(host)] and due_back(lease, observation.time, pace)
    ]
    if not candidates:
        return releases
    candidates.sort(key=lambda host: (len(draft.tasks_on(host)), -observation.leases[host].since))
    left = dict(surplus)
    idle = sum(not draft.tasks_on(host) for host in draft.hosts if draft.is_ready(host))
    for host in candidates:
        if draft.open_hosts <= max(1, observation.context.min_hosts):
            break
        empty = not draft.tasks_on(host)
        if empty and idle <= spare:
            continue
        if not fit[draft.row(host)]:
            continue
        mark, before = draft.mark(), dict(left)
        if _emptied(draft, host, by_name, left):
            draft.close(host)
            fit = _may_fit(draft, by_name, left)
            idle -= empty
            releases.append(ReleaseHost(host, why="its instances fit on the other hosts, and what is paid of it ends"))
        else:
            draft.rollback(mark)
            left = before
    return releases


def _may_fit(draft: Draft, by_name: Mapping[str, Unit], left: Mapping[str, int]) -> NDArray[np.bool_]:
    """Return by host: True if the free cores suffice for its instances, less `left` ones."""
    free = draft.free_cores[draft.ready & ~draft.closed].sum()
    surplus = math.fsum(max(0, count) * by_name[name].cores for name, count in left.items() if name in by_name)
    # The instances of a host must fit into the free cores of the other hosts.
    return np.asarray(draft.cores <= free + surplus + 1e-6)


def _emptied(draft: Draft, host: str, by_name: Mapping[str, Unit], left: dict[str, int]) -> bool:
    """Remove or move every instance on `host`; update `left`. Return False if one finds no room."""
    why = f"{host} goes back"
    for task in list(draft.tasks_on(host)):
        unit = draft.unit_of(task)
        if unit.name in by_name and left.get(unit.name, 0) > 0:
            left[unit.name] -= 1
            draft.remove(task, why)
            continue
        row = _roomiest(draft, unit, without=host)
        if row is None and (other := _surplus(draft, unit, left, without=host)) is not None:
            left[draft.unit_of(other).name] -= 1
            draft.remove(other, why)
            row = _roomiest(draft, unit, without=host)
        if row is None:
            return False
        draft.move(task, draft.hosts[row], why)
    return host not in draft.received


def _roomiest(draft: Draft, unit: Unit, without: str | None = None) -> int | None:
    """Return the row of the host with most room, running hosts first; `without` excludes starting ones and one row."""
    rows = [
        row
        for row in (draft.feasibility(unit) >= 1).nonzero()[0].tolist()
        if draft.hosts[row] != without and (without is None or draft.ready[row])
    ]
    return max(rows, key=lambda row: (draft.ready[row], draft.free_cores[row]), default=None)


def _surplus(draft: Draft, unit: Unit, surplus: Mapping[str, int], without: str | None = None) -> TaskId | None:
    others = {name for name, n in surplus.items() if n > 0 and name != unit.name and draft.instances[name] > 1}
    if not others:
        return None
    for host in draft.hosts:
        if host == without or not draft.is_ready(host):
            continue
        room = draft.free_cores[draft.row(host)]
        for task in draft.tasks_on(host):
            other = draft.unit_of(task)
            if other.name in others and room + other.cores >= unit.cores - ROUNDING:
                return task
    return None


def _cost(observation: Observation, name: str, speed: float) -> float:
    """Return the core-seconds per record: over samples with ENOUGH records of the alternate, else declared, else NaN."""
    operator = observation.context.graph.by_name[name]
    if _switches(observation, operator):
        alternate = observation.composition.alternate(operator)
        own = observation.alternates.value(f"{name}.{alternate.name}", Metric.SERVICE_TIME) * speed
        if not math.isnan(own):
            return own
        if alternate.cost is not None:
            return alternate.cost
    times = [sample.time for sample in observation.history[-1:]]
    lasts = observation.time - times[0] if times else 1.0
    work = records = 0.0
    for frame in _newest_first(observation):
        cost, done = frame.value(name, Metric.SERVICE_TIME), frame.value(name, Metric.PROCESSED_RATE)
        if cost > 0 and done > 0:
            work, records = work + cost * done, records + done
        if records * lasts >= ENOUGH:
            break
    declared = observation.composition.alternate(operator).cost
    if declared is None:
        return work / records * speed if records > 0 else math.nan
    # Until enough is measured, the declared cost makes up for the rest.
    share = min(1.0, records * lasts / ENOUGH)
    return share * (work / records * speed if records > 0 else 0.0) + (1 - share) * declared


def _newest_first(observation: Observation) -> Iterator[Frame]:
    yield observation.operators
    for sample in reversed(observation.history):
        yield sample.operators


def _switches(observation: Observation, operator: Operator) -> bool:
    return len(operator.alternates) > 1 and not observation.composition.tables.get(operator.name, 0)


def _selectivity(observation: Observation, name: str) -> float:
    operator = observation.context.graph.by_name[name]
    if _switches(observation, operator):
        alternate = observation.composition.alternate(operator)
        own = observation.alternates.value(f"{name}.{alternate.name}", Metric.SELECTIVITY)
        if not math.isnan(own):
            return own
        if alternate.selectivity is not None:
            return alternate.selectivity
    for frame in _newest_first(observation):
        emitted, done = frame.value(name, Metric.EMITTED_RATE), frame.value(name, Metric.PROCESSED_RATE)
        if done > 0 and not math.isnan(emitted):
            return emitted / done
    if not operator.alternates:
        return 1.0
    declared = observation.composition.alternate(operator).selectivity
    return 1.0 if declared is None else declared
