"""The default policy: leases hosts for the rate expected when they will work, and gives them back when what is paid ends.

The same rules apply on Spark and in simulation, without learning or tuning per dataflow. Its defaults are those of Flink's
autoscaler and of Kubernetes' horizontal pod autoscaler (HPA), as far as hosts that take a minute to start allow.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, TypeAlias

import numpy as np

from elastream.core.action import Action, CancelDrain, DrainHost, ReleaseHost, SetParallelism
from elastream.core.decision import Unknown
from elastream.core.hosts import HostType
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Observation
from elastream.core.plant import Plan, Policy
from elastream.core.wording import at_most, counted
from elastream.errors import ElastreamError
from elastream.policies.common import chained as fused
from elastream.policies.common.draft import Draft, observed_instances
from elastream.policies.common.load_history import CERTAIN, Seen
from elastream.policies.common.measures import capacity, sum_of, tasks_on, unsized
from elastream.policies.common.placement import balance
from elastream.policies.common.provision import TARGET_UTILISATION
from elastream.policies.common.reach import IN_VAIN, after_trial, within_reach
from elastream.policies.common.sizing import ROUNDS, WITHIN, LoadFigures
from elastream.policies.common.unchained import CoreNeed, enlarge, lacks, may_reduce, needs_of, reduce
from elastream.units import ROUNDING, format_duration, format_rate

SETTLE = 1.0
"""Starts of a host for which the need must have been low before hosts go: keeping an idle host for so long costs as much as
starting it anew, the break-even of what may be needed again at any time. HPA's window of 300 s has the same purpose."""
LEAST_SETTLE = 10.0
"""Seconds that it is at least: several batches, of which single ones are slow or quick by chance."""
PACE = 2.0
"""Seconds from one round to the next, until two rounds were seen."""
REMEMBERED = 120.0
"""Seconds of samples that are kept at least."""
TOLERANCE = 0.1
"""Part of the target utilisation by which it may be missed without an action (HPA's default tolerance)."""
Said: TypeAlias = Callable[[], str]  # a reason, put into words if it is needed


@dataclass(frozen=True, slots=True)
class Scaled:
    """What `Threshold.scale` answers; apart, all actions are in `hosts`, in the order in which they must be done.

    recommended: hosts that are needed now (`Plan.hosts`), NaN where that is unknown.
    """

    hosts: Sequence[Action]
    parallelism: Sequence[Action]
    seen: Seen
    predicted: Mapping[str, float]
    unknown: tuple[Unknown, ...]
    remarks: tuple[str, ...] = ()
    recommended: float = math.nan


@dataclass(frozen=True)
class Threshold(Policy):
    """Fill the hosts that work to `scale_out`, within `tolerance`, one host start-up ahead.

    **Rate.** The need is that of the rate expected when a host asked for now would work: the level of the arrival rate, and
    its trend where that is certain (`policies.forecasting.trend`; samples after the last jump only, so that a step is
    no trend and a
    burst counts at once). Noise does not count as growth: `scale_out` leaves room for it, and only where the upper
    bound of the rate expected (one case in twenty is higher, as a mean over the target latency) would not fit the full
    hosts, it needs more. So it does where the load jumped, unforeseen, by more several times in the last two hours
    (`policies.forecasting.trend`): what of another such jump waits when hosts asked for then work must be in time, so
    that it is at most what the full hosts process in half of the target latency.

    **Need.** Fused, the cores at that rate are those on the line through recent rates and busy cores, and beyond these
    rates the upper bound of its mean response; without a line, work per record times the rate; until a run has been warm,
    the declared costs. Samples of the `cool_down` seconds after a run's first records or a host's coming are not warm:
    workers start, code is compiled. A slot counts as the slowest of all hosts' has it, since a stage's tasks have equal
    parts and wait for the one there. Apart, each operator's are its own work per record times the rate that reaches it
    if no queue holds records back: from the sources' rates and measured (else declared) selectivities. Late backlog adds:
    the part of the queues, when a host asked for now would work, above half of arrival rate x target latency (Little's
    law; the other half is for their processing) is to be processed within the target latency, or within the start of a
    host if that is longer. If latency is above target although no host came in the last `cool_down` seconds, and records
    arrive faster than they are processed, the hosts are insufficient whatever the metered work: the need is their cores
    times arrival over processed rate, at least one host more; and for half an hour hosts are not given back to so few,
    while the rate is as high. State partitions that cannot process the rate on any hosts bound it (`algorithms.reach`).

    **Growing.** Hosts whose need would fill them above `scale_out` x (1 + `tolerance`) get all missing ones at once:
    drains are cancelled first, then hosts are leased; those that start count. `spare` hosts come on top, and `min_hosts`
    holds in any case. Apart, instances are placed on hosts with room, then on the new hosts, with which they start.

    **Shrinking.** Hosts go if the highest need of the last `settle` seconds (HPA's stabilisation window) fills those left
    to no more than that bound, and so does that of a rate that goes on growing for so long, nothing is late, no host is
    starting or draining, and `cool_down` seconds have passed since one came or went; at most half of them a round. And only
    when what is paid of a host ends, or costs nothing: its minimum is over, and its billing time unit ends before the next
    round could give it back. Fused, it is drained first. A constant load reaches a fixed point, then nothing happens.

    **Operators.** Fused, a stage without state gets as many tasks as slots that the need fills to the target, all while
    anything is late; the pool of a `waits` operator follows its occupied threads. Tasks with state are spread onto new
    hosts (`policies.common.placement`). Apart, instances that are not needed any more stay until they free a host or
    room.

    What is unknown is never taken as 0: the newest known value of the window counts, and where nothing is known, nothing is
    sized, which the plan says (`Plan.unknown`) - except that while records are late and nothing can be sized, one host
    more is leased at a time.

    scale_out: part of the usable cores to fill (Flink's autoscaler: 0.7). tolerance: fraction of it (HPA: 0.1). spare:
    hosts. settle: seconds; None: the start of a host, at least 10 s. cool_down, window: seconds; window: over which work
    per record is measured. host_type: type to lease; None: that with the lowest price per core and second, the smaller
    one if equal (E2DF: finest control). max_parallelism: most instances of one operator; None: 64 threads where it waits,
    else without bound.
    """

    scale_out: float = TARGET_UTILISATION
    tolerance: float = TOLERANCE
    spare: int = 0
    settle: float | None = None
    cool_down: float = 10.0
    window: float = 10.0
    host_type: str | None = None
    max_parallelism: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.scale_out <= 1:
            raise ElastreamError(f"scale_out is {self.scale_out:g}; it must be above 0 and at most 1")
        if not 0 <= self.tolerance < 1:
            raise ElastreamError(f"tolerance is {self.tolerance:g}; it must be 0 or more and below 1")
        for name, given in vars(self).items():
            if isinstance(given, int | float) and not 0 <= given < math.inf:
                raise ElastreamError(f"{name} is {given:g}; it must be 0 or more, and finite")

    needs: ClassVar[Needs] = frozenset(
        {(Rows.OPERATOR, Metric.ARRIVAL_RATE), (Rows.OPERATOR, Metric.PROCESSED_RATE), (Rows.OPERATOR, Metric.BUSY_CORES)}
    )
    name: ClassVar = "threshold"

    @property
    def default_window(self) -> bool:
        """Whether nobody said for how long hosts that are not needed are kept."""
        return self.settle is None

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Host actions, then parallelism, then moves. memory: a `Seen`."""
        scaled = self.scale(observation, memory)
        leaving = any(isinstance(action, DrainHost) for action in scaled.hosts)
        moves = [] if leaving or observation.context.layout.unchained else balance(observation)
        actions = (*scaled.hosts, *scaled.parallelism, *moves)
        return Plan(actions, scaled.seen, scaled.predicted, scaled.remarks, (), scaled.unknown, scaled.recommended)

    def scale(self, observation: Observation, memory: object = None) -> Scaled:
        """Host actions and parallelism actions of the plan, without moves of fused tasks."""
        seen = memory if isinstance(memory, Seen) else None
        if observation.context.layout.unchained:
            return ApartRound(self, observation, seen).scaled()
        return FusedRound(self, observation, seen).scaled()


class SizingRound:
    """One planning round: the rate that hosts are sized for, and what both ways of sizing share."""

    def __init__(self, policy: "Threshold", observation: Observation, before: Seen | None) -> None:
        self.policy, self.observation, self.before = policy, observation, before
        self.kind = self._kind()
        self.pace = PACE if before is None else max(observation.time - float(before.times[-1]), 0.0)
        self.horizon = self.kind.start + self.pace
        rules = observation.context.scaling  # the user's, in place of the policy's own
        self.settle = max(LEAST_SETTLE, SETTLE * self.kind.start) if policy.settle is None else policy.settle
        if rules.stabilization_down is not None:
            self.settle = 0.0  # arbitration has the window, over what is recommended
        keep = max(3 * self.horizon, 2 * (observation.context.target_latency or 0.0), self.settle, REMEMBERED)
        self.seen = Seen.after(before, observation, keep, policy.cool_down)
        self.load = LoadFigures(observation, self.seen, policy.window, self.pace)
        self.forecast = self.load.expected(self.horizon)
        if not math.isnan(self.forecast.level):
            self.seen = self.seen.surprised(observation.time, self.forecast, self.horizon, self.pace)
        self.most = policy.scale_out * (1 + (policy.tolerance if rules.tolerance is None else 0.0))
        self.catch_up = rules.catch_up

    @cached_property
    def rate(self) -> float:
        """Records/s that the hosts are sized for."""
        return max(self.forecast.level, self.forecast.expected)

    @cached_property
    def upper(self) -> float:
        """Records/s that the hosts must still be able to process when full."""
        again = self.seen.surprises.upper(self.rate, self.horizon, self.pace)
        # What of a jump waits until hosts asked for then work is in time, if it is no more than this allows.
        allowed = WITHIN * (self.observation.context.target_latency or 0.0)
        return max(self.rate + CERTAIN * self.forecast.error, again * self.horizon / max(self.horizon + allowed, 1e-9))

    @cached_property
    def later(self) -> float:
        """Records/s that hosts are kept for: a host that goes must not be missed before it could have settled."""
        return max(self.rate, self.forecast.level + self.forecast.slope * (self.horizon + self.settle))

    @property
    def _said(self) -> str:
        """The rate, for people."""
        ahead = f" expected in {format_duration(round(self.horizon))}" if self.rate > self.forecast.level else ""
        return f"{format_rate(self.rate)}{ahead}"

    def _emptied(self, actions: Sequence[Action] = ()) -> list[Action]:
        """Releases of draining hosts without tasks, but of those that `actions` keep."""
        return [
            ReleaseHost(host, why="it holds no more tasks")
            for host in self.observation.draining
            if not tasks_on(self.observation, host) and CancelDrain(host) not in actions
        ]

    def _predicted(self, actions: Sequence[Action], base: float) -> Mapping[str, float]:
        """Usable hosts after `actions`, and busy cores if the load goes on: no more than the usable hosts have."""
        observation = self.observation
        gone = {action.host for action in actions if isinstance(action, DrainHost | ReleaseHost)}
        drained = len(gone & set(observation.usable))
        kept = sum(isinstance(action, CancelDrain) for action in actions)
        cores = capacity(observation, observation.usable)
        busy = math.nan if math.isnan(base) else cores if self.load.late else min(base, cores)
        return {"hosts_usable": float(len(observation.usable) - drained + kept), "busy_cores": busy}

    def _kind(self) -> HostType:
        types = self.observation.context.host_types
        if self.policy.host_type is not None:
            return types[self.policy.host_type]
        return min(types.values(), key=lambda t: (t.price / t.billing.unit / (t.cores * t.speed), t.cores))


class FusedRound(SizingRound):
    """Hosts by the cores that the whole dataflow needs; tasks by the slots that they have."""

    def scaled(self) -> Scaled:
        """The plan where stages take turns on the slots."""
        load, observation, policy = self.load, self.observation, self.policy
        base = load.cores(self.rate)
        unknown = unsized(observation) if math.isnan(base) else ()
        need, why = self._need(base)
        there = fused.shared_capacity(observation, (*observation.usable, *observation.coming), equal=self._equal)
        need, self.seen, bound = within_reach(observation, need, there, base, load, self.seen)
        remarks = (f"{IN_VAIN} {format_rate(self.rate)}: {bound}",) if bound else ()
        self.seen, said = after_trial(observation, load, self.seen, self._behind, equal=self._equal)
        if said and not need <= max(there, base / self.most):
            need, remarks = max(there, base / self.most), (*remarks, said)
        elif (trial := self.seen.trial) is not None and trial.time == observation.time and trial.weak:
            remarks = (*remarks, trial.weak)
        seen = self.seen if math.isnan(base) else self.seen.needing(observation.time, (base,), self.settle)
        if load.cold and math.isnan(load.declared) and not load.late:
            # What the first batches work, and how far they lag behind, says nothing of the next ones.
            need = min(need, there)
        more = fused.lease_missing(observation, self.kind, need, why, policy.spare, equal=self._equal)
        remarks = (*remarks, *self._too_few(need))
        hosts = [*self._emptied(more), *(more if more or observation.draining else self._shrink(seen))]
        wider = [action for operator in sorted(observation.context.scalable) for action in self._widened(operator, need)]
        kept = math.nan if math.isnan(need) else max(need, self._kept(seen) / self.most)
        wanted = fused.hosts_for(observation, self.kind, kept, policy.spare, equal=self._equal)
        return Scaled(hosts, wider, seen, self._predicted(hosts, base), unknown, remarks, wanted)

    def _need(self, base: float) -> tuple[float, Said]:
        """(cores of speed 1 that hosts must have, what says why); NaN if unknown. base: cores that the rate works."""
        load, observation, policy = self.load, self.observation, self.policy
        need = base / self.most
        said: list[Said] = [lambda: f"{self._said} needs {base:.3g} cores, to be filled to {self.most:.0%} at most"]
        if (full := load.cores(self.upper)) > need:
            need = full
            said.append(lambda: f"; at most {format_rate(self.upper)} needs {full:.3g}")
        late, each = self._late, self._each(base)
        target = observation.context.target_latency
        within = max(target or 0.0, self.kind.start) if self.catch_up is None else self.catch_up
        if target is not None and within > 0 and 0 < (drained := late * each / within) < math.inf:
            need += drained / self.most
            said.append(lambda: f", and {drained:.3g} to process {late:,.0f} records of late backlog in time")
        settled = observation.since_change >= min(policy.cool_down, ROUNDS * self.pace)
        behind = self._behind
        if (load.late or behind > 1) and settled and not observation.coming and observation.usable:
            there = fused.shared_capacity(observation, observation.usable, equal=self._equal)
            if behind > 1:
                self.seen = replace(self.seen, short=(there, self.forecast.level, observation.time))
                if not there * behind <= need:
                    need = there * behind
                    said = [lambda: f"falling behind for {ROUNDS} rounds, {behind:.3g} times what is processed arrives"]
            elif load.arriving > load.processed:
                short = there * load.arriving / load.processed if load.processed > 0 else there
                least = max(short, there + 1e-6)
                if not least <= need:
                    rates = f"{format_rate(load.arriving)} arrive and {format_rate(load.processed)} are processed"
                    need, said = least, [lambda: f"late, and falling behind: {rates}"]
            elif math.isnan(need):
                need, said = there + 1e-6, [lambda: "late, and the need is unknown: one host more"]
        return need, lambda: "".join(each() for each in said)

    def _each(self, base: float) -> float:
        """Core-seconds of a record that waits: as at the rate that arrives or that is processed, whichever is higher. What
        batches work whatever they hold, `base` has in it: a queue that is left to a trickle does not cost it by the record.
        """
        processed = self.load.processed
        if processed > self.rate > 0 and (worked := self.load.cores(processed)) > 0:
            return worked / processed
        return base / self.rate if self.rate > 0 and base > 0 else self.load.work

    def _too_few(self, need: float) -> tuple[str, ...]:
        """That fewer hosts may be leased than `need` cores take, so that nobody waits for what will not come."""
        most = self.observation.context.max_hosts
        needed = fused.hosts_for(self.observation, self.kind, need, self.policy.spare, equal=self._equal)
        if not needed > most + ROUNDING:
            return ()
        for_what = [format_rate(self.rate)] if self.rate > 0 else []
        for_what += [f"{self._late:,.0f} records of late backlog"] if self._late >= 1 else []
        said = f" for {' and '.join(for_what)}" if for_what else ""
        return (f"{at_most(most)}, and {math.ceil(needed - ROUNDING)} are needed{said}",)

    @cached_property
    def _late(self) -> float:
        """Records of late backlog when a host that is leased now works."""
        return self.load.late_backlog(self.forecast.level, self.kind.start if not self.observation.coming else 0.0)

    @cached_property
    def _behind(self) -> float:
        """`LoadFigures.behind`; more tasks come before more hosts."""
        return 1.0 if fused.narrow(self.observation, self._slots) else self.load.behind

    @cached_property
    def _equal(self) -> bool:
        return fused.in_equal_parts(self.observation, self._width)

    @cached_property
    def _width(self) -> int:
        """Tasks that the hosts work at once."""
        return self.observation.cores.slots(self.observation.working)[0]

    @property
    def _slots(self) -> int:
        """As many, but no more than the policy may make."""
        return self._width if self.policy.max_parallelism is None else min(self._width, self.policy.max_parallelism)

    def _shrink(self, seen: Seen) -> list[Action]:
        observation, policy, load = self.observation, self.policy, self.load
        young = observation.time - seen.since < self.settle or load.since_change < policy.cool_down
        if (young and not observation.waiting) or load.late or load.behind > 1 or load.queued(self.settle):
            return []
        highest = self._kept(seen)
        if observation.coming:
            return fused.withdraw_surplus(observation, highest, self.most, policy.spare, self.settle, equal=self._equal)
        return fused.drain_surplus(observation, highest, self.most, policy.spare, self.pace, self.settle, equal=self._equal)

    def _kept(self, seen: Seen) -> float:
        """Cores that the hosts left must hold, filled to `most`."""
        load = self.load
        highest = max(each for each in (self._highest(seen), load.used, load.cores(self.later), 0.0) if each == each)
        highest = max(highest, self.most * load.cores(self.upper))
        return max(highest, self.most * (1 + 1e-6) * seen.insufficient(self.observation.time, self.rate))

    def _highest(self, seen: Seen) -> float:
        """Most cores needed in the last `settle` seconds; in the first round, for the highest rate sampled in them."""
        if self.before is not None and seen.needs:
            return float(seen.highest[0])
        return self.load.cores(float(np.max(seen.arriving[seen.times >= self.observation.time - self.settle])))

    def _widened(self, operator: str, need: float) -> list[Action]:
        """The change of the tasks of a fused stage, or of the threads of an operator that waits."""
        observation, load = self.observation, self.load
        observed = observation.operators.value(operator, Metric.PARALLELISM)
        now = observation.composition.parallelism.get(operator, observed)
        if math.isnan(now):
            return []
        if observation.context.graph.by_name[operator].waits:
            return self._threads(operator, now)
        if not (slots := self._slots):
            return []
        _, each = observation.cores.slots(observation.working)
        wanted, hurried = now, load.late or load.behind > 1
        if hurried:
            wanted = max(now, slots)
        elif not math.isnan(need):
            grown = max(1, math.ceil(need / each - ROUNDING))
            highest = self._highest(self.seen)
            fits = now if math.isnan(highest) else math.ceil(highest / self.most / each - ROUNDING)
            wanted = grown if grown > now else min(now, max(grown, fits, 1))
        wanted = min(wanted, slots)
        if wanted < now <= slots and load.queued(self.settle):
            return []
        if wanted == now:
            return []
        why = f"{self._said} needs {need:.3g} of {capacity(observation, observation.working):.3g} cores"
        why = "all slots while it is late or falls behind" if hurried else why
        return [SetParallelism(operator, int(wanted), why=why)]

    def _threads(self, operator: str, now: float) -> list[Action]:
        """The threads of an operator that waits follow those that are occupied."""
        busy = sum_of(self.observation.operators, Metric.BUSY_CORES, (operator,))
        processed = self.seen.processed[-1]
        if math.isnan(busy) or not processed > 0 or math.isnan(self.rate):
            return []
        occupied = self.rate * busy / processed
        wanted = fused.threads(self.observation, operator, occupied, self.most, self.policy.max_parallelism)
        why = f"{self._said} occupies {occupied:.3g} threads"
        return [SetParallelism(operator, wanted, why=why)] if wanted != now else []


class ApartRound(SizingRound):
    """Instances by the need of each operator; hosts by the instances that find no room."""

    def scaled(self) -> Scaled:
        """The plan where each operator has hosts of its own."""
        observation, policy = self.observation, self.policy
        units = [unit for unit in observation.context.units if unit.scalable]
        instances = {unit.name: observed_instances(observation, unit) for unit in units}
        ahead = self.kind.start if not observation.coming else 0.0
        arriving = float(self.seen.arriving[-1])
        needs, unknown = needs_of(observation, units, self.rate, arriving, self.kind.start, ahead)
        if math.isnan(self.rate):
            unknown = unsized(observation)
        upper = self.upper / self.rate if self.rate > 0 else 1.0
        wanted = {
            name: max(need.instances(self.most), CoreNeed(need.cores * upper, need.drain, need.per_instance).instances(1.0))
            for name, need in needs.items()
        }
        if self.load.late and not needs:
            for unit in units:
                if not observation.coming:
                    wanted[unit.name] = instances[unit.name] + 1
        if policy.max_parallelism is not None:
            wanted = {name: min(each, policy.max_parallelism) for name, each in wanted.items()}
        seen = self.seen
        surplus: dict[str, int] = {}
        if needs and len(needs) == len(units):
            seen = seen.needing(observation.time, tuple(needs[unit.name].cores for unit in units), self.settle)
            if observation.time - seen.since >= self.settle and not self.load.late:
                growing = self.later / self.rate if self.rate > 0 else 1.0
                for unit, cores in zip(units, seen.highest, strict=True):
                    least = max(float(cores), needs[unit.name].cores * growing)
                    kept = CoreNeed(least, 0.0, needs[unit.name].per_instance).instances(self.most)
                    surplus[unit.name] = max(0, instances[unit.name] - max(kept, wanted[unit.name]))
        shrinks = bool(surplus) and not observation.coming and observation.since_change >= policy.cool_down
        grown: list[Action] = []
        releases: list[Action] = []
        remarks: tuple[str, ...] = ()
        if lacks(observation, wanted, instances, policy.spare) or (
            shrinks and may_reduce(observation, units, instances, surplus, self.pace)
        ):
            grown, releases, remarks = self._drafted(wanted, needs, surplus, shrinks)
        actions = [*grown, *self._emptied(), *releases]
        total = math.fsum(need.cores for need in needs.values()) if needs else math.nan
        return Scaled(actions, (), seen, self._predicted(actions, total), unknown, remarks)

    def _drafted(
        self, wanted: Mapping[str, int], needs: Mapping[str, CoreNeed], surplus: Mapping[str, int], shrinks: bool
    ) -> tuple[list[Action], list[Action], tuple[str, ...]]:
        """(actions towards `wanted` instances, releases where nothing grows, what no more hosts may be leased for).

        shrinks: whether hosts may go at all.
        """
        policy, draft = self.policy, Draft(self.observation)
        why = {name: self._reason(name, needs.get(name), draft.instances[name]) for name in wanted}
        leased = len(draft.hosts)
        enlarge(draft, wanted, surplus, why, policy.host_type, policy.spare)
        grown = len(draft.hosts) > leased or any(draft.instances[name] > 0 and draft.received for name in wanted)
        releases = reduce(draft, surplus, self.pace, policy.spare) if shrinks and not grown else []
        lacking = {name: wanted[name] - n for name, n in draft.instances.items() if 0 < n < wanted.get(name, 0)}
        if not lacking or draft.may_lease:
            return draft.plan, releases, ()
        short = ", ".join(f"{counted(n, 'instance')} of {name}" for name, n in lacking.items())
        return draft.plan, releases, (f"{at_most(self.observation.context.max_hosts)}, and there is no room for {short}",)

    def _reason(self, name: str, need: CoreNeed | None, now: int) -> str:
        if need is None:
            return "late, and the need is unknown: one instance more"
        late = f", and {need.drain:.3g} to process late backlog in time" if need.drain > 0 else ""
        has = now * need.per_instance
        return f"{self._said} needs {need.cores:.3g} cores of {name}{late}; {has:.3g} are on {counted(now, 'instance')}"
