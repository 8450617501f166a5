"""The policy `threshold`, with the defaults of Flink's autoscaler and Kubernetes' horizontal pod autoscaler (HPA)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np

from elastream.core.action import Action, CancelDrain, DrainHost, ReleaseHost, SetParallelism
from elastream.core.decision import Unknown
from elastream.core.lazy import once
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Context, Observation
from elastream.core.plant import Plan, Policy
from elastream.core.wording import at_most, counted
from elastream.dataflow.stages import Unit
from elastream.errors import ElastreamError
from elastream.policies.common import chained
from elastream.policies.common.draft import Draft, observed_instances
from elastream.policies.common.load_history import CERTAIN, LoadHistory
from elastream.policies.common.measures import (
    capacity,
    cheapest_type,
    emptied,
    missing_metrics,
    missing_type_reason,
    sum_of,
)
from elastream.policies.common.placement import balance
from elastream.policies.common.provision import TARGET_UTILISATION
from elastream.policies.common.reach import IN_VAIN, after_trial, within_reach
from elastream.policies.common.sizing import ROUNDS, WITHIN, SizingInputs
from elastream.policies.common.unchained import CoreNeed, enlarge, may_enlarge, may_reduce, needs_of, reduce
from elastream.policies.forecasting.trend import Forecast
from elastream.units import ROUNDING, format_duration, format_rate

# Default `settle` in host starts: keeping an idle host for so long costs as much as starting it again.
SETTLE_HOST_STARTS = 1.0
# Several batches, because single ones are slow or quick by chance.
LEAST_SETTLE_S = 10.0
# Time between rounds until two rounds have run.
FIRST_PACE_S = 2.0
LEAST_HISTORY_S = 120.0
# Part of the target utilisation by which it may be missed without an action (HPA's default).
TOLERANCE = 0.1

Reason: TypeAlias = Callable[[], str]  # called only if the sentence is needed


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """Result of `Threshold.scale`.

    Attributes:
        hosts: Host actions; unchained, all actions in the order of execution.
        recommended: Number of hosts needed now (`Plan.hosts`); NaN if unknown.
    """

    hosts: Sequence[Action]
    parallelism: Sequence[Action]
    history: LoadHistory
    predicted: Mapping[str, float]
    unknown: tuple[Unknown, ...]
    remarks: tuple[str, ...] = ()
    recommended: float = math.nan


@dataclass(frozen=True)
class Threshold(Policy):
    """Lease hosts for the load expected one host start ahead; release them when their paid time ends.

    The need is the forecast arrival rate times the measured work per record, plus the work of the late backlog. If the need
    exceeds `scale_out` by more than `tolerance`, all missing hosts are leased at once. Hosts go if the remaining ones could
    carry the highest need of the last `settle` seconds, nothing is late, and their paid time ends. Unknown metrics never
    count as 0: the plan names them (`Plan.unknown`) and sizes nothing.

    Args:
        scale_out: Part of the usable cores to fill (Flink's autoscaler: 0.7).
        tolerance: Part of `scale_out` by which it may be exceeded (HPA: 0.1).
        spare: Hosts on top of the need.
        settle: How long the need must be low before hosts go (seconds). None: one host start, at least 10 s.
        cool_down: Time after a host starts in which measurements do not count (seconds).
        window: Time over which the work per record is measured (seconds).
        host_type: Type to lease. None: the cheapest per core and second; ties go to the smallest.
        max_parallelism: Most instances of one operator. None: 64 threads for an operator that waits, else no limit.

    Raises:
        ElastreamError: A parameter is outside its range.
    """

    scale_out: float = TARGET_UTILISATION
    tolerance: float = TOLERANCE
    spare: int = 0
    settle: float | None = None
    cool_down: float = 10.0
    window: float = 10.0
    host_type: str | None = None
    max_parallelism: int | None = None

    needs: ClassVar[Needs] = frozenset(
        {(Rows.OPERATOR, Metric.ARRIVAL_RATE), (Rows.OPERATOR, Metric.PROCESSED_RATE), (Rows.OPERATOR, Metric.BUSY_CORES)}
    )
    name: ClassVar = "threshold"

    def __post_init__(self) -> None:
        if not 0 < self.scale_out <= 1:
            raise ElastreamError(f"scale_out is {self.scale_out:g}; it must be above 0 and at most 1")
        if not 0 <= self.tolerance < 1:
            raise ElastreamError(f"tolerance is {self.tolerance:g}; it must be 0 or more and below 1")
        for name, value in vars(self).items():
            if isinstance(value, int | float) and not 0 <= value < math.inf:
                raise ElastreamError(f"{name} is {value:g}; it must be 0 or more, and finite")

    @property
    def default_window(self) -> bool:
        return self.settle is None

    def unsupported_reason(self, context: Context) -> str | None:
        return missing_type_reason(context, self.host_type)

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Plan host actions, then parallelism, then moves of tasks. The memory is a `LoadHistory`."""
        history, unchained = memory if isinstance(memory, LoadHistory) else None, observation.context.layout.unchained
        scaling = (UnchainedRound if unchained else ChainedRound)(self, observation, history).plan()
        drains = any(isinstance(action, DrainHost) for action in scaling.hosts)
        moves = [] if drains or unchained else balance(observation)
        actions = (*scaling.hosts, *scaling.parallelism, *moves)
        return Plan(actions, scaling.history, scaling.predicted, scaling.remarks, (), scaling.unknown, scaling.recommended)


class SizingRound:
    """Common part of a planning round: the rates to size for.

    Attributes:
        horizon: Seconds until a host requested now would work, plus one round.
        most: Highest utilisation that needs no further host.
    """

    def __init__(self, policy: Threshold, observation: Observation, before: LoadHistory | None) -> None:
        self.policy, self.observation, self.before = policy, observation, before
        self.host_type = cheapest_type(observation.context, policy.host_type)
        self.pace = FIRST_PACE_S if before is None else max(observation.time - float(before.times[-1]), 0.0)
        self.horizon = self.host_type.start + self.pace
        rules = observation.context.scaling  # the user's, in place of the policy's own
        default_settle = max(LEAST_SETTLE_S, SETTLE_HOST_STARTS * self.host_type.start)
        self.settle = default_settle if policy.settle is None else policy.settle
        if rules.stabilization_down is not None:
            self.settle = 0.0  # arbitration applies the user's window to the recommended hosts
        length = max(3 * self.horizon, 2 * (observation.context.target_latency or 0.0), self.settle, LEAST_HISTORY_S)
        self.history = LoadHistory.after(before, observation, length, policy.cool_down)
        self.load = SizingInputs(observation, self.history, policy.window, self.pace)
        self.forecast = self._forecast()
        self.most = policy.scale_out * (1 + (policy.tolerance if rules.tolerance is None else 0.0))
        self.catch_up = rules.catch_up

    def _forecast(self) -> Forecast:
        forecast = self.load.expected(self.horizon)
        if not math.isnan(forecast.level):
            self.history = self.history.with_surprise(
                self.observation.time, forecast, self.load.age + self.horizon, self.pace
            )
        return forecast

    @once
    def rate(self) -> float:
        """Rate to size for (records/s)."""
        return max(self.forecast.level, self.forecast.expected)

    @once
    def upper(self) -> float:
        """Rate that full hosts must still process (records/s)."""
        again = self.history.surprises.upper(self.rate, self.horizon, self.pace)
        # Records of a jump that wait for new hosts stay in time if they are at most so many.
        allowed = WITHIN * (self.observation.context.target_latency or 0.0)
        return max(self.rate + CERTAIN * self.forecast.error, again * self.horizon / max(self.horizon + allowed, 1e-9))

    @once
    def later(self) -> float:
        """Rate to keep hosts for (records/s): a released host must not be missing before `settle` has passed."""
        return max(self.rate, self.forecast.level + self.forecast.slope * (self.load.age + self.horizon + self.settle))

    def _with_need(self, cores: tuple[float, ...]) -> LoadHistory:
        history, hold = self.history, self.settle
        if self.policy.default_window and self.observation.context.scaling.stabilization_down is None:
            lulls = history.lulls.after(self.observation, math.fsum(cores), self.settle)
            history, hold = replace(history, lulls=lulls), lulls.hold(self.observation, self.settle)
        return history.with_need(self.observation.time, cores, hold)

    @property
    def _rate_text(self) -> str:
        ahead = f" expected in {format_duration(round(self.horizon))}" if self.rate > self.forecast.level else ""
        return f"{format_rate(self.rate)}{ahead}"

    def _releases(self, actions: Sequence[Action] = ()) -> list[Action]:
        return [action for action in emptied(self.observation) if CancelDrain(action.host) not in actions]

    def _predicted(self, actions: Sequence[Action], base: float) -> Mapping[str, float]:
        observation = self.observation
        leaving = {action.host for action in actions if isinstance(action, DrainHost | ReleaseHost)}
        lost = len(leaving & set(observation.usable))
        recovered = sum(isinstance(action, CancelDrain) for action in actions)
        cores = capacity(observation, observation.usable)
        busy = math.nan if math.isnan(base) else cores if self.load.late else min(base, cores)
        return {"hosts_usable": float(len(observation.usable) - lost + recovered), "busy_cores": busy}


class ChainedRound(SizingRound):
    """Planning round for operators that share cores. Sizes hosts by the total need, and tasks by the hosts' slots."""

    def plan(self) -> ScalingPlan:
        load, observation = self.load, self.observation
        base = load.cores(self.rate)
        need, reason = self._need(base)
        need, remarks = self._limited(need, base)
        history = self.history
        if not math.isnan(base):
            history = self._with_need((base,))
        if load.cold and math.isnan(load.declared):
            need = min(need, self._proven_need)
        added = self._hosts.lease_missing(need, reason)
        remarks = (*remarks, *self._host_limit_remarks(need))
        highest = self._retained_cores(history)
        hosts = [*self._releases(added), *(added or self._shrink(history, highest))]
        tasks = [change for operator in sorted(observation.context.scalable) for change in self._tasks(operator, need)]
        retained = max(need, highest / self.most)  # infinite while too little is known to release hosts
        recommended = self._hosts.hosts_for(retained if math.isfinite(retained) else math.nan)
        unknown = missing_metrics(observation) if math.isnan(base) else ()
        return ScalingPlan(hosts, tasks, history, self._predicted(hosts, base), unknown, remarks, recommended)

    def _need(self, base: float) -> tuple[float, Reason]:
        """Return the cores of speed 1 that hosts must have, NaN if unknown, and the reason. `base`: those of the rate."""
        need = base / self.most
        reasons: list[Reason] = [
            lambda: f"{self._rate_text} needs {base:.3g} cores, to be filled to {self.most:.0%} at most"
        ]
        if (full := self.load.cores(self.upper)) > need:
            need = full
            reasons.append(lambda: f"; at most {format_rate(self.upper)} needs {full:.3g}")
        if drain := self._drain_cores(base):
            need += drain / self.most
            reasons.append(lambda: f", and {drain:.3g} to process {self._late:,.0f} records of late backlog in time")
        shortage = self._shortage(known_need=not math.isnan(need))
        if shortage is not None and not shortage[0] <= need:
            need, sentence = shortage
            return need, lambda: sentence
        return need, lambda: "".join(each() for each in reasons)

    @property
    def _proven_need(self) -> float:
        """Cores that are needed although only cold batches have shown the work of a record."""
        # First batches are slow and late on any number of hosts. A backlog that still grows afterwards proves a need.
        # Batches that stay late on full hosts prove one host more.
        load = self.load
        if load.starting:
            return self._capacity
        if math.isnan(load.work):
            return math.inf
        full = load.used >= self.most * capacity(self.observation, self.observation.usable)
        one_more = 1e-6 if full and load.stays_late and not self.observation.coming else 0.0
        return max(self._capacity * load.behind, self._capacity + one_more)

    def _drain_cores(self, base: float) -> float:
        """Return the cores that process the late backlog in time."""
        target = self.observation.context.target_latency
        within = max(target or 0.0, self.host_type.start) if self.catch_up is None else self.catch_up
        if target is None or not within > 0 or not self._late > 0:
            return 0.0
        drain = self._late * self._record_work(base) / within
        return drain if 0 < drain < math.inf else 0.0

    def _record_work(self, base: float) -> float:
        """Return the core-seconds of a record that waits, at the arrival or processed rate, whichever is higher."""
        # At a low rate the fixed work of batches in `base` would be charged to few records.
        processed = self.load.processed
        if processed > self.rate > 0 and (work := self.load.cores(processed)) > 0:
            return work / processed
        return base / self.rate if self.rate > 0 and base > 0 else self.load.work

    def _shortage(self, *, known_need: bool) -> tuple[float, str] | None:
        """Return a need above the usable cores, with the reason, if latency or queues prove one."""
        load, observation, behind = self.load, self.observation, self._behind
        settled = observation.since_change >= min(self.policy.cool_down, ROUNDS * self.pace)
        if not (load.late or behind > 1) or not settled or observation.coming or not observation.usable:
            return None
        usable = self._hosts.capacity(observation.usable)
        if behind > 1:
            self.history = replace(self.history, shortfall=(usable, self.forecast.level, observation.time))
            return usable * behind, f"falling behind for {ROUNDS} rounds, {behind:.3g} times what is processed arrives"
        if load.arriving > load.processed:
            needed = usable * load.arriving / load.processed if load.processed > 0 else usable
            rates = f"{format_rate(load.arriving)} arrive and {format_rate(load.processed)} are processed"
            return max(needed, usable + 1e-6), f"late, and falling behind: {rates}"
        return None if known_need else (usable + 1e-6, "late, and the need is unknown: one host more")

    def _limited(self, need: float, base: float) -> tuple[float, tuple[str, ...]]:
        observation, load = self.observation, self.load
        need, self.history, bound = within_reach(observation, need, self._capacity, base, load, self.history)
        remarks = (f"{IN_VAIN} {format_rate(self.rate)}: {bound}",) if bound else ()
        self.history, message = after_trial(observation, load, self.history, self._behind, equal=self._equal)
        limit = max(self._capacity, base / self.most)
        if message and not need <= limit:
            return limit, (*remarks, message)
        trial = self.history.trial
        if trial is not None and trial.time == observation.time and trial.low_gain:
            remarks = (*remarks, trial.low_gain)
        return need, remarks

    def _host_limit_remarks(self, need: float) -> tuple[str, ...]:
        most = self.observation.context.max_hosts
        needed = self._hosts.hosts_for(need)
        if not needed > most + ROUNDING:
            return ()
        purposes = [format_rate(self.rate)] if self.rate > 0 else []
        purposes += [f"{self._late:,.0f} records of late backlog"] if self._late >= 1 else []
        text = f" for {' and '.join(purposes)}" if purposes else ""
        return (f"{at_most(most, self.observation.context.limit)}, and {math.ceil(needed - ROUNDING)} are needed{text}",)

    @once
    def _capacity(self) -> float:
        return self._hosts.capacity((*self.observation.usable, *self.observation.coming))

    @once
    def _late(self) -> float:
        return self.load.late_backlog(self.forecast.level, self.host_type.start if not self.observation.coming else 0.0)

    @once
    def _behind(self) -> float:
        return 1.0 if chained.is_narrow(self.observation, self._slots) else self.load.behind

    @once
    def _equal(self) -> bool:
        return chained.has_equal_shares(self.observation, self._width)

    @once
    def _hosts(self) -> chained.SharedHosts:
        return chained.SharedHosts(
            self.observation,
            self.host_type,
            self.most,
            self.policy.spare,
            self._equal,
            self.pace,
            self.settle,
            mixed=self.policy.host_type is None,
        )

    @once
    def _width(self) -> int:
        return self.observation.cores.slots(self.observation.working)[0]

    @property
    def _slots(self) -> int:
        return self._width if self.policy.max_parallelism is None else min(self._width, self.policy.max_parallelism)

    def _shrink(self, history: LoadHistory, highest: float) -> list[Action]:
        """Return releases of hosts that have not begun to start, else drains; `highest` as by `_retained_cores`."""
        observation, policy, load = self.observation, self.policy, self.load
        young = observation.time - history.since < self.settle or load.since_change < policy.cool_down
        if (young and not observation.waiting) or load.late or load.behind > 1 or load.queued(self.settle):
            return []
        if observation.draining or observation.unjudged:  # its lateness is unknown
            return []
        if observation.coming:
            return self._hosts.withdraw_surplus(highest)
        return self._hosts.drain_surplus(highest)

    def _retained_cores(self, history: LoadHistory) -> float:
        load = self.load
        highest = max(each for each in (self._highest(history), load.used, load.cores(self.later), 0.0) if each == each)
        highest = max(highest, self.most * load.cores(self.upper), self.most * self._useful_cores)
        return max(highest, self.most * (1 + 1e-6) * history.insufficient(self.observation.time, self.rate))

    @property
    def _useful_cores(self) -> float:
        useful = max((each.slots for each in self.observation.diagnoses.values()), default=0.0)
        _, each = self.observation.cores.slots(self.observation.working)
        return useful * each if useful else 0.0

    def _highest(self, history: LoadHistory) -> float:
        if self.before is not None and history.needs:
            return max(cores for _, (cores,) in history.needs)
        recent = history.times >= self.observation.time - self.settle
        return self.load.cores(float(np.max(history.arriving[recent])))

    def _tasks(self, operator: str, need: float) -> list[Action]:
        observation, load = self.observation, self.load
        observed = observation.operators.value(operator, Metric.PARALLELISM)
        now = observation.composition.parallelism.get(operator, observed)
        if math.isnan(now):
            return []
        if observation.context.graph.by_name[operator].waits:
            return self._threads(operator, now)
        if not (slots := self._slots):
            return []
        urgent = load.late or load.behind > 1
        count = min(max(now, slots) if urgent else self._task_count(now, need), slots)
        if count == now or (count < now <= slots and load.queued(self.settle)):
            return []
        why = f"{self._rate_text} needs {need:.3g} of {capacity(observation, observation.working):.3g} cores"
        why = "all slots while it is late or falls behind" if urgent else why
        return [SetParallelism(operator, int(count), why=why)]

    def _task_count(self, now: float, need: float) -> float:
        """Return the tasks that `need` cores fill. Fewer than `now` must also fit the highest recent need."""
        if math.isnan(need):
            return now
        _, each = self.observation.cores.slots(self.observation.working)
        grown = max(1, math.ceil(need / each - 1e-9))
        highest = self._highest(self.history)
        fits = now if math.isnan(highest) else math.ceil(highest / self.most / each - 1e-9)
        return grown if grown > now else min(now, max(grown, fits, 1))

    def _threads(self, operator: str, now: float) -> list[Action]:
        busy = sum_of(self.observation.operators, Metric.BUSY_CORES, (operator,))
        processed = self.history.processed[-1]
        if math.isnan(busy) or not processed > 0 or math.isnan(self.rate):
            return []
        occupied = self.rate * busy / processed
        count = chained.thread_count(self.observation, operator, occupied, self.most, self.policy.max_parallelism)
        why = f"{self._rate_text} occupies {occupied:.3g} threads"
        return [SetParallelism(operator, count, why=why)] if count != now else []


class UnchainedRound(SizingRound):
    """Planning round for instances that reserve cores. Sizes instances by operator, and hosts by instances."""

    def plan(self) -> ScalingPlan:
        observation, policy = self.observation, self.policy
        units = [unit for unit in observation.context.units if unit.scalable]
        instances = {unit.name: observed_instances(observation, unit) for unit in units}
        needs, unknown = self._needs(units)
        if math.isnan(self.rate):
            unknown = missing_metrics(observation)
        targets = self._targets(units, needs, instances)
        history, surplus = self._surplus(units, needs, targets, instances)
        shrinks = bool(surplus) and not observation.coming and observation.since_change >= policy.cool_down
        actions: list[Action] = []
        releases: list[Action] = []
        remarks: tuple[str, ...] = ()
        if may_enlarge(observation, targets, instances, policy.spare) or (
            shrinks and may_reduce(observation, units, instances, surplus, self.pace)
        ):
            actions, releases, remarks = self._draft(targets, needs, surplus, shrinks)
        actions = [*actions, *self._releases(), *releases]
        total = math.fsum(need.cores for need in needs.values()) if needs else math.nan
        return ScalingPlan(actions, (), history, self._predicted(actions, total), unknown, remarks)

    def _needs(self, units: Sequence[Unit]) -> tuple[Mapping[str, CoreNeed], tuple[Unknown, ...]]:
        ahead = self.host_type.start if not self.observation.coming else 0.0
        arriving = float(self.history.arriving[-1])
        return needs_of(self.observation, units, self.rate, arriving, self.host_type.start, ahead)

    def _targets(
        self, units: Sequence[Unit], needs: Mapping[str, CoreNeed], instances: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Return the instances that each operator should have. If no need is known and records are late: one more."""
        growth = self.upper / self.rate if self.rate > 0 else 1.0
        targets = {}
        for name, need in needs.items():
            full = CoreNeed(need.cores * growth, need.drain, need.per_instance).instances(1.0)
            targets[name] = max(need.instances(self.most), full)
        if self.load.late and not needs and not self.observation.coming:
            targets = {unit.name: instances[unit.name] + 1 for unit in units}
        limit = self.policy.max_parallelism
        return targets if limit is None else {name: min(count, limit) for name, count in targets.items()}

    def _surplus(
        self,
        units: Sequence[Unit],
        needs: Mapping[str, CoreNeed],
        targets: Mapping[str, int],
        instances: Mapping[str, int],
    ) -> tuple[LoadHistory, dict[str, int]]:
        """Return the history with this round's needs, and the instances that were not needed for `settle` seconds."""
        history = self.history
        if not needs or len(needs) != len(units):
            return history, {}
        time = self.observation.time
        history = self._with_need(tuple(needs[unit.name].cores for unit in units))
        if time - history.since < self.settle or self.load.late:
            return history, {}
        growth = self.later / self.rate if self.rate > 0 else 1.0
        surplus = {}
        for unit, cores in zip(units, history.highest, strict=True):
            need = needs[unit.name]
            retained = CoreNeed(max(float(cores), need.cores * growth), 0.0, need.per_instance).instances(self.most)
            surplus[unit.name] = max(0, instances[unit.name] - max(retained, targets[unit.name]))
        return history, surplus

    def _draft(
        self, targets: Mapping[str, int], needs: Mapping[str, CoreNeed], surplus: Mapping[str, int], shrinks: bool
    ) -> tuple[list[Action], list[Action], tuple[str, ...]]:
        policy, draft = self.policy, Draft(self.observation)
        why = {name: self._reason(name, needs.get(name), draft.instances[name]) for name in targets}
        hosts = len(draft.hosts)
        enlarge(draft, targets, surplus, why, policy.host_type, policy.spare)
        grown = len(draft.hosts) > hosts or any(draft.instances[name] > 0 and draft.received for name in targets)
        releases = reduce(draft, surplus, self.pace, policy.spare) if shrinks and not grown else []
        lacking = {name: targets[name] - n for name, n in draft.instances.items() if 0 < n < targets.get(name, 0)}
        if not lacking or draft.may_lease:
            return draft.plan, releases, ()
        short = ", ".join(f"{counted(n, 'instance')} of {name}" for name, n in lacking.items())
        return draft.plan, releases, (f"{at_most(self.observation.context.max_hosts)}, and there is no room for {short}",)

    def _reason(self, name: str, need: CoreNeed | None, now: int) -> str:
        if need is None:
            return "late, and the need is unknown: one instance more"
        late = f", and {need.drain:.3g} to process late backlog in time" if need.drain > 0 else ""
        reserved = f"{now * need.per_instance:.3g} are on {counted(now, 'instance')}"
        return f"{self._rate_text} needs {need.cores:.3g} cores of {name}{late}; {reserved}"
