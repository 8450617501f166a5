"""`Horizon`: lease the fewest hosts that serve every expected record within its latency budget.

The rules hold on Spark and in simulation. The page on how hosts are chosen explains them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from elastream.core.action import Action, DrainHost
from elastream.core.frames import Floats
from elastream.core.latency import share_within
from elastream.core.lazy import once
from elastream.core.metrics import Needs
from elastream.core.observation import Observation
from elastream.core.plant import Plan, Policy
from elastream.core.wording import counted
from elastream.errors import ElastreamError
from elastream.policies.common.load_history import LoadHistory
from elastream.policies.common.placement import balance
from elastream.policies.common.service import Service
from elastream.policies.forecasting.trend import Forecast
from elastream.policies.horizon.budget import Outlook, time_to_serve, waiting_at_start, with_backlog
from elastream.policies.horizon.replay import REPLAYED, Choice, Fleet, Setting, replay
from elastream.policies.horizon.scenarios import Past, scenarios
from elastream.policies.threshold import ChainedRound, Reason, SizingRound, Threshold, UnchainedRound
from elastream.units import ROUNDING, format_duration, format_rate

# Bins of a horizon, and the fewest bins of its part after a host's start.
BINS, LEAST_BINS = 12, 2
# Outlooks after which bins keep their length.
SETTLED = 10
# Least seconds between replays, and their growth with the run's length.
REPLAY_EVERY_S, REPLAY_GROWTH = 300.0, 0.15
# Horizons of past that a replay needs.
LEAST_PAST = 3
# Multiple of a host's start for which hosts are kept before there is a replay.
FIRST_HOLD = 2.0
# Step of the adaptive conformal inference (Gibbs & Candes 2021, Eq. 2) of the allowance.
STEP = 0.1
LEAST_ALLOWANCE = -0.03
# Part of the records that must be in time, unless the run says otherwise.
IN_TIME = 0.99


@dataclass(frozen=True, slots=True)
class Grid:
    """Bins of the outlooks.

    Attributes:
        seconds: Length of a bin.
        start: Bins until a host requested now works.
        steps: Bins of a horizon.
        host_start: Seconds that a host takes to start, from which `start` follows.
        budget: Seconds that a record may wait, from which `steps` follows.
    """

    seconds: float
    start: int
    steps: int
    host_start: float
    budget: float

    @classmethod
    def of(cls, host_start: float, budget: float, pace: float, seconds: float | None) -> "Grid":
        """Return the grid. `seconds`: length of the bins if it is fixed; else a multiple of `pace`."""
        after = max(budget + pace, host_start / 2)
        if seconds is None:
            widest = min((host_start + pace + after) / BINS, max(budget, pace))
            seconds = max(1, round(widest / pace)) * pace
        start = max(1, math.ceil((host_start + pace / 2) / seconds - ROUNDING))
        return cls(seconds, start, start + max(LEAST_BINS, math.ceil(after / seconds - ROUNDING)), host_start, budget)

    def fits(self, host_start: float, budget: float) -> bool:
        """Return True if the grid still suits these seconds, within a quarter."""
        pairs = ((self.host_start, host_start), (self.budget, budget))
        return all(abs(new - old) <= 0.25 * max(old, self.seconds) for old, new in pairs)


@dataclass(frozen=True, eq=False, slots=True)
class Memory:
    """Memory of a run.

    Attributes:
        past: Arrivals.
        outlooks: One a bin, oldest first.
        needs: Highest needed capacity of each bin (records/s).
        late: (late records, records) since the last replay.
        allowance: Share of records that may be late in a replay.
        next_replay: Time of the next replay (seconds of the run).
    """

    history: LoadHistory
    service: Service
    grid: Grid
    past: Past
    outlooks: tuple[Outlook, ...] = ()
    needs: tuple[float, ...] = ()
    choice: Choice = field(default_factory=lambda: Choice(Setting()))
    late: tuple[float, float] = (0.0, 0.0)
    allowance: float = 1 - IN_TIME
    next_replay: float = 0.0


@dataclass(frozen=True)
class Horizon(Policy):
    """Lease the fewest hosts that serve every expected record within the target latency.

    A target latency is a budget: records may wait. The plan covers the arrivals until a host requested now has worked for
    a while, in scenarios drawn from the load's own past. Cores are needed so that each record of the served scenario is
    done by its deadline. Every few minutes the policy replays its past under several settings of itself and under constant
    fleets, and uses the cheapest that would have met the target. Unknown metrics never count as 0.

    Args:
        in_time: Part of the records that must be in time.
        host_type: Type to lease. None: the one with the lowest price per core and second; of equals the smallest.
        max_parallelism: Most instances of one operator. None: 64 threads for an operator that waits, else no limit.

    Raises:
        ElastreamError: A parameter is outside its range.
    """

    in_time: float = IN_TIME
    host_type: str | None = None
    max_parallelism: int | None = None

    needs: ClassVar[Needs] = Threshold.needs
    name: ClassVar = "horizon"

    def __post_init__(self) -> None:
        if not 0 < self.in_time < 1:
            raise ElastreamError(f"in_time is {self.in_time:g}; it must be above 0 and below 1")
        if self.max_parallelism is not None and self.max_parallelism < 1:
            raise ElastreamError(f"max_parallelism is {self.max_parallelism}; it must be 1 or more")

    @property
    def default_window(self) -> bool:
        """Return True: how long hosts stay idle follows from the replay."""
        return True

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Plan host actions, then parallelism, then moves of tasks. The memory is a `Memory`."""
        before = memory if isinstance(memory, Memory) else None
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
        return Plan(actions, after, scaling.predicted, remarks, (), scaling.unknown, scaling.recommended)


class _Foreseeing(SizingRound):
    """Planning round that sizes for the outlook.

    Attributes:
        remarks: Sentences for people.
    """

    remarks: tuple[str, ...] = ()

    def foresee(self, policy: Horizon, before: Memory | None) -> None:
        """Read the load, replay the past if it is time, and derive the needs."""
        observation = self.observation
        self.target = observation.context.target_latency or math.fsum(
            operator.max_duration or 0.0 for operator in observation.context.graph.operators
        )
        capacity = self._usable
        work = self.load.work
        service = (Service() if before is None else before.service).after(observation, capacity, work)
        governed = all(source.load is not None for source in observation.context.graph.sources)
        budget = service.budget(self.target, governed=governed)
        start = self._host_start()
        grid = None if before is None else before.grid
        young = before is None or len(before.outlooks) < SETTLED
        if grid is None or not grid.fits(start, budget) or (young and self.pace > grid.seconds):
            # First rounds may be closer together than later ones. A bin holds a round at least, and then stays as long.
            seconds = None if grid is None or young else grid.seconds
            grid = Grid.of(start, budget, self.pace, seconds)
        self.grid, self.service = grid, service
        memory = (
            Memory(self.history, service, grid, Past(grid.seconds), allowance=1 - policy.in_time)
            if before is None
            else before
        )
        if memory.past.seconds != grid.seconds:
            memory = replace(memory, past=Past(grid.seconds), outlooks=(), needs=())
        if memory.outlooks and memory.outlooks[-1].total.shape[1] != grid.steps + 1:
            memory = replace(memory, outlooks=())
        self.memory = self._replayed(self._with_arrivals(self._with_late(memory)), policy)
        self.settle = self.memory.choice.setting.hold
        if self.memory.choice.constant:
            self.remarks = (_constant_sentence(self.memory.choice),)

    def remember(self, history: LoadHistory) -> Memory:
        """Return the memory for the next round."""
        return replace(self.memory, history=history, service=self.service, grid=self.grid)

    def _forecast(self) -> Forecast:
        return Forecast(self.load.arriving, 0.0, self.load.arriving, 0.0)  # scenarios take its place

    @property
    def _usable(self) -> float:
        return self.observation.cores.of(self.observation.usable)

    @property
    def _each(self) -> float:
        """Records/s that a host to lease serves; 0 while unknown."""
        cores = self._cores_of_record
        return self.host_type.cores * self.host_type.speed / cores if cores > 0 else 0.0

    @once
    def _cores_of_record(self) -> float:
        """Cores of hosts per record/s, at the highest rate in sight; NaN if unknown."""
        highest = max(
            (each for each in (self.load.arriving, self.load.processed, *self._expected) if each > 0), default=0.0
        )
        return self.load.cores(highest) / highest * self.service.overhead if highest > 0 else math.nan

    @property
    def _expected(self) -> Sequence[float]:
        return self.memory.outlooks[-1].keep.tolist()[-2:-1] if self.memory.outlooks else ()

    def _host_start(self) -> float:
        """Return the start time of a host (seconds): the measured one if longer than declared."""
        starts = [
            ready - lease.since
            for lease in self.observation.leases.values()
            if lease.since > 0 and (ready := lease.ready_at()) is not None
        ]
        return max(self.host_type.start, float(np.median(starts))) if len(starts) > 1 else self.host_type.start

    def _with_late(self, memory: Memory) -> Memory:
        if len(memory.outlooks) < LEAST_PAST * self.grid.steps or not self.target > 0:
            return memory  # a run starts late whatever is planned
        late, records = memory.late
        for each in self.observation.batches:
            if each.oldest == each.oldest and each.newest == each.newest:
                late += each.records * (1 - share_within(self.target, each.oldest, each.newest))
                records += each.records
        return replace(memory, late=(late, records))

    def _with_arrivals(self, memory: Memory) -> Memory:
        """Add the rate since the last round, and an outlook after each bin."""
        last = -math.inf if self.before is None else float(self.before.times[-1])
        rates = self.history.arriving[self.history.times > last]
        measured = rates[~np.isnan(rates)]
        if not measured.size:
            return memory
        past = memory.past.after(float(measured.mean()), self.pace)
        if past.open[1] > 0 and memory.outlooks:
            return replace(memory, past=past)
        paths, jump = scenarios(past, self.grid.steps)
        rate = float(past.rates[-1]) if past.rates.size else float(measured[-1])
        outlook = Outlook.of(paths, jump, rate, self.grid.seconds, self.grid.start, self.grid.budget)
        return replace(
            memory, past=past, outlooks=(*memory.outlooks[1 - REPLAYED :], outlook), needs=(*memory.needs[-REPLAYED:], 0.0)
        )

    def _replayed(self, memory: Memory, policy: Horizon) -> Memory:
        time, grid = self.observation.time, self.grid
        long_enough = len(memory.outlooks) >= LEAST_PAST * grid.steps
        self.memory = memory
        if time < memory.next_replay or not long_enough or not self._each > 0:
            return memory
        late, records = memory.late
        missed = late / records if records > 0 else 0.0
        # Adaptive conformal inference: recent misses lower the allowance of the next replay.
        tolerated = 1 - policy.in_time
        allowance = min(max(memory.allowance + STEP * (tolerated - missed), LEAST_ALLOWANCE), tolerated)
        context = self.observation.context
        fleet = Fleet(
            self.host_type, self._each, grid.seconds, grid.start, grid.budget, max(1, context.min_hosts), context.max_hosts
        )
        choice = replay(memory.outlooks, fleet, allowance)
        following = time + max(REPLAY_EVERY_S, REPLAY_GROWTH * (time - self.history.since))
        return replace(memory, choice=choice, late=(0.0, 0.0), allowance=allowance, next_replay=following)

    @once
    def _needed(self) -> tuple[float, float]:
        """Rates of service (records/s) to have when a host requested now works, and to keep; NaN if unknown."""
        memory, grid, setting = self.memory, self.grid, self.memory.choice.setting
        waiting = np.array(self.load.backlog if self.load.backlog > 0 else 0.0)
        if not memory.outlooks or not self._cores_of_record > 0:
            return math.nan, math.nan
        outlook, row = memory.outlooks[-1], setting.row
        total = outlook.total[row]
        cores = self._capacities() / self._cores_of_record * grid.seconds
        served = np.concatenate([[0.0], np.cumsum(cores)])
        then = waiting_at_start(total[: grid.start + 1], waiting, served)
        capacity = np.array(self._usable / self._cores_of_record)
        within = time_to_serve(waiting, capacity, grid.budget, grid.host_start)
        lease = float(with_backlog(setting.reserve * outlook.lease[row], total[grid.start :], then, grid.seconds, within))
        keep = float(with_backlog(setting.reserve * outlook.keep[row], total, waiting, grid.seconds, within))
        keep = max(lease, keep)
        if memory.needs:
            self.memory = replace(memory, needs=(*memory.needs[:-1], max(memory.needs[-1], keep)))
        return lease, keep

    def _capacities(self) -> Floats:
        """Return the cores that serve in each bin until a host requested now works."""
        cores = np.full(self.grid.start, self._usable)
        for host in self.observation.coming:
            lease = self.observation.leases[host]
            ready = max(0.0, lease.since + self.grid.host_start - self.observation.time)
            cores[math.ceil(ready / self.grid.seconds - ROUNDING) :] += lease.type.cores * lease.type.speed
        return cores

    @property
    def _retained(self) -> float:
        """Rate of service to keep (records/s): the highest need within the time that hosts stay idle."""
        lease, keep = self._needed
        bins = max(1, round(self.settle / self.grid.seconds))
        return max((lease, keep, *self.memory.needs[-bins:]))

    @property
    def _least(self) -> float:
        return self.memory.choice.setting.least * self.host_type.cores * self.host_type.speed


class _Chained(_Foreseeing, ChainedRound):
    """Round for operators that share cores."""

    @property
    def _usable(self) -> float:
        return self._hosts.capacity(self.observation.usable)

    def _need(self, base: float) -> tuple[float, Reason]:
        lease, _ = self._needed
        need = lease * self._cores_of_record
        if self._least > need:
            return self._least, lambda: _constant_sentence(self.memory.choice)
        if math.isnan(need):
            return super()._need(base)
        return need, lambda: self._reason(lease, need)

    def _reason(self, lease: float, need: float) -> str:
        waiting = f" and {self.load.backlog:,.0f} wait" if self.load.backlog >= 1 else ""
        budget = round(self.grid.budget, 1)
        limit = f"so that none waits longer than {format_duration(budget)}" if budget else "so that none waits for a batch"
        return (
            f"{format_rate(self.load.arriving)} arrive{waiting}: {format_rate(lease)} must be served in "
            f"{format_duration(round(self.grid.host_start))}, {limit}, and that takes {need:.3g} cores"
        )

    @once
    def _behind(self) -> float:
        return super()._behind if self.load.late else 1.0  # a backlog within the budget is no shortage

    def _retained_cores(self, history: LoadHistory) -> float:
        retained = self._retained * self._cores_of_record
        return math.inf if math.isnan(retained) else max(retained, self._least)

    def _shrink(self, history: LoadHistory, highest: float) -> list[Action]:
        observation = self.observation
        recent = self.load.since_change < self.policy.cool_down
        if (recent and not observation.waiting) or self.load.late or observation.unjudged:
            return []
        return self._hosts.withdraw_surplus(highest) if observation.coming else self._hosts.drain_surplus(highest)

    def _task_count(self, now: float, need: float) -> float:
        return self._slots  # narrower stages would not use the cores that the plan counts on


class _Unchained(_Foreseeing, UnchainedRound):
    """Round for instances that reserve cores. A random service needs idle time, or its own queue grows."""

    @once
    def rate(self) -> float:
        lease, _ = self._needed
        return max(lease, self.load.arriving)

    @once
    def upper(self) -> float:
        return self.rate

    @once
    def later(self) -> float:
        return max(self._retained, self.rate)


def _constant_sentence(choice: Choice) -> str:
    fleet = counted(choice.setting.least, "host")
    return f"the last hours were cheapest with {fleet} at least, {choice.hosts:.3g} on average: jumps come without notice"
