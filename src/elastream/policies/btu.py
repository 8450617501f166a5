"""VISP's policy by billing time unit (BTU): a host stays until its paid time ends, then is released or renewed.

From "Cost-efficient enactment of stream processing topologies" (Hochreiner et al., PeerJ CS 2017), Algorithms 1 to 3 and
Figures 4 and 5.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from elastream.core.action import CancelDrain, DrainHost, ReleaseHost, RenewHost
from elastream.core.decision import Unknown
from elastream.core.frames import Floats
from elastream.core.hosts import HostState, Lease
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Context, Observation
from elastream.core.plant import Plan, Policy
from elastream.core.task_id import TaskId
from elastream.dataflow.operators import Kind
from elastream.dataflow.stages import Unit
from elastream.policies.common.draft import Draft
from elastream.policies.common.measures import missing_type_reason
from elastream.policies.common.queues import fixed_queue, fixed_waits, measured_at, service_levels, waiting
from elastream.units import ROUNDING


@dataclass(frozen=True, slots=True)
class DownscalingWeights:
    """Constants of Algorithm 3: W1 to W4, the queue load QL, and the penalty P for one delayed item."""

    instances: float = 1.0
    queue_load: float = 1.0
    delay: float = 1.0
    scalings: float = 1.0
    idle_bonus: float = 100.0
    penalty: float = 0.0001


def predicted_duration(durations: Sequence[float] | Floats) -> float:
    """Return the duration one observation ahead (s), by least squares over the last N (Algorithm 1, lines 5 to 9).

    The paper numbers observations backwards and lacks a minus sign. Corrected: beta = sum((i - mean i) (d_i - mean d)) /
    sum((i - mean i)^2), i = 1 (oldest) to N, extended to N + 1. NaN if fewer than two durations are known.
    """
    values = np.asarray(durations, dtype=np.float64)
    index = np.arange(1.0, len(values) + 1)
    valid = ~np.isnan(values)
    if valid.sum() < 2:
        return float("nan")
    observation_mean, duration_mean = index[valid].mean(), values[valid].mean()
    deviation = index[valid] - observation_mean
    slope = float((deviation * (values[valid] - duration_mean)).sum() / (deviation**2).sum())
    return float(duration_mean - slope * observation_mean) + slope * (len(values) + 1)


def needs_upscaling(
    duration: float, service_level: float, durations: Sequence[float] | Floats, queue: float, scaling_threshold: float
) -> bool:
    """Return True if an operator needs one more instance (Algorithm 1). NaN exceeds nothing."""
    delayed = duration > service_level or predicted_duration(durations) > service_level
    return delayed and queue > scaling_threshold


def host_suitability(draft: Draft, unit: Unit, cache_factor: float) -> Floats:
    """Return the suitability of each host for one more instance (Algorithm 2); lowest is best, -1 infeasible.

    feasibility = min(h_cpu* / o_cpu, h_memory* / o_memory); difference = |remaining cpu / h_cpu - remaining memory /
    h_memory|; suitability = difference / feasibility, times CF if the host has the image. The pseudocode lacks signs and
    divisions that its prose gives.
    """
    feasibility = draft.feasibility(unit)
    cores, memory = draft.needs[unit.name]
    remaining_cores = (draft.free_cores - cores) / draft.cores
    remaining_memory = (draft.free_memory - memory) / draft.memory
    fits = feasibility >= 1
    suitability = np.abs(remaining_cores - remaining_memory) / np.where(fits, feasibility, 1.0)
    suitability = np.where(draft.cached(unit), suitability * cache_factor, suitability)
    return np.where(fits, suitability, -1.0)


def best_host(draft: Draft, unit: Unit, cache_factor: float, *, ready: bool = False) -> str | None:
    """Return the most suitable host, the older lease on a tie; None if none fits.

    Args:
        ready: Running hosts only, as migrations must not wait for a boot.
    """
    suitability = host_suitability(draft, unit, cache_factor)
    if ready:
        suitability = np.where(draft.ready, suitability, -1.0)
    ranked = np.where(suitability >= 0, suitability, np.inf)
    if not len(ranked) or np.isinf(ranked.min()):
        return None
    return draft.hosts[int(ranked.argmin())]


def downscaling_utility(
    instances: int,
    all_instances: Sequence[int],
    duration: float,
    service_level: float | None,
    scalings: float,
    all_scalings: float,
    queue: float,
    weights: DownscalingWeights,
) -> float:
    """Return the utility of removing an instance (Algorithm 3); the highest goes first, negative means not allowed.

    1 + W1 instances + W2 queue load - W3 delay - W4 scalings, with
    instances = (o# - min O#) / (max O# - min O#), 0 if all are equal;
    queue load = QL if less than one item waits, else 0;
    delay = o_d / o_slo (1 + P), 0 without a service level;
    scalings = o_s / sum of O_s, 0 before any.
    Unknown durations or queues (not in the paper) forbid the removal.
    """
    if instances < 2 or math.isnan(queue):
        return -1.0
    least, most = min(all_instances), max(all_instances)
    relative_instances = (instances - least) / (most - least) if most > least else 0.0
    queue_load = weights.idle_bonus if queue < 1 else 0.0
    delay = 0.0 if service_level is None else duration / service_level * (1 + weights.penalty)
    if math.isnan(delay):
        return -1.0
    relative_scalings = scalings / all_scalings if all_scalings > 0 and not math.isnan(scalings) else 0.0
    return (
        1
        + weights.instances * relative_instances
        + weights.queue_load * queue_load
        - weights.delay * delay
        - weights.scalings * relative_scalings
    )


def last_duration(observation: Observation, operator: str) -> float:
    """Return an operator's last known duration (o_d), or NaN. It holds until the next item, however rare items are."""
    for operators in (observation.operators, *(sample.operators for sample in reversed(observation.history))):
        duration = operators.value(operator, Metric.DURATION)
        if not math.isnan(duration):
            return duration
    return math.nan


@dataclass(frozen=True, slots=True)
class BtuMemory:
    scaled: float = 0.0  # time of the last scale-up
    # end of the paid time that each host was renewed for, so that it is decided once per unit (Figure 5)
    renewed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Btu(Policy):
    """VISP's policy: scale up late operators (Figure 4), then release or renew hosts whose paid time ends (Figure 5).

    Args:
        scaling_threshold: Waiting items above which an operator scales up (paper: 50).
        observations: N of Algorithm 1, not in the paper.
        cache_factor: CF (paper: 0.01).
        weights: Of Algorithm 3 (paper: 1, QL 100, P 0.0001).
        window: Last fraction of the paid time in which a host is decided on (paper: 5 %).
        release_share: Largest fraction of an operator's instances removed with one host (paper: 20 %).
        partial_release: True removes dispensable instances from a host that cannot be emptied; an extension of the paper.
        period: Time between plans (s).
        scaling: Time between scale-up rounds (s; paper: 60). None: every plan.
        host_type: Type to lease; None for the cheapest per core that fits.
    """

    scaling_threshold: float = 50.0
    observations: int = 4
    cache_factor: float = 0.01
    weights: DownscalingWeights = field(default_factory=DownscalingWeights)
    window: float = 0.05
    release_share: float = 0.2
    partial_release: bool = False
    period: float = 60.0
    scaling: float | None = None
    host_type: str | None = None

    needs: ClassVar[Needs] = frozenset(
        {(Rows.OPERATOR, Metric.BACKLOG), (Rows.OPERATOR, Metric.DURATION), (Rows.OPERATOR, Metric.SCALINGS)}
    )
    name: ClassVar = "btu"

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Return the plan of this round; a host that receives an instance in it stays."""
        draft, now = Draft(observation), observation.time
        before = memory if isinstance(memory, BtuMemory) else BtuMemory()
        levels = service_levels(observation.context)
        late = [unit for unit in draft.scalable if self.is_late(observation, unit, levels)]
        scales = self.scaling is None or now // self.scaling > before.scaled // self.scaling
        for unit in late if scales else ():
            self._upscale(draft, unit, late)
        self._finish_draining(draft)
        renewed = {host: end for host, end in before.renewed.items() if host in draft.leases}
        ending = [
            lease
            for lease in draft.leases.values()
            if self.ends_soon(lease, now) and lease.paid_until(now) > renewed.get(lease.host, 0.0) + ROUNDING
        ]
        for lease in sorted(ending, key=lambda lease: (lease.remaining(now), lease.since)):
            if not self._release(draft, lease.host, late):
                draft.do(RenewHost(lease.host, why="still needed at the end of its paid time"))
                renewed[lease.host] = lease.paid_until(now)
        draft.spread_state()
        return Plan(
            tuple(draft.plan),
            BtuMemory(now if scales else before.scaled, renewed),
            remarks=fixed_waits(observation, self.scaling_threshold),
            unknown=tuple(self._unknown_metrics(observation, draft, levels)),
        )

    def unsupported_reason(self, context: Context) -> str | None:
        if sentence := fixed_queue(context) or missing_type_reason(context, self.host_type):
            return sentence
        levels, by_name = service_levels(context), context.graph.by_name
        units = [unit for unit in context.units if unit.scalable]
        promised = [bool(levels.keys() & measured_at(context, unit)) for unit in units]
        for unit, has_level in zip(units, promised, strict=True):
            working = [name for name in unit.operators if by_name[name].kind in (Kind.TRANSFORM, Kind.KEYED)]
            if not has_level and (working or not any(promised)):
                has, give = (f"operator {working[0]!r}", "it") if working else ("the dataflow", "operators")
                return (
                    f"it keeps service levels, and {has} has none: give {give} a max_duration, or the dataflow a "
                    "target_latency"
                )
        return None

    def _unknown_metrics(self, observation: Observation, draft: Draft, levels: Mapping[str, float]) -> Iterator[Unknown]:
        """Yield the metrics that Algorithm 1 lacks: the queue, or the duration if many items wait."""
        for unit in draft.scalable:
            queue = waiting(observation, unit)
            names = [name for name in measured_at(observation.context, unit) if name in levels]
            durations = [observation.operators.value(name, Metric.DURATION) for name in names]
            if math.isnan(queue):
                yield Unknown(Metric.BACKLOG, Rows.OPERATOR, unit.operators[0])
            elif queue > self.scaling_threshold and names and np.isnan(durations).all():
                yield Unknown(Metric.DURATION, Rows.OPERATOR, names[0])

    def is_late(self, observation: Observation, unit: Unit, levels: Mapping[str, float]) -> bool:
        """Return True if Algorithm 1 scales the unit up: an operator is late, and the queue is long."""
        queue = waiting(observation, unit)
        for name in measured_at(observation.context, unit):
            level = levels.get(name)
            if level is None:
                continue
            _, durations = observation.series(name, Metric.DURATION, self.observations)
            if needs_upscaling(float(durations[-1]), level, durations, queue, self.scaling_threshold):
                return True
        return False

    def ends_soon(self, lease: Lease, now: float) -> bool:
        """Return True if a host must be released or renewed in this round.

        The window is at least one period plus the stop time. With less than the stop time left, the next BTU is paid anyway
        and the host stays.
        """
        if lease.state is not HostState.RUNNING:
            return False
        unit, latest = lease.type.billing.unit, self.period + lease.type.stop
        remaining = lease.remaining(now)
        if unit <= latest:
            return remaining <= latest
        return lease.type.stop <= remaining <= max(self.window * unit, latest)

    def utility(self, draft: Draft, unit: Unit) -> float:
        """Return Algorithm 3 for a unit, with the delay of its most delayed operator."""
        observation, levels = draft.observation, service_levels(draft.observation.context)
        names = measured_at(observation.context, unit)
        delays = [last_duration(observation, name) / levels[name] for name in names if name in levels]
        # Chained operators have a duration each, or one for their stage. Only durations that were ever measured count.
        delays = [delay for delay in delays if not math.isnan(delay)] or delays
        scalable = draft.scalable
        return downscaling_utility(
            draft.instances[unit.name],
            [draft.instances[each.name] for each in scalable],
            max(delays, key=lambda delay: (math.isnan(delay), delay)) if delays else 0.0,
            1.0,
            draft.value(unit, Metric.SCALINGS),
            float(np.nansum([draft.value(each, Metric.SCALINGS) for each in scalable])),
            waiting(observation, unit),
            self.weights,
        )

    def _upscale(self, draft: Draft, unit: Unit, late: Sequence[Unit]) -> None:
        why = f"late with {waiting(draft.observation, unit):.0f} waiting"
        host = best_host(draft, unit, self.cache_factor) or self._make_room(draft, unit, late)
        if host is not None:
            draft.add(unit, host, why)
        elif draft.may_lease and (type := draft.cheapest_type(unit, self.host_type)) is not None:
            draft.add(unit, draft.lease(type, f"no room for {unit.name}"), why)

    def _make_room(self, draft: Draft, unit: Unit, late: Sequence[Unit], *, ready: bool = False) -> str | None:
        """Remove the most dispensable instance that makes room for `unit`; return its host, or None."""
        ranked = sorted(
            ((self.utility(draft, other), other) for other in draft.scalable if other not in late and other is not unit),
            key=lambda pair: -pair[0],
        )
        for utility, other in ranked:
            if utility <= 0:
                return None
            options: list[tuple[float, str, TaskId]] = []
            # Instances of an operator on the same host are interchangeable.
            for host, task in {host: task for task, host in reversed(draft.placements(other))}.items():
                if ready and not draft.is_ready(host):
                    continue
                mark = draft.mark()
                draft.remove(task, f"makes room for {unit.name}")
                value = float(host_suitability(draft, unit, self.cache_factor)[draft.hosts.index(host)])
                draft.rollback(mark)
                if value >= 0:
                    options.append((value, host, task))
            if options:
                _, host, task = min(options)
                draft.remove(task, f"makes room for {unit.name}")
                return host
            if draft.floating[other.name] > 1:
                mark = draft.mark()
                draft.remove_any(other, f"makes room for {unit.name}")
                if freed := best_host(draft, unit, self.cache_factor, ready=ready):
                    return freed
                draft.rollback(mark)
        return None

    def _release(self, draft: Draft, host: str, late: Sequence[Unit]) -> bool:
        """Empty and release `host` (Figure 5). Return True on success."""
        # Operators with positive utility lose up to `_spare` instances there. All others move to hosts that are already
        # leased. If they do not fit, the plan is rolled back; with `partial_release` the removals stay.
        if host in draft.received:
            return False
        share = 1 / draft.taking
        if draft.open_hosts > max(1, draft.observation.context.min_hosts):
            mark, crowding = draft.mark(), draft.crowding
            draft.close(host)
            self._give_up(draft, host, share)
            # A run may begin with more instances than slots. Then the release must not crowd the hosts further.
            if self._move_off(draft, host, late) and (draft.floats or draft.crowding <= crowding + ROUNDING):
                draft.do(DrainHost(host, why="not needed after its paid time"))
                draft.do(ReleaseHost(host, why="not needed after its paid time"))
                return True
            draft.rollback(mark)
        if self.partial_release:
            self._give_up(draft, host, share)
        return False

    def _give_up(self, draft: Draft, host: str, share: float) -> None:
        for unit in draft.units:
            here = [task for task in draft.tasks_on(host) if draft.unit_of(task) is unit]
            floating = math.ceil(share * draft.floating[unit.name] - ROUNDING)
            if not unit.scalable or not (here or floating) or self.utility(draft, unit) <= 0:
                continue
            spare = self._spare(draft, unit)
            if floating and spare:
                draft.remove_any(unit, f"not needed, {host} ends", min(spare, floating))
            for task in here[:spare]:
                draft.remove(task, f"not needed, {host} ends")

    def _move_off(self, draft: Draft, host: str, late: Sequence[Unit]) -> bool:
        """Move the remaining instances to running hosts; return False, with a half-made plan, without room."""
        for task in list(draft.tasks_on(host)):
            unit = draft.unit_of(task)
            target = best_host(draft, unit, self.cache_factor, ready=True)
            target = target or self._make_room(draft, unit, late, ready=True)
            if target is None:
                return False
            draft.move(task, target, f"{host} ends")
        return True

    def _spare(self, draft: Draft, unit: Unit) -> int:
        """Return the instances that may go with one host: `release_share`, or one if the others carry its work."""
        # With few instances the share rounds down to none, so spare capacity counts, too.
        instances = draft.instances[unit.name]
        carried = draft.value(unit, Metric.UTILISATION) * instances < instances - 1
        return max(int(carried), math.floor(self.release_share * instances + ROUNDING))

    def _finish_draining(self, draft: Draft) -> None:
        observation = draft.observation
        for lease in observation.leases.values():
            if lease.state is not HostState.DRAINING:
                continue
            if not draft.tasks_on(lease.host):
                draft.do(ReleaseHost(lease.host, why="empty"))
            elif lease.deadline is None:
                draft.do(CancelDrain(lease.host, why="its instances could not be moved"))
                draft.do(RenewHost(lease.host, why="its instances could not be moved"))
