"""Sizes operators whose instances reserve cores on hosts: each by its own work and queue, and hosts by their instances.

Where an operator holds the others up, what reaches those after it says nothing: rates follow from the sources' and from the
records that each operator emits per record.
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
from elastream.policies.common.billing import due_back
from elastream.policies.common.draft import Draft
from elastream.policies.common.measures import mean_and_least, speeds_by_operator
from elastream.policies.common.sizing import WITHIN
from elastream.units import ROUNDING

ENOUGH = 100.0
"""Records from which their mean cost is taken: it is off by a tenth where single ones vary by their mean."""
CORE_TOLERANCE = 1e-5
"""Error of sums of cores."""


@dataclass(frozen=True, slots=True)
class CoreNeed:
    """What an operator needs, in cores of speed 1. cores: for the records that arrive. drain: for those late in queues
    before it. per_instance: cores of one instance."""

    cores: float
    drain: float
    per_instance: float

    def instances(self, utilisation: float) -> int:
        """Instances filled to `utilisation`, at least one."""
        return max(1, math.ceil((self.cores + self.drain) / (self.per_instance * utilisation) - ROUNDING))


def needs_of(
    observation: Observation, units: Sequence[Unit], rate: float, arriving: float, start: float, ahead: float
) -> tuple[dict[str, CoreNeed], tuple[Unknown, ...]]:
    """Need of each unit (one operator each) at `rate` records/s of all sources, and metrics whose lack leaves one without.

    arriving: the rate at which the newest figures were measured. start: of a host, seconds: what is late is worked off
    within the target latency, or within `start` if that is longer. ahead: seconds for which queues grow until a host
    leased now works; 0 where hosts are coming, that were asked for with this in mind.
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
    found: dict[str, CoreNeed] = {}
    unknown: list[Unknown] = []
    for unit in units:
        name = unit.name
        speed, slowest = speeds.get(name, anywhere)
        own = (unit.cores or 1.0) * slowest  # each takes as many records as the others
        cost, busy = costs[name], frame.value(name, Metric.BUSY_CORES) * speed
        if math.isnan(offered[name]):
            continue
        if math.isnan(cost) and offered[name] > 0:
            unknown.append(Unknown(Metric.SERVICE_TIME, Rows.OPERATOR, name))
            continue
        cores = 0.0 if math.isnan(cost) else offered[name] * cost
        same = not _switches(observation, graph.by_name[name])
        if same and pending[name] <= offered[name] and busy >= 0 and arriving > 0:
            # With no queue to speak of, what it works is what it needs: a join takes two records for one that it finishes.
            cores = min(cores, busy * growth)
        drain = 0.0
        if target is not None and cost > 0:
            instances = max(1.0, frame.value(name, Metric.PARALLELISM))
            queued = pending[name]
            if queued > offered[name]:
                queued = max(0.0, queued + (offered[name] - instances * own / cost) * ahead)
            late = max(0.0, queued - offered[name] * target * WITHIN)
            drain = late * cost / max(target, start)
        found[name] = CoreNeed(cores, drain, own)
    return found, tuple(unknown)


def lacks(observation: Observation, wanted: Mapping[str, int], instances: Mapping[str, int], spare: int) -> bool:
    """Whether `enlarge` could have anything to do: most rounds have nothing, and a draft costs more than this."""
    if spare > 0 or len(observation.usable) + len(observation.coming) < observation.context.min_hosts:
        return True
    return any(count > instances[name] > 0 for name, count in wanted.items())


def may_reduce(
    observation: Observation,
    units: Sequence[Unit],
    instances: Mapping[str, int],
    surplus: Mapping[str, int],
    pace: float,
) -> bool:
    """Whether `reduce` could empty a host: one is due back, and by their cores in sum its instances fit on the others."""
    if observation.draining:
        return True  # what is on those counts as free room as soon as they are empty
    taken = sum((instances[unit.name] - surplus.get(unit.name, 0)) * unit.cores for unit in units)
    whole, least = observation.usable_cores
    free = whole - taken
    if not least <= free + CORE_TOLERANCE:
        return False
    running = (observation.leases[host] for host in observation.usable)
    return any(lease.type.cores <= free + CORE_TOLERANCE and due_back(lease, observation.time, pace) for lease in running)


def enlarge(
    draft: Draft,
    wanted: Mapping[str, int],
    surplus: Mapping[str, int],
    why: Mapping[str, str],
    host_type: str | None,
    spare: int,
) -> None:
    """Add instances up to `wanted`: on hosts with room, those that are up first; in place of `surplus` ones; on new hosts.

    Those whose need is filled least come first, so that what `max_hosts` allows is shared by need.
    """
    observation = draft.observation
    by_name = {unit.name: unit for unit in draft.scalable}
    open_for = [name for name in wanted if wanted[name] > draft.instances[name] > 0]
    while open_for:
        name = min(open_for, key=lambda each: draft.instances[each] / wanted[each])
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
        if draft.instances[name] >= wanted[name]:
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
    """Empty hosts whose paid time ends, as far as the instances that stay fit on the others; returns their releases.

    Surplus instances go only where that frees a host: on a host that is paid they cost nothing.
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
    """Whether the instances on each host could fit on the others by their cores in sum, `left` instances less."""
    free = draft.free_cores[draft.ready & ~draft.closed].sum()
    surplus = math.fsum(max(0, count) * by_name[name].cores for name, count in left.items() if name in by_name)
    # What a host's instances take must fit on what is free of the others.
    return np.asarray(draft.cores <= free + surplus + 1e-6)


def _emptied(draft: Draft, host: str, by_name: Mapping[str, Unit], left: dict[str, int]) -> bool:
    """Whether every instance on `host` was removed, as far as `left` allows, or moved; changes both."""
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
    """Row of the host with room for an instance and the most of it, those that are up first; to move to, only these."""
    rows = [
        row
        for row in (draft.feasibility(unit) >= 1).nonzero()[0].tolist()
        if draft.hosts[row] != without and (without is None or draft.ready[row])
    ]
    return max(rows, key=lambda row: (draft.ready[row], draft.free_cores[row]), default=None)


def _surplus(draft: Draft, unit: Unit, surplus: Mapping[str, int], without: str | None = None) -> TaskId | None:
    """A surplus instance of another operator, whose host has room for one of `unit` in its place; None if there is none."""
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
    """Core-seconds of speed 1 per record: as measured over the newest samples, else as declared; NaN if neither is known.

    Of as many samples as give `ENOUGH` records, since single records differ. Of several alternates the own cost of the one
    that is wanted counts: what the others cost says nothing.
    """
    operator = observation.context.graph.by_name[name]
    if _switches(observation, operator):
        wanted = observation.composition.alternate(operator)
        own = observation.alternates.value(f"{name}.{wanted.name}", Metric.SERVICE_TIME) * speed
        if not math.isnan(own):
            return own
        if wanted.cost is not None:
            return wanted.cost
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
    """The operators now, and as they were before; mostly the first will do."""
    yield observation.operators
    for sample in reversed(observation.history):
        yield sample.operators


def _switches(observation: Observation, operator: Operator) -> bool:
    """Whether one of several alternates runs for all records, so that its own figures are those of the operator."""
    return len(operator.alternates) > 1 and not observation.composition.tables.get(operator.name, 0)


def _selectivity(observation: Observation, name: str) -> float:
    """Records out per record in: as measured last, else as declared, else 1."""
    operator = observation.context.graph.by_name[name]
    if _switches(observation, operator):
        wanted = observation.composition.alternate(operator)
        own = observation.alternates.value(f"{name}.{wanted.name}", Metric.SELECTIVITY)
        if not math.isnan(own):
            return own
        if wanted.selectivity is not None:
            return wanted.selectivity
    for frame in _newest_first(observation):
        emitted, done = frame.value(name, Metric.EMITTED_RATE), frame.value(name, Metric.PROCESSED_RATE)
        if done > 0 and not math.isnan(emitted):
            return emitted / done
    if not operator.alternates:
        return 1.0
    declared = observation.composition.alternate(operator).selectivity
    return 1.0 if declared is None else declared
