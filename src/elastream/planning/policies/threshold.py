"""The default, reactive policy: leases hosts by needed capacity and scales operators by utilisation.

The same rules apply on Spark and in simulation, without learning or tuning per dataflow. The target utilisation and the gap
between growing and shrinking follow E2DF's local policies (section 4); hosts are requested all at once, by work, because a
leased host takes long to start.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from elastream.model.action import Action, CancelDrain, DrainHost, LeaseHost, ReleaseHost, SetParallelism
from elastream.model.cloud import HostState, HostType
from elastream.model.errors import ElastreamError
from elastream.model.metrics import Metric, Needs
from elastream.model.observation import Frame, Observation
from elastream.model.plant import Plan
from elastream.model.promises import Rows
from elastream.model.units import format_duration
from elastream.planning.algorithms.measures import capacity, host_capacity, known_sum, source_sum, tasks_on
from elastream.planning.algorithms.placement import balance

__all__ = ["LoadFigures", "Threshold"]

LINE_SAMPLES, LEAST_SAMPLES, SPREAD = 30, 6, 1.5
"""Observations used for the line through rate and busy cores, the fewest needed, and the least ratio of highest to lowest
rate: with less, noise dominates the slope."""
IN_TO_OUT = 0.75
"""Default of scale_in as a fraction of scale_out (E2DF, section 4: 0.7, and 0.75 of it)."""
FARTHEST = 4.0
"""Multiple of the highest recently processed rate up to which work is extrapolated in proportion to records."""


@dataclass(frozen=True)
class Threshold:
    """Keep the busy cores at `scale_out` of the usable ones.

    **Need.** The cores needed are those at the current arrival rate on the line through recent rates and busy cores;
    without a line (too few samples, or too similar rates), the work per record over the last `window` seconds times the
    rate, up to FARTHEST times the rates seen. Late backlog adds to the need: the part above arrival rate x target latency
    (Little's law: with less waiting, no record is late). It is to be processed within the target latency, or within the
    start time of a host if that is longer, because no host leased now helps earlier. If latency is above target although
    no host came in the last `cool_down` seconds, and records arrive faster than they are processed, the hosts are
    insufficient whatever their metered work: the need is their cores times arrival over processed rate, at least one host
    more. If instances are placed (the simulator), hosts must also have the cores that those reserve.

    **Growing.** All missing hosts are requested at once: drains are cancelled first, then hosts are leased until usable and
    starting cores reach need / `scale_out`, plus `spare` hosts. Starting hosts count, so that the same need is not answered
    twice. Below `min_hosts`, hosts are leased in any case.

    **Shrinking.** One host at a time is drained, the one with the fewest tasks and least paid time left, and released when
    empty; only if the highest arrival rate of the last `settle` seconds, and the hosts' current CPU use, would use the
    remaining hosts at `scale_in` at most, nothing is late, no host is starting or draining, and `cool_down` seconds have
    passed since a host came or a drain was begun or cancelled.

    **Operators.** A stage with settable parallelism gets as many instances as keep each at `scale_out` of its cores at the
    current rate, and loses some only if the highest rate of the last `settle` seconds fits fewer at `scale_in`. If its
    instances are not placed (a Spark source stage: tasks run on any free slot), it gets as many as slots that the load
    fills to `scale_out`, at most all slots: a task without a slot waits for another, and every task has a fixed cost. The
    pool of a `waits` operator has no slots and follows its occupied threads. Tasks with state are spread onto new hosts
    (`planning.algorithms.placement`).

    A rule that needs an unknown value does nothing.

    scale_out, scale_in: fractions of cores, scale_in below scale_out (E2DF: 0.7, and 0.75 of it). spare: hosts. settle,
    cool_down, window: seconds. host_type: type to lease; None: that with the lowest price per core and second, the smaller
    one if equal (E2DF: finest control). max_parallelism: most instances of one operator.
    """

    scale_out: float = 0.7
    scale_in: float | None = None
    spare: int = 0
    settle: float = 10.0
    cool_down: float = 10.0
    window: float = 10.0
    host_type: str | None = None
    max_parallelism: int = 64

    def __post_init__(self) -> None:
        if self.scale_in is None:
            object.__setattr__(self, "scale_in", IN_TO_OUT * self.scale_out)
        if not 0 < self._scale_in < self.scale_out <= 1:
            raise ElastreamError(
                f"scale_in is {self.scale_in:g} and scale_out {self.scale_out:g}; must hold: 0 < scale_in < scale_out <= 1"
            )

    @property
    def _scale_in(self) -> float:
        return IN_TO_OUT * self.scale_out if self.scale_in is None else self.scale_in

    needs: ClassVar[Needs] = frozenset(
        {(Rows.OPERATOR, Metric.ARRIVAL_RATE), (Rows.OPERATOR, Metric.PROCESSED_RATE), (Rows.OPERATOR, Metric.BUSY_CORES)}
    )
    name: ClassVar = "threshold"

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Host actions, then parallelism, then moves."""
        hosts, parallelism = self.scale(observation)
        moves = [] if any(isinstance(action, DrainHost) for action in hosts) else balance(observation)
        actions = (*hosts, *parallelism, *moves)
        return Plan(actions, predicted=self.predict(observation, actions))

    def scale(self, observation: Observation) -> tuple[list[Action], list[Action]]:
        """Host actions and parallelism actions of the plan, without moves."""
        load = LoadFigures(observation, self.window, self.settle)
        wanted = {operator: self._instances(load, operator) for operator in sorted(observation.context.scalable)}
        hosts = self._hosts(load, load.reserved({operator: new for operator, (_, new, _) in wanted.items()}))
        parallelism: list[Action] = [
            SetParallelism(operator, int(new), why=why)
            for operator, (now, new, why) in wanted.items()
            if not math.isnan(now) and new != now
        ]
        return hosts, parallelism

    def predict(self, observation: Observation, actions: Sequence[Action]) -> Mapping[str, float]:
        """Usable hosts after `actions`, and busy cores if the load stays the same."""
        drained = sum(isinstance(action, DrainHost) for action in actions)
        kept = sum(isinstance(action, CancelDrain) for action in actions)
        return {
            "hosts_usable": float(len(observation.usable) - drained + kept),
            "busy_cores": LoadFigures(observation, self.window, self.settle).demand,
        }

    def _hosts(self, load: "LoadFigures", reserved: float) -> list[Action]:
        observation = load.observation
        draining = [host for host, lease in observation.leases.items() if lease.state is HostState.DRAINING]
        more = self._grow(load, reserved, draining)
        plan: list[Action] = [
            ReleaseHost(host, why="it holds no more tasks")
            for host in draining
            if not tasks_on(observation, host) and CancelDrain(host) not in more
        ]
        return [*plan, *more] if more or draining else self._shrink(load, reserved)

    def _grow(self, load: "LoadFigures", reserved: float, draining: list[str]) -> list[Action]:
        observation, context = load.observation, load.observation.context
        kind = self._kind(observation)
        need, why = load.need(kind.start, self._since_change(observation) >= self.cool_down)
        there = (*observation.usable, *observation.coming)
        has, each = capacity(observation, there), kind.cores * kind.speed
        lacking = max(context.min_hosts - len(there), math.ceil((reserved - has) / each - 1e-9))
        if not math.isnan(need):
            lacking = max(lacking, math.ceil((need / self.scale_out - has) / each - 1e-9) + self.spare)
        kept = draining[: max(0, lacking)]
        leases = min(max(0, lacking) - len(kept), context.max_hosts - len(observation.leases))
        return [
            *(CancelDrain(host, why=why) for host in kept),
            *(LeaseHost(observation.host_name(n), kind.name, kind.region, why=why) for n in range(leases)),
        ]

    def _shrink(self, load: "LoadFigures", reserved: float) -> list[Action]:
        observation = load.observation
        usable = observation.usable
        if (
            observation.coming
            or len(usable) <= observation.context.min_hosts
            or self._since_change(observation) < self.cool_down
            or load.late
        ):
            return []
        victim = min(
            usable,
            key=lambda h: (tasks_on(observation, h), observation.leases[h].remaining(observation.time), usable.index(h)),
        )
        rest = [host for host in usable if host != victim]
        # Spare hosts are kept in addition to the need: the smallest of the rest count as spare.
        working = sorted(rest, key=lambda host: host_capacity(observation, host))[self.spare :]
        left = capacity(observation, working)
        if not (load.peak <= self._scale_in * left and reserved <= left):
            return []
        use = f"{load.peak / left:.0%}" if left else "0%"
        why = f"{len(working)} hosts are used at {use} at most, as seen for {format_duration(self.settle)}"
        return [DrainHost(victim, why=why)]

    def _instances(self, load: "LoadFigures", operator: str) -> tuple[float, float, str]:
        """(current instances of `operator`, wanted instances, reason); NaN if the current ones are unknown."""
        now = load.parallelism(operator)
        if math.isnan(now):
            return now, now, ""
        if slots := load.free_slots(operator):
            return now, min(load.slots_filled(slots, now, self.scale_out, self._scale_in), self.max_parallelism), "load"
        work, each = load.stage(operator, now)
        grown = _instances(load.arriving * work, each * self.scale_out, now)
        shrunk = _instances(load.peak_rate * work, each * self._scale_in, now)
        wanted = grown if grown > now else min(shrunk, now)
        return now, min(wanted, self.max_parallelism), "utilisation"

    def _kind(self, observation: Observation) -> HostType:
        types = observation.context.host_types
        if self.host_type is not None:
            return types[self.host_type]
        return min(types.values(), key=lambda t: (t.price / t.billing.unit / (t.cores * t.speed), t.cores))

    def _since_change(self, observation: Observation) -> float:
        """Seconds since a host came, or a drain was begun or cancelled; inf if never."""
        changes = [at for host in observation.usable for at, _ in observation.leases[host].history[1:]]
        changes += [lease.history[-1][0] for lease in observation.leases.values() if lease.state is HostState.DRAINING]
        return observation.time - max(changes, default=-math.inf)


class LoadFigures:
    """Load figures derived from an observation and its history, in cores of speed 1; NaN if unknown."""

    def __init__(self, observation: Observation, window: float, settle: float) -> None:
        self.observation = observation
        frames = [*((s.time, s.operators) for s in observation.history), (observation.time, observation.operators)]
        times = np.array([time for time, _ in frames])
        self._recent = [frame for time, frame in frames if time > observation.time - window]
        self._settled = [frame for time, frame in frames if time >= observation.time - settle]
        self._known_for = observation.time - float(times[0])
        self._settle = settle

    @cached_property
    def arriving(self) -> float:
        """Records/s arriving at the sources now."""
        return source_sum(self.observation, Metric.ARRIVAL_RATE)

    @cached_property
    def processed(self) -> float:
        """Highest processed rate of the sources within the window, records/s: a rate that the hosts can sustain."""
        rates = [source_sum(self.observation, Metric.PROCESSED_RATE, frame) for frame in self._recent]
        return max((rate for rate in rates if not math.isnan(rate)), default=math.nan)

    @cached_property
    def work(self) -> float:
        """Core-seconds that all operators together spend per record from a source."""
        # Operators that wait occupy threads, not cores.
        return self._per_record([o.name for o in self.observation.context.graph.operators if not o.waits])

    @property
    def demand(self) -> float:
        """Cores needed at the current arrival rate."""
        return self._cores(self.arriving)

    @cached_property
    def peak_rate(self) -> float:
        """Highest arrival rate of the last `settle` seconds; NaN if not all of that time was observed."""
        rates = [source_sum(self.observation, Metric.ARRIVAL_RATE, frame) for frame in self._settled]
        unknown = self._known_for < self._settle or any(math.isnan(rate) for rate in rates)
        return math.nan if unknown else max(rates)

    @property
    def peak(self) -> float:
        """Cores needed at `peak_rate`, or those that the hosts use now if that is more."""
        return float(np.fmax(self._cores(self.peak_rate), self.used) if not math.isnan(self.peak_rate) else math.nan)

    @property
    def used(self) -> float:
        """Cores that the usable hosts use, including work not attributed to operators; NaN if unknown."""
        hosts = self.observation.hosts
        return known_sum(
            np.array([hosts.value(h, Metric.CPU) * host_capacity(self.observation, h) for h in self.observation.usable])
        )

    @cached_property
    def backlog(self) -> float:
        """Records queued at all operators, as far as known."""
        return known_sum(self.observation.operators.column(Metric.BACKLOG))

    @property
    def late_backlog(self) -> float:
        """Records queued beyond what the target latency allows at the current rate (Little's law)."""
        target = self.observation.context.target_latency
        return math.nan if target is None else max(0.0, self.backlog - self.arriving * target)

    @property
    def late(self) -> bool:
        """Whether the target latency is exceeded, or late backlog will exceed it."""
        target, latency = self.observation.context.target_latency, self.observation.latency().value
        # The latency is that of the last records: outdated if nothing arrives and nothing is queued.
        stale = self.arriving == 0 and not self.backlog > 0
        return target is not None and not stale and ((latency is not None and latency > target) or self.late_backlog > 0)

    def need(self, start: float, settled: bool) -> tuple[float, str]:
        """(cores needed, reason). start: start time of a host, seconds. settled: no host came within `cool_down`."""
        observation, target = self.observation, self.observation.context.target_latency
        need, why = self.demand, "load"
        drained = self.late_backlog * self.work / max(target or 0.0, start, 1e-9)
        if drained > 0:
            need, why = need + drained, "load and late backlog"
        growing = self.arriving > self.processed
        if self.late and growing and settled and not observation.coming and observation.usable:
            there = capacity(observation, observation.usable)
            behind = there * self.arriving / self.processed if self.processed > 0 else there
            least = there + 1e-6  # slightly above all usable cores: at least one host more
            if not max(behind, least) <= need:
                need, why = max(behind, least), "late, and falling behind"
        return need, why

    def stage(self, operator: str, instances: float) -> tuple[float, float]:
        """(core-seconds per source record of the stage led by `operator`, cores that one instance can use).

        The cores are those that each of its `instances` got, by its utilisation, else the declared ones. An operator that
        leads no stage has a thread pool in each instance of its stage; its figures are its own, in thread-seconds.
        """
        context, frame = self.observation.context, self.observation.operators
        stage = context.layout.stage_of[operator]
        if stage.name != operator:
            width = self.observation.composition.parallelism.get(stage.name, 1)
            return self._per_record((operator,)), float(width)
        members = tuple(name for name in stage.operators if not context.graph.by_name[name].waits or name == operator)
        busy, used = _sum_of(frame, Metric.BUSY_CORES, members), _sum_of(frame, Metric.UTILISATION, members)
        if used > 0 and busy > 0:
            return self._per_record(members), busy / (used * instances)
        return self._per_record(members), max(context.graph.by_name[name].cores for name in members)

    def parallelism(self, operator: str) -> float:
        """Instances of `operator`: of the composition, else measured; NaN if unknown."""
        composed = self.observation.composition.parallelism.get(operator, math.nan)
        return self.observation.operators.value(operator, Metric.PARALLELISM) if math.isnan(composed) else composed

    def reserved(self, instances: Mapping[str, float]) -> float:
        """Cores that `instances` (by operator) reserve, counting operators whose instances are placed."""
        operators = self.observation.context.graph.by_name
        return math.fsum(
            operators[name].cores * number
            for name, number in instances.items()
            if not math.isnan(number) and self._placed(name)
        )

    def _placed(self, operator: str) -> bool:
        row = self.observation.operators.rows.get(operator, -1)
        return bool((self.observation.tasks.operator == row).any())

    def free_slots(self, operator: str) -> int:
        """Slots of the working hosts, if tasks of `operator` run on any free slot; 0 if its tasks are placed."""
        observation = self.observation
        if observation.context.graph.by_name[operator].waits or self._placed(operator):
            return 0
        return sum(observation.leases[host].type.slots for host in self._working)

    def slots_filled(self, slots: int, now: float, scale_out: float, scale_in: float) -> int:
        """Number of `slots` that the load fills to `scale_out`; below `now` only if the peak fits at `scale_in`."""
        each = capacity(self.observation, self._working) / slots
        grown = _instances(self.demand, each * scale_out, slots)
        shrunk = _instances(self.peak, each * scale_in, now)
        return int(min(slots, grown if grown > now else min(shrunk, now)))

    @cached_property
    def _working(self) -> tuple[str, ...]:
        """Hosts that run tasks; a draining one still runs tasks that are not placed."""
        leases = self.observation.leases.items()
        return tuple(host for host, lease in leases if lease.state in (HostState.RUNNING, HostState.DRAINING))

    def _per_record(self, names: Sequence[str]) -> float:
        pairs = [
            (_sum_of(frame, Metric.BUSY_CORES, names), source_sum(self.observation, Metric.PROCESSED_RATE, frame))
            for frame in self._recent
        ]
        known = [(busy, rate) for busy, rate in pairs if not math.isnan(busy + rate)]
        records = math.fsum(rate for _, rate in known)
        return math.fsum(busy for busy, _ in known) / records if records > 0 else math.nan

    def _cores(self, rate: float) -> float:
        """Cores needed for `rate` records/s: by the line through recent observations, else in proportion."""
        if rate == 0:
            return 0.0
        fixed, each = self._line
        if not math.isnan(each):
            return fixed + each * rate
        # The first batches of a run are dominated by start-up costs.
        if len(self._pairs) < LEAST_SAMPLES:
            return math.nan
        known = rate if math.isnan(self.processed) else min(rate, FARTHEST * self.processed)
        return known * self.work

    @cached_property
    def _pairs(self) -> NDArray[np.float64]:
        """(records/s processed, busy cores) of the last LINE_SAMPLES observations, where known; shape (n, 2)."""
        frames = [*(sample.operators for sample in self.observation.history[-LINE_SAMPLES:]), self.observation.operators]
        names = [o.name for o in self.observation.context.graph.operators if not o.waits]
        pairs = np.array(
            [
                (source_sum(self.observation, Metric.PROCESSED_RATE, frame), _sum_of(frame, Metric.BUSY_CORES, names))
                for frame in frames
            ]
        )
        known: NDArray[np.float64] = pairs[~np.isnan(pairs).any(axis=1) & (pairs[:, 0] > 0)]
        return known

    @cached_property
    def _line(self) -> tuple[float, float]:
        """(cores busy without load, core-seconds per additional record); NaN if the data does not separate them.

        A micro-batch has a fixed cost: in proportion to records, a light load would overestimate the cost of a record, and
        a step of the load would be answered with too many hosts.
        """
        pairs = self._pairs
        if len(pairs) < LEAST_SAMPLES or not pairs[:, 0].max() > SPREAD * pairs[:, 0].min():
            return math.nan, math.nan
        rates, busy = pairs.T
        each = float(np.cov(rates, busy)[0, 1] / rates.var(ddof=1))
        fixed = float(busy.mean() - each * rates.mean())
        return (fixed, each) if each > 0 and fixed > 0 else (math.nan, math.nan)


def _sum_of(frame: Frame, metric: Metric, names: Sequence[str]) -> float:
    return known_sum(np.array([frame.value(name, metric) for name in names]))


def _instances(cores: float, each: float, otherwise: float) -> float:
    """Number of instances of `each` cores that provide `cores`, at least one; `otherwise` if unknown."""
    return otherwise if math.isnan(cores) or not each > 0 else max(1, math.ceil(cores / each - 1e-9))
