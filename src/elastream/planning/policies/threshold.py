"""Hosts by spare capacity and operators by utilisation: the reactive policy that a run has by default.

One rule for Spark and the simulator alike, with nothing to learn and nothing to tune per dataflow. The target utilisation
and the gap between growing and shrinking follow E2DF's local policies (section 4); that hosts are asked for all at once and
by work instead of one by one follows from how long a leased host takes to help.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from elastream.model.action import Action, CancelDrain, DrainHost, LeaseHost, ReleaseHost, SetParallelism
from elastream.model.cloud import HostState, HostType
from elastream.model.errors import ElastreamError
from elastream.model.observation import Frame, Metric, Observation
from elastream.model.plant import Plan
from elastream.model.units import format_duration
from elastream.planning.algorithms.measures import capacity, host_capacity, known_sum, source_sum, tasks_on
from elastream.planning.algorithms.placement import balance

__all__ = ["Load", "Threshold"]

LINE_SAMPLES, LEAST_SAMPLES, SPREAD = 30, 6, 1.5
"""Monitoring times that the line through rate and busy cores is drawn through, the fewest it needs, and how many times the
lowest rate the highest must be: on less, a slope says more about noise than about records."""
IN_TO_OUT = 0.75
"""Of scale_out, what scale_in is by default (E2DF, section 4: 0.7, and 0.75 of it)."""
FARTHEST = 4.0
"""Times the highest rate processed lately beyond which work in proportion to records is not believed; the next rounds see
more."""


@dataclass(frozen=True)
class Threshold:
    """Keep the cores in use at `scale_out` of those to be had.

    **Need.** The cores needed are those that the rate arriving now takes on the line through the rates and busy cores
    seen lately; where no line can be drawn (too few samples, or rates too alike), work per record over the last `window`
    seconds times that rate, which is believed up to FARTHEST times the rates seen. To that comes what it takes to work
    off late backlog: the part above arrival rate x target latency (Little's law: with less than that waiting, nobody is
    late). Backlog is to be gone within the target latency, or within the time that a host takes to start where that is
    longer, since no host leased now helps earlier. Where the 99th percentile of latency is above target although records
    arrive faster than they are taken, and no host came in the last `cool_down` seconds, the hosts there are fall short
    whatever their metered work says: then the need is their cores times arrival over processed rate, and at least one
    host more. Where instances have places of their own (the simulator), hosts must also have the cores that those
    reserve.

    **Growing.** All hosts that the need lacks are asked for at once: drains are cancelled first, then hosts leased, as many
    as bring usable and coming cores to need / `scale_out`, and `spare` hosts on top. So a step of the load is answered
    in the round that sees it. Hosts under way count, so the same need is never answered twice. Below `min_hosts`, hosts
    are leased whatever is known.

    **Shrinking.** One host at a time is drained, that with fewest tasks and least paid time left, and released once it
    holds none. Only when even the highest arrival rate of the last `settle` seconds, and what the hosts' CPU shows now,
    would use the hosts left at no more than `scale_in`, nothing is late, nothing comes or drains, and `cool_down` seconds
    have passed since a host came or a drain was last begun or cancelled.

    **Operators.** A stage whose parallelism can be set gets the instances that keep each at `scale_out` of its cores at
    the present rate, and loses some only when the highest rate of the last `settle` seconds fits fewer at `scale_in`.
    Where its instances have no place of their own (a Spark source stage: tasks go to any free slot), it gets as many as
    slots that the load fills to `scale_out`, and never more than there are: a task without a slot only waits for the one
    before it, and every task costs something however few its records. A `waits`
    operator's pool has no slots and follows the threads it keeps taken alone. Tasks with state are spread onto new hosts
    (`planning.placement`).

    Anything unknown that a rule needs makes that rule do nothing.

    scale_out, scale_in: fractions of cores, scale_in below scale_out (E2DF: 0.7, and 0.75 of it). spare: hosts. settle,
    cool_down, window: seconds. host_type: what to lease; by default the type of lowest price per core and second, the
    smaller one where they are equal (E2DF: finest control). max_parallelism: instances of one operator.
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
                f"scale_in {self.scale_in:g} and scale_out {self.scale_out:g}: 0 < scale_in < scale_out <= 1"
            )

    @property
    def _scale_in(self) -> float:
        return IN_TO_OUT * self.scale_out if self.scale_in is None else self.scale_in

    @property
    def name(self) -> str:
        return "threshold"

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Hosts, then parallelism, then moves."""
        hosts, parallelism = self.scale(observation)
        moves = [] if any(isinstance(action, DrainHost) for action in hosts) else balance(observation)
        actions = (*hosts, *parallelism, *moves)
        return Plan(actions, predicted=self.predict(observation, actions))

    def scale(self, observation: Observation) -> tuple[list[Action], list[Action]]:
        """The part of the plan that is about hosts, and that about parallelism: where tasks lie is left to others."""
        load = Load(observation, self.window, self.settle)
        wanted = {operator: self._instances(load, operator) for operator in sorted(observation.context.scalable)}
        hosts = self._hosts(load, load.reserved({operator: new for operator, (_, new, _) in wanted.items()}))
        parallelism: list[Action] = [
            SetParallelism(operator, int(new), why=why)
            for operator, (now, new, why) in wanted.items()
            if not math.isnan(now) and new != now
        ]
        return hosts, parallelism

    def predict(self, observation: Observation, actions: Sequence[Action]) -> Mapping[str, float]:
        """The hosts that will take tasks, and the cores busy if the load stays as it is."""
        drained = sum(isinstance(action, DrainHost) for action in actions)
        kept = sum(isinstance(action, CancelDrain) for action in actions)
        return {
            "hosts_usable": float(len(observation.usable) - drained + kept),
            "busy_cores": Load(observation, self.window, self.settle).demand,
        }

    def _hosts(self, load: "Load", reserved: float) -> list[Action]:
        observation = load.observation
        draining = [host for host, lease in observation.leases.items() if lease.state is HostState.DRAINING]
        more = self._grow(load, reserved, draining)
        plan: list[Action] = [
            ReleaseHost(host, why="it holds no task any more")
            for host in draining
            if not tasks_on(observation, host) and CancelDrain(host) not in more
        ]
        return [*plan, *more] if more or draining else self._shrink(load, reserved)

    def _grow(self, load: "Load", reserved: float, draining: list[str]) -> list[Action]:
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

    def _shrink(self, load: "Load", reserved: float) -> list[Action]:
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
        # Spare hosts are kept beside what the load needs: the smallest of the rest count as spare.
        working = sorted(rest, key=lambda host: host_capacity(observation, host))[self.spare :]
        left = capacity(observation, working)
        if not (load.peak <= self._scale_in * left and reserved <= left):
            return []
        use = f"{load.peak / left:.0%}" if left else "0%"
        why = f"{len(working)} hosts are used at {use} at most, as seen for {format_duration(self.settle)}"
        return [DrainHost(victim, why=why)]

    def _instances(self, load: "Load", operator: str) -> tuple[float, float, str]:
        """Instances that `operator` has and should have, and why; NaN where it is not known what it has."""
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
        """Seconds since a host came, or a drain was begun or cancelled; inf where none ever was."""
        changes = [at for host in observation.usable for at, _ in observation.leases[host].history[1:]]
        changes += [lease.history[-1][0] for lease in observation.leases.values() if lease.state is HostState.DRAINING]
        return observation.time - max(changes, default=-math.inf)


class Load:
    """What an observation and its history say about the work to be done, in cores of speed 1; NaN where unknown."""

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
        """Records/s that the sources passed on at their best within the window: what the hosts are known to manage."""
        rates = [source_sum(self.observation, Metric.PROCESSED_RATE, frame) for frame in self._recent]
        return max((rate for rate in rates if not math.isnan(rate)), default=math.nan)

    @cached_property
    def work(self) -> float:
        """Core-seconds that all operators together spend on a record taken from a source."""
        # What operators that wait take is threads, not cores.
        return self._per_record([o.name for o in self.observation.context.graph.operators if not o.waits])

    @property
    def demand(self) -> float:
        """Cores that what arrives now takes."""
        return self._cores(self.arriving)

    @cached_property
    def peak_rate(self) -> float:
        """Highest arrival rate of the settling time; NaN where not all of that time was seen."""
        rates = [source_sum(self.observation, Metric.ARRIVAL_RATE, frame) for frame in self._settled]
        unknown = self._known_for < self._settle or any(math.isnan(rate) for rate in rates)
        return math.nan if unknown else max(rates)

    @property
    def peak(self) -> float:
        """Cores that the highest arrival rate of the settling time takes, or that the hosts use now if that is more."""
        return float(np.fmax(self._cores(self.peak_rate), self.used) if not math.isnan(self.peak_rate) else math.nan)

    @property
    def used(self) -> float:
        """Cores that the usable hosts use, all included that no operator is charged with; NaN where it is unknown."""
        hosts = self.observation.hosts
        return known_sum(
            np.array([hosts.value(h, Metric.CPU) * host_capacity(self.observation, h) for h in self.observation.usable])
        )

    @cached_property
    def backlog(self) -> float:
        """Records queued anywhere, as far as known."""
        return known_sum(self.observation.operators.column(Metric.BACKLOG))

    @property
    def late_backlog(self) -> float:
        """Records queued beyond what the target latency allows at the present rate (Little's law)."""
        target = self.observation.context.target_latency
        return math.nan if target is None else max(0.0, self.backlog - self.arriving * target)

    @property
    def late(self) -> bool:
        """Whether the target latency is known to be exceeded, or about to be."""
        target, latency = self.observation.context.target_latency, self.observation.latency().value
        # A latency is that of the last records there were: with nothing arriving and nothing queued it says nothing.
        stale = self.arriving == 0 and not self.backlog > 0
        return target is not None and not stale and ((latency is not None and latency > target) or self.late_backlog > 0)

    def need(self, start: float, settled: bool) -> tuple[float, str]:
        """Cores needed and why, for hosts that take `start` seconds to come; `settled`: no host came a moment ago."""
        observation, target = self.observation, self.observation.context.target_latency
        need, why = self.demand, "load"
        drained = self.late_backlog * self.work / max(target or 0.0, start, 1e-9)
        if drained > 0:
            need, why = need + drained, "load and late backlog"
        growing = self.arriving > self.processed
        if self.late and growing and settled and not observation.coming and observation.usable:
            there = capacity(observation, observation.usable)
            behind = there * self.arriving / self.processed if self.processed > 0 else there
            least = there + 1e-6  # a trace above all there is makes one host more
            if not max(behind, least) <= need:
                need, why = max(behind, least), "late, and falling behind"
        return need, why

    def stage(self, operator: str, instances: float) -> tuple[float, float]:
        """(core-seconds that the stage led by `operator` spends on a record from a source, cores one instance can use).

        The cores are what its utilisation says that each of its `instances` was given, else what it asked for. An operator
        that leads no stage has a pool of threads in each instance of its stage and stands for itself, in thread-seconds.
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
        """Instances of `operator`: as composed, else as measured; NaN where unknown."""
        composed = self.observation.composition.parallelism.get(operator, math.nan)
        return self.observation.operators.value(operator, Metric.PARALLELISM) if math.isnan(composed) else composed

    def reserved(self, instances: Mapping[str, float]) -> float:
        """Cores that `instances` by operator reserve, of those that have places of their own."""
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
        """Slots of the hosts at work, where tasks of `operator`'s stage take any that is free; 0 where they have places."""
        observation = self.observation
        if observation.context.graph.by_name[operator].waits or self._placed(operator):
            return 0
        return sum(observation.leases[host].type.slots for host in self._working)

    def slots_filled(self, slots: int, now: float, scale_out: float, scale_in: float) -> int:
        """Of `slots`, those that the load fills to `scale_out`; fewer than `now` if its peak fits them at `scale_in`."""
        each = capacity(self.observation, self._working) / slots
        grown = _instances(self.demand, each * scale_out, slots)
        shrunk = _instances(self.peak, each * scale_in, now)
        return int(min(slots, grown if grown > now else min(shrunk, now)))

    @cached_property
    def _working(self) -> tuple[str, ...]:
        """Hosts that tasks run on: one that is being drained goes on with those that have no place of their own."""
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
        """Cores that `rate` records/s take: on the line through what was seen lately, else in proportion."""
        if rate == 0:
            return 0.0
        fixed, each = self._line
        if not math.isnan(each):
            return fixed + each * rate
        # The first batches of a run show what starting costs, not what records cost.
        if len(self._pairs) < LEAST_SAMPLES:
            return math.nan
        known = rate if math.isnan(self.processed) else min(rate, FARTHEST * self.processed)
        return known * self.work

    @cached_property
    def _pairs(self) -> NDArray[np.float64]:
        """Records/s processed and cores busy at the last LINE_SAMPLES monitoring times, where known; shape (n, 2)."""
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
        """Cores that are busy at no load, and core-seconds that a further record adds; NaN where they cannot be told apart.

        Having a micro-batch costs something however few its records: taken in proportion, a light load makes each record
        look dear, and a step of it would be answered with far too many hosts.
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
    """Instances of `each` cores that give `cores`, at least one; `otherwise` where unknown."""
    return otherwise if math.isnan(cores) or not each > 0 else max(1, math.ceil(cores / each - 1e-9))
