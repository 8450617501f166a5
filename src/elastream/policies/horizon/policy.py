"""Policy `Horizon`, on Spark and in simulation. The docs page on how hosts are chosen explains its rules."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import numpy as np

from elastream.core.action import Action, DrainHost
from elastream.core.decision import EXPECTED_IN, EXPECTED_RATE, Unknown
from elastream.core.frames import Floats
from elastream.core.hosts import HostType
from elastream.core.latency import share_within
from elastream.core.lazy import once
from elastream.core.metrics import Metric, Needs
from elastream.core.observation import Context, Observation
from elastream.core.plant import Plan, Policy, Prospect
from elastream.core.wording import counted
from elastream.dataflow.stages import Unit
from elastream.errors import ElastreamError
from elastream.policies.common.chained import shared_capacity
from elastream.policies.common.load_history import LoadHistory
from elastream.policies.common.measures import missing_type_reason
from elastream.policies.common.placement import balance
from elastream.policies.common.service import FIRST_OVERHEAD, MARGIN, MOST_OVERHEAD, Service
from elastream.policies.common.unchained import CoreNeed, needs_of
from elastream.policies.forecasting.series import Ahead, true_rates
from elastream.policies.forecasting.trend import Forecast
from elastream.policies.horizon.budget import (
    SCENARIO_NAMES,
    Grid,
    Outlook,
    binding,
    time_late,
    waiting_at_start,
    with_backlog,
)
from elastream.policies.horizon.replay import REPLAYED, Choice, Fleet, Setting, replay
from elastream.policies.horizon.scenarios import Past, scenarios
from elastream.policies.threshold import ChainedRound, Reason, SizingRound, Threshold, UnchainedRound
from elastream.units import ROUNDING, format_duration, format_rate

# Row of an outlook whose need is the highest rate in sight: the worst jump is no expectation.
EXPECTED = -2
# Outlooks after which bins keep their length.
SETTLED = 10
# Least seconds between replays, their growth with the run's length, and their most part of what a replay sees.
REPLAY_EVERY_S, REPLAY_GROWTH, REPLAY_OVERLAP = 300.0, 0.15, 0.5
# Horizons of past that a replay needs.
LEAST_PAST = 3
# Multiple of a host's start for which hosts are kept before there is a replay.
FIRST_HOLD = 2.0
# Step of the adaptive conformal inference (Gibbs & Candes 2021, Eq. 2) of the allowance, and the least allowance.
STEP, LEAST_ALLOWANCE = 0.1, -0.03
# Multiple of the backlog foreseen in vain from which one is no noise.
IN_VAIN = 1.25
# Multiple of a host's start for which a need must have lasted before cheaper hosts replace an expensive one.
LASTING = 4.0
# Multiples of a host's start in which cheaper hosts should work, and after which another exchange is tried: twice as late
# after each one that left the expensive host, at most so many times.
EXCHANGE, AGAIN, MOST_FAILURES = 2.0, 20.0, 10
# Part by which a need may exceed the cores that are there or come: no need is known better.
TOLERANCE = 0.02
# Least part of a busy round's work that grows with its records. Noise and code that is compiled meanwhile hide it.
PROPORTIONAL = 0.5
# Seconds for which late records exclude that one more jump is forgiven.
DAY_S = 86_400.0
# Shares of late records, in a replay and in the run, that differ by more show a wrong margin.
UNLIKE = 0.005
# Part of a lease's paid time in which the records that waited for the first hosts are served. Later hosts would idle.
FIRST_CATCH_UP = 0.05
# Part of the budget that records may wait before hosts are leased, while the load has no past.
PATIENCE = 0.5
# Part of the records that must be in time, unless the run says otherwise.
IN_TIME = 0.99


@dataclass(frozen=True, slots=True)
class Exchange:
    """Leases of cheaper hosts that take the place of an expensive one.

    Attributes:
        host: The host to drain once they work.
        until: Time until which it may be drained for that (seconds of the run).
        failures: Earlier exchanges that left it.
    """

    host: str = ""
    until: float = -math.inf
    failures: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Memory:
    """Memory of a run.

    Attributes:
        needs: Highest needed capacity of each bin (records/s) without a backlog.
        late: (late records, records) since the last replay.
        earlier: The same of about the last day before it.
        allowance: Share of records that may be late in a replay.
        counted: Seconds of `late`.
        next_replay: Time of the next replay (seconds of the run).
        work: Cores that a record/s keeps busy, as last known; NaN before.
        host_start: Start of hosts as last measured (seconds); 0 before.
        spare: Factor on the records/s of a host in replays of a fixed fleet.
        settled: Records were in time after the first replay.
        exchange: The last one that was begun.
    """

    history: LoadHistory
    service: Service
    grid: Grid
    past: Past
    choice: Choice
    allowance: float
    outlooks: tuple[Outlook, ...] = ()
    needs: tuple[float, ...] = ()
    late: tuple[float, float] = (0.0, 0.0)
    earlier: tuple[float, float] = (0.0, 0.0)
    counted: float = 0.0
    next_replay: float = 0.0
    work: float = math.nan
    host_start: float = 0.0
    spare: float = 1.0
    settled: bool = False
    exchange: Exchange = Exchange()


@dataclass(frozen=True)
class Horizon(Policy):
    """Lease the fewest hosts that serve every expected record within the target latency.

    A plan serves every record of one scenario, from the load's own past, by its deadline. Every few minutes a replay of the
    past selects the cheapest settings that would have met the target.

    Args:
        in_time: Part of the records that must be in time.
        host_type: Type to lease. None: the cheapest per core and second; of equals the smallest.
        max_parallelism: Most instances of one operator. None: 64 threads for an operator that waits, else no limit.
        perfect: Plan for the load as it will come, in simulated runs.

    Raises:
        ElastreamError: A parameter is outside its range.
    """

    in_time: float = IN_TIME
    host_type: str | None = None
    max_parallelism: int | None = None
    perfect: bool = False
    prospect: ClassVar[Prospect | None] = None  # of an instance that is `prepared`

    needs: ClassVar[Needs] = Threshold.needs

    def __post_init__(self) -> None:
        if not 0 < self.in_time < 1:
            raise ElastreamError(f"in_time is {self.in_time:g}; it must be above 0 and below 1")
        if self.max_parallelism is not None and self.max_parallelism < 1:
            raise ElastreamError(f"max_parallelism is {self.max_parallelism}; it must be 1 or more")

    @property
    def name(self) -> str:
        return "horizon, perfect" if self.perfect else "horizon"

    @property
    def default_window(self) -> bool:
        """Return True: the cloud may say how long hosts stay idle."""
        return True

    def unsupported_reason(self, context: Context) -> str | None:
        if self.perfect and self.prospect is None:
            return "perfect forecasts are those of simulated runs: leave perfect out, or simulate"
        return missing_type_reason(context, self.host_type)

    def prepared(self, prospect: Prospect) -> "Horizon":
        prepared = replace(self)
        object.__setattr__(prepared, "prospect", prospect)
        return prepared

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Plan host actions, then parallelism, then moves of tasks. The memory is a `Memory`."""
        before = memory if isinstance(memory, Memory) else None
        if before is None:
            _compile()
        unchained = observation.context.layout.unchained
        rules = Threshold(
            scale_out=1.0, tolerance=0.0, settle=0.0, host_type=self.host_type, max_parallelism=self.max_parallelism
        )
        round_ = (_Unchained if unchained else _Chained)(rules, observation, None if before is None else before.history)
        round_.foresee(self, before)
        scaling = round_.plan()
        drains = any(isinstance(action, DrainHost) for action in scaling.hosts)
        moves = [] if drains or unchained else balance(observation)
        actions = (*scaling.hosts, *scaling.parallelism, *moves)
        remarks = (*round_.remarks, *scaling.remarks)
        after = round_.remember(scaling.history)
        predicted = {**scaling.predicted, **round_.expected}
        return Plan(actions, after, predicted, remarks, (), scaling.unknown, scaling.recommended)


class _Foreseeing(SizingRound):
    """Planning round that sizes hosts for the scenarios ahead."""

    remarks: tuple[str, ...] = ()
    _first = False  # the need is that of the first hosts
    _then = (0.0, 0.0)  # records that wait once a host requested now works, and the seconds for which they may be late

    def foresee(self, policy: Horizon, before: Memory | None) -> None:
        observation = self.observation
        self.target = observation.context.target_latency or math.fsum(
            operator.max_duration or 0.0 for operator in observation.context.graph.operators
        )
        self._loads = tuple(policy.prospect.loads.values()) if policy.perfect and policy.prospect is not None else ()
        service = Service() if before is None else before.service
        self.service = service.after(observation, self.before, self._working)
        self._learned_start = 0.0 if before is None else before.host_start
        self.grid = self._fitting_grid(before)
        if before is None:
            # While a host requested later would still come in time, nothing has to be leased for what may not come.
            row = 0 if self.grid.budget > self.grid.host_start + self.pace else 1
            choice = Choice(Setting(row, hold=FIRST_HOLD * self.grid.host_start))
            before = Memory(
                self.history, self.service, self.grid, Past(self.grid.seconds), choice, allowance=1 - policy.in_time
            )
        if before.past.seconds != self.grid.seconds:
            before = replace(before, past=Past(self.grid.seconds), outlooks=(), needs=())
        elif before.outlooks and not before.grid.alike(self.grid):
            before = replace(before, outlooks=self._made_again(before.past, len(before.outlooks)))
        self.memory = self._with_arrivals(self._with_late(before))
        if self._replays:
            self.memory = self._replayed(policy)
        self.settle = self.memory.choice.setting.hold
        if self.memory.choice.constant:
            self.remarks = (self._why_least,)

    def _fitting_grid(self, before: Memory | None) -> Grid:
        start, age = self._host_start(), self.load.age
        work = 0.0 if before is None else before.work
        in_a_row = self.observation.context.layout.in_a_row
        budget = self.service.budget(self.target, self._batch_limit, PROPORTIONAL * work, in_a_row)
        paid = self.host_type.billing.shortest
        if before is None:
            return Grid.of(start, budget, self.pace, None, paid, age)
        # First rounds may be closer together than later ones. A bin holds a round at least, and then stays as long.
        young = len(before.outlooks) < SETTLED
        fits = before.grid.fits(start, budget) and not (young and self.pace > before.grid.seconds)
        if fits and abs(age - before.grid.age) <= max(before.grid.seconds, 0.25 * (before.grid.age + start)):
            return before.grid
        return Grid.of(start, budget, self.pace, None if young and not fits else before.grid.seconds, paid, age)

    @property
    def _batch_limit(self) -> float | None:
        context = self.observation.context
        return context.batch_seconds if all(each.load is not None for each in context.graph.sources) else None

    def remember(self, history: LoadHistory) -> Memory:
        start = self._measured_start
        settled = self.memory.settled or (self.memory.choice.hosts > 0 and not self.load.late)
        return replace(
            self.memory, history=history, service=self.service, grid=self.grid, host_start=start, settled=settled
        )

    def _forecast(self) -> Forecast:
        return Forecast(self.load.arriving, 0.0, self.load.arriving, 0.0)  # scenarios take its place

    @property
    def expected(self) -> Mapping[str, float]:
        """Return the arrival rate that is planned for when a host requested now would work, and the seconds until then."""
        if not self.memory.outlooks:
            return {}
        grid, total = self.memory.grid, self.memory.outlooks[-1].total[self.memory.choice.setting.row]
        at = min(grid.start, total.size - 2)
        return {
            EXPECTED_RATE: float(total[at + 1] - total[at]) / grid.seconds,
            EXPECTED_IN: max(0.0, at * grid.seconds - grid.age),
        }

    @property
    def _usable(self) -> float:
        return self.observation.cores.of(self.observation.usable)

    @property
    def _working(self) -> float:
        return self.observation.cores.of(self.observation.working)

    @property
    def _each(self) -> float:
        """Records/s that a leased host would serve; 0 while unknown."""
        cores = self._cores_of_record
        return self.host_type.cores * self.host_type.speed / cores if cores > 0 else 0.0

    @once
    def _cores_of_record(self) -> float:
        """Cores that a record/s takes; without loaded batches, at the highest rate in sight. NaN if unknown."""
        expected = [float(each.keep[EXPECTED]) for each in self.memory.outlooks[-1:]]
        highest = max((each for each in (self.load.arriving, self.load.processed, *expected) if each > 0), default=0.0)
        # A light load shows the fixed work of batches and little else, so the last busy round counts instead.
        rates = self.memory.past.rates[-REPLAYED:]
        light = rates.size > 0 and max(self.load.arriving, self.load.processed) < rates.mean()
        if highest > 0 and not (light and self.memory.work > 0):
            self.memory = replace(self.memory, work=self.load.cores(highest) / highest)
        work = self.memory.work
        needs = self.service.needs(self.target, self._batch_limit, PROPORTIONAL * work)
        if not needs.size:
            return work * FIRST_OVERHEAD
        # The median of batches; fewer cores than their records kept busy would be those of a host beyond its quota.
        return min(max(float(np.median(needs)), self.load.marginal), max(work, self.load.marginal) * MOST_OVERHEAD)

    def _host_start(self) -> float:
        return max(self.host_type.start, self._measured_start)

    @property
    def _measured_start(self) -> float:
        starts = [
            ready - lease.since
            for lease in self.observation.leases.values()
            if lease.since > 0 and (ready := lease.ready_at()) is not None
        ]
        return float(np.median(starts)) if starts else self._learned_start

    def _with_late(self, memory: Memory) -> Memory:
        if not self._has_past(memory) or not self.target > 0:
            return memory  # a run starts late whatever is planned
        late, records = memory.late
        for count, share in self._in_time:
            if count > 0 and share == share:
                late, records = late + count * (1 - share), records + count
        return replace(memory, late=(late, records))

    @property
    def _in_time(self) -> Sequence[tuple[float, float]]:
        """Return (records, share in time) of each batch since the last round; without batches, of the round."""
        observation = self.observation
        if observation.context.layout.unchained:
            return [(observation.overall(Metric.THROUGHPUT) * self.pace, observation.overall(Metric.COMPLIANCE))]
        batches = [each for each in observation.batches if each.oldest == each.oldest and each.newest == each.newest]
        return [(each.records, share_within(self.target, each.oldest, each.newest)) for each in batches]

    def _has_past(self, memory: Memory) -> bool:
        return len(memory.outlooks) >= LEAST_PAST * self.grid.steps

    def _with_arrivals(self, memory: Memory) -> Memory:
        measured = self._arrived
        if not measured.size:
            return memory
        memory = replace(memory, counted=memory.counted + self.pace)
        past, bins = memory.past.after(float(measured.mean()), self.pace), memory.past.bins(self.pace)
        if not bins and memory.outlooks:
            return replace(memory, past=past)
        past = past.with_moments(self.grid.steps)
        paths, jump = self._true_path() if self._loads else scenarios(past, self.grid, self._trend(past))
        rate = float(past.rates[-1]) if past.rates.size else float(measured[-1])
        outlook = Outlook.of(paths, jump, rate, self.grid)
        bins = min(max(bins, 1), REPLAYED)
        outlooks, needs = (*memory.outlooks, *[outlook] * bins), (*memory.needs, *[0.0] * bins)
        return replace(memory, past=past, outlooks=outlooks[-REPLAYED:], needs=needs[-REPLAYED:])

    def _made_again(self, past: Past, count: int) -> tuple[Outlook, ...]:
        if not self._loads:
            return outlooks_of(past, count, self.grid, self._trend(past))
        rates, ended = past.rates[-count:].tolist(), past.open[1] + self.pace  # seconds ago, of the last bin
        paths = (self._true_path(ended + later * past.seconds) for later in reversed(range(len(rates))))
        return tuple(Outlook.of(*path, rate, self.grid) for path, rate in zip(paths, rates, strict=True))

    def _true_path(self, ago: float = 0.0) -> tuple[Floats, Floats]:
        """Return the rates from `ago` seconds before on, as only scenario and worst jump."""
        ahead = Ahead(self.observation.time - self.grid.age - ago, self.grid.seconds, self.grid.steps)
        path = np.sum([true_rates(load, ahead) for load in self._loads], axis=0)
        return path[None, :], path

    def _trend(self, past: Past) -> Forecast | None:
        return self.load.expected(self._host_start()) if past.is_short(self.grid.steps) else None

    @once
    def _arrived(self) -> Floats:
        last = -math.inf if self.before is None else float(self.before.times[-1])
        rates = self.history.arriving[self.history.times > last]
        return rates[~np.isnan(rates)]

    @property
    def _replays(self) -> bool:
        due = self.observation.time >= self.memory.next_replay and not self.load.cold
        return due and self._has_past(self.memory) and self._each > 0

    def _replayed(self, policy: Horizon) -> Memory:
        memory, context, time = self.memory, self.observation.context, self.observation.time
        late, records = memory.late
        missed, tolerated = late / records if records > 0 else 0.0, 1 - policy.in_time
        kept = math.exp(-memory.counted / DAY_S)
        earlier = kept * memory.earlier[0] + late, kept * memory.earlier[1] + records
        least, most = max(1, context.min_hosts), context.max_hosts
        fleet = Fleet(self.host_type, self._each, self.grid, least, most, memory.spare)
        jumps = not memory.past.is_short(2 * self.grid.steps)
        forgives = earlier[0] <= tolerated * earlier[1]  # as long as the target is met
        choice = replay(memory.outlooks, fleet, memory.allowance, memory.choice, memory.counted, jumps, forgives)
        # Plans keep a margin. A replay in which more records are late than in the run shows that a fixed fleet needs none.
        spare = fleet.spare
        if abs(choice.explained - missed) > UNLIKE:
            spare = MARGIN if memory.choice.setting.fixed and choice.explained > missed else 1.0
        if spare != fleet.spare:
            memory, fleet = replace(memory, spare=spare), replace(fleet, spare=spare)
            choice = replay(memory.outlooks, fleet, memory.allowance, memory.choice, memory.counted, jumps, forgives)
        # Adaptive conformal inference: misses that this replay does not explain lower the allowance of the next one.
        unexplained = max(0.0, missed - choice.explained)
        spared = tolerated - unexplained
        steps = max(1.0, memory.counted / REPLAY_EVERY_S) if spared > 0 else 1.0  # replays become rarer
        allowance = min(max(memory.allowance + STEP * steps * spared, LEAST_ALLOWANCE), tolerated)
        pause = max(REPLAY_EVERY_S, REPLAY_GROWTH * (time - self.history.since))
        following = time + min(pause, REPLAY_OVERLAP * REPLAYED * self.grid.seconds)
        begun = replace(memory, late=(0.0, 0.0), earlier=earlier, counted=0.0)
        return replace(begun, choice=choice, allowance=allowance, next_replay=following)

    @once
    def _needed(self) -> tuple[float, float]:
        """Rates of service (records/s) to have when a host requested now works, and to keep; NaN if unknown."""
        memory, grid, setting = self.memory, self.grid, self.memory.choice.setting
        # More hosts do not serve a backlog that is not theirs.
        mended = self.load.waiting > 0 and not self.observation.beyond_hosts
        waiting = float(self.load.waiting) if mended else 0.0
        if not memory.outlooks or not self._cores_of_record > 0:
            return math.nan, math.nan
        outlook, row = memory.outlooks[-1], setting.row
        total = outlook.total[row]
        cores = self._capacities() / self._cores_of_record * grid.seconds
        over = int(grid.age / grid.seconds)  # bins that are over: what came then waits, or was served
        cores[:over] = np.maximum(cores[:over], np.diff(total)[:over])
        served = np.concatenate([[0.0], np.cumsum(cores)])
        then = waiting_at_start(total[: grid.start + 1], waiting, served)
        capacity = self._usable / self._cores_of_record
        late = time_late(waiting, capacity, grid.budget, grid.recovery)
        edges = (grid.start if setting.fixed else grid.lost) + 1
        inherited = waiting_at_start(total[:edges], waiting, served[:edges])
        later = time_late(inherited, capacity, grid.budget, grid.recovery)
        self._then, times = (then, later), (grid.budget, grid.seconds)
        lease = with_backlog(setting.reserve * float(outlook.lease[row]), total[grid.start :], then, later, *times)
        if (first := self._first_need(waiting)) < lease:
            self._first, lease = True, first
        lacking = lease * grid.seconds > cores[-1]
        if lacking and self._may_wait(then, float(total[grid.start + 1] - total[grid.start]) / grid.seconds):
            self.remarks += (f"{waiting:,.0f} records wait, and no host is leased: a later one would still be in time",)
            lease = 0.0
        keep = setting.reserve * float(outlook.keep[row])
        usual = max(setting.reserve * float(outlook.lease[row]), keep)
        keep = max(lease, with_backlog(keep, total, waiting, late, *times))
        if setting.fixed:
            if self._fleet_suffices(capacity, waiting, then):
                lease = 0.0
            least = setting.least * self._each
            served = np.linspace(0.0, least * grid.seconds * grid.start, grid.start + 1)
            carried = min(float(outlook.keep[row]), total[1] / grid.seconds) <= least
            if carried and self._fleet_suffices(least, waiting, waiting_at_start(total[: grid.start + 1], waiting, served)):
                keep = usual = 0.0
        if memory.needs:
            self.memory = replace(self.memory, needs=(*memory.needs[:-1], max(memory.needs[-1], usual)))
        return lease, keep

    def _first_need(self, waiting: float) -> float:
        """Return the need of the first hosts (records/s); inf if leases are short."""
        past, catch_up = self.memory.past, FIRST_CATCH_UP * self.grid.paid - self.grid.budget
        if self.memory.settled or catch_up <= self.grid.recovery:
            return math.inf
        rate = past.steady_level()[0] if past.rates.size > 1 else past.level(self.grid.steps)[0]
        return (waiting + rate * catch_up) / (catch_up + self.grid.budget)

    def _may_wait(self, then: float, rate: float) -> bool:
        """Return True if it is unknown how long the load lasts, and a later lease would be in time.

        Args:
            then: Records that wait once a host requested now works.
            rate: Arrivals then (records/s).
        """
        patience, latency = PATIENCE * self.grid.budget, self.observation.latency().value
        if self.memory.past.moments is not None or patience <= self.grid.host_start + self.pace:
            return False
        # A source that reports nothing, or what it holds after its batches were planned, tells too little.
        told = self.load.backlog == self.load.backlog and latency is not None and latency <= PATIENCE * self.target
        return told and not self.load.late and then <= patience * rate

    def _fleet_suffices(self, capacity: float, waiting: float, then: float) -> bool:
        # A fixed fleet is enough until more would wait than was ever foreseen in vain. Where batches take the whole target,
        # the records of one still wait while another runs. Plans keep a margin, so hosts serve more.
        allowed = (1 + TOLERANCE) * MARGIN * max(self.grid.budget, self.target / 2) * capacity
        return waiting <= allowed and then <= max(allowed, IN_VAIN * self.memory.choice.met)

    def _capacities(self) -> Floats:
        """Return the cores that serve in each bin until a host requested now works."""
        cores = np.full(self.grid.start, self._usable)
        for host in self.observation.coming:
            lease = self.observation.leases[host]
            start, waited = self.grid.host_start, self.observation.time - lease.since
            # A host that is late by more than its start is expected to take as long again.
            ready = max(0.0, self.grid.age + (waited - start if waited > 2 * start else start - waited))
            cores[math.ceil(ready / self.grid.seconds - ROUNDING) :] += lease.type.cores * lease.type.speed
        return cores

    @property
    def _retained(self) -> float:
        """Rate of service to keep (records/s): the highest need within the time that hosts stay idle."""
        lease, keep = self._needed
        bins = max(1, round(self.settle / self.grid.seconds))
        return max((lease, keep, *self.memory.needs[-bins:]))

    @property
    def _why_least(self) -> str:
        choice = self.memory.choice
        least = counted(choice.setting.least, "host")
        if math.isnan(choice.hosts):
            return f"at least {least}"
        fleet = f"keeping {least} was cheapest ({choice.hosts:.3g} on average)"
        return (
            f"over the last {format_duration(round(choice.seconds))} {fleet}: changes of the load are too short to follow"
        )

    @property
    def _least(self) -> float:
        setting = self.memory.choice.setting
        least = setting.least * self.host_type.cores * self.host_type.speed
        if setting.least > 1:
            return least
        # One host may be of a smaller type, if that serves all that came.
        smallest = min(kind.cores * kind.speed for kind in self.observation.context.host_types.values())
        peak = float(self.memory.past.rates.max(initial=0.0)) * self._cores_of_record if setting.fixed else 0.0
        return min(max(peak, smallest), least)


class _Chained(_Foreseeing, ChainedRound):
    @property
    def _usable(self) -> float:
        return shared_capacity(self.observation, self.observation.usable, equal=self._equal)

    @property
    def _working(self) -> float:
        return shared_capacity(self.observation, self.observation.working, equal=self._equal)

    def _need(self, base: float) -> tuple[float, Reason]:
        lease, _ = self._needed
        need = lease * self._cores_of_record
        there = self._hosts.capacity((*self.observation.usable, *self.observation.coming))
        if there < need <= (1 + TOLERANCE) * there:
            need = there
        if self._least > need:
            return self._least, lambda: self._why_least
        if math.isnan(need):
            return super()._need(base)
        return need, lambda: self._reason(lease, need)

    def _reason(self, lease: float, need: float) -> str:
        waiting = f" and {self.load.backlog:,.0f} wait" if self.load.backlog >= 1 else ""
        if self._first:
            within = format_duration(round(FIRST_CATCH_UP * self.grid.paid))
            return (
                f"{format_rate(self.load.arriving)} arrive{waiting}: {format_rate(lease)} serve the first records within "
                f"{within}, while leases are long, and that takes {need:.3g} cores"
            )
        budget = round(self.grid.budget, 1)
        limit = f"so that none waits longer than {format_duration(budget)}" if budget else "so that none waits for a batch"
        return (
            f"{format_rate(self.load.arriving)} arrive{waiting}: {format_rate(lease)} must be served in "
            f"{format_duration(round(self._host_start()))}, for {self._bound}, {limit}, and that takes {need:.3g} cores"
        )

    @property
    def _bound(self) -> str:
        grid, row = self.grid, self.memory.choice.setting.row
        total, (then, late) = self.memory.outlooks[-1].total[row][grid.start :], self._then
        records, begin, end, waits = binding(total, then, late / grid.seconds, grid.waits)
        first, last = (format_duration(round((grid.start + at) * grid.seconds - grid.age)) for at in (begin, end))
        when = f"wait or arrive within {last}" if waits else f"arrive {first} to {last} from now"
        return f"{records:,.0f} records that {when} in {SCENARIO_NAMES[row]}"

    @once
    def _behind(self) -> float:
        return super()._behind if self.load.late else 1.0  # a backlog within the budget is no shortage

    def _retained_cores(self, history: LoadHistory) -> float:
        retained = self._retained * self._cores_of_record
        if retained == 0 and self.memory.choice.setting.fixed:
            return self._least  # which serves more arrivals than it can process for a while
        return math.inf if math.isnan(retained) else max(retained, self._least, self.load.cores(self.load.arriving))

    def _shrink(self, history: LoadHistory, highest: float) -> list[Action]:
        observation = self.observation
        recent = self.load.since_change < self.policy.cool_down
        if (recent and not observation.waiting) or self.load.late or observation.unjudged:
            return []
        exchange = self.memory.exchange
        if exchange.host in observation.usable and observation.time <= exchange.until:
            return [] if observation.coming else self._hosts.drain_replaced(exchange.host, highest)
        if observation.coming:
            return self._hosts.withdraw_surplus(highest)
        # All of a surplus goes at once, as in the replay.
        return self._hosts.drain_surplus(highest, part=1.0) or self._exchange(highest)

    def _exchange(self, highest: float) -> list[Action]:
        """Return leases of cheaper hosts for the work of an expensive one that has long had little."""
        time, start, needs, last = self.observation.time, self.grid.host_start, self.memory.needs, self.memory.exchange
        bins = max(1, math.ceil(LASTING * start / self.grid.seconds))
        failed = last.host in self.observation.leases
        if len(needs) < bins or time < last.until + AGAIN * start * (2**last.failures if failed else 1):
            return []
        lasting = max(highest, max(needs[-bins:]) * self._cores_of_record)
        host, starts, leases = self._hosts.lease_successors(lasting, start, self.policy.cool_down)
        if leases:
            until = time + EXCHANGE * starts + self.policy.cool_down + 2 * self.pace
            failures = min(last.failures + 1, MOST_FAILURES) if failed else 0
            self.memory = replace(self.memory, exchange=Exchange(host, until, failures))
        return leases

    def _task_count(self, now: float, need: float) -> float:
        return self._slots  # narrower stages would not use the cores that the plan counts on


class _Unchained(_Foreseeing, UnchainedRound):
    @once
    def _cores_of_record(self) -> float:
        # Busy cores over processed records mislead: sources never queue, and operators work off what waits before them.
        arriving = self.load.arriving
        units = [unit for unit in self.observation.context.units if unit.scalable]
        needs, _ = needs_of(self.observation, units, arriving, arriving, self.host_type.start, 0.0)
        if arriving > 0 and len(needs) == len(units):
            self.memory = replace(self.memory, work=math.fsum(need.cores for need in needs.values()) / arriving)
        return self.memory.work  # without micro-batches, busy cores are all that is needed

    @once
    def rate(self) -> float:
        lease, _ = self._needed
        return max(lease, self._least / self._cores_of_record if self._cores_of_record > 0 else 0.0)

    @once
    def upper(self) -> float:
        return self.rate

    @once
    def later(self) -> float:
        return max(self._retained, self.rate)

    def _needs(self, units: Sequence[Unit]) -> tuple[Mapping[str, CoreNeed], tuple[Unknown, ...]]:
        needs, unknown = super()._needs(units)
        return {name: replace(need, drain=0.0) for name, need in needs.items()}, unknown  # `rate` contains the backlog


def outlooks_of(past: Past, count: int, grid: Grid, trend: Forecast | None = None) -> tuple[Outlook, ...]:
    """Return the outlooks of the last `count` bins of a past, in bins of `grid`; `trend`: at the last one."""
    outlooks = []
    for end in range(max(1, past.rates.size - count + 1), past.rates.size + 1):
        then = Past(past.seconds, past.rates[:end])
        paths, jump = scenarios(then, grid, trend if end == past.rates.size else None)
        outlooks.append(Outlook.of(paths, jump, float(then.rates[-1]), grid))
    return tuple(outlooks)


@cache
def _compile() -> None:
    """Compile the loops of outlooks and replays, which takes seconds."""
    grid = Grid(1.0, start=1, steps=3, host_start=1.0, budget=1.0)
    past = Past(1.0, np.arange(1.0, 60.0))  # long enough for moments
    outlooks = outlooks_of(past, LEAST_PAST * grid.steps, grid)
    fleet = Fleet(HostType("any", 1.0), 1.0, grid, 1, 2)
    replay(outlooks, fleet, 0.0, Choice(Setting()))
