"""PLAStiCC: plans for a whole prediction interval, from one cross-over to the next (thesis, 5.3.1, Algorithm 5).

A deployment is kept for as long as it will hold the target. Where it will not, something is changed: an instance or an
alternate at a time, whichever leaves more profit; and so on from there. What is planned for later is a plan only: it costs
nothing to retract. All steps are `greedy`'s, over the instants that are left.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elastream.model.cloud import HostType
from elastream.model.observation import Floats
from elastream.model.qos import Flows
from elastream.planning.scheduling.assembly import Assembly
from elastream.planning.scheduling.giving_back import vacated
from elastream.planning.scheduling.greedy import better, cheaper
from elastream.planning.scheduling.packing import NEARLY
from elastream.planning.scheduling.problem import Conditions, Deployment, Goal, Host, Problem, value_of
from elastream.planning.scheduling.schedule import PLANNED, Missed, PlannedStage, StagedPlan, named, tidied
from elastream.planning.scheduling.steps import allocate, grow, repacked, shrink

__all__ = ["farthest", "look_ahead"]

PROGRESS = 1e-4
"""Relative throughput that an action must bring at least: less is rounding, and no reason to go on."""
MOST_AT_ONCE = 8
"""Actions at one cross-over, times the number of operators, after which it is left as it is: a bound, which is not met."""


def look_ahead(
    problem: Problem, deployment: Deployment, conditions: Conditions, *, ending: Collection[str] = ()
) -> StagedPlan:
    """A plan for the interval of `conditions`; deployment: what runs now, with hosts that are still starting.

    ending: hosts whose paid time ends before the next round. They are given back where the interval is worth more without
    them, and no instant falls below the tolerance for that ("repacking and shut-down", line 29).
    """
    found = _Search(problem, deployment, conditions).schedule()
    if not ending or found.missed:
        return found
    first = Assembly(problem, found.stages[0].deployment, _worst(problem, found, conditions))
    fewer = vacated(first, problem.goal.throughput, [row for row, host in enumerate(first.hosts) if host.name in ending])
    if len(fewer.hosts) == len(first.hosts):
        return found
    why = (*found.stages[0].why, *_gone(first, fewer))
    without = _Search(problem, fewer.deployment(), conditions, why).schedule()
    holds = bool((without.throughput >= np.minimum(found.throughput, problem.goal.lowest) - NEARLY).all())
    return without if holds and without.worth > found.worth + NEARLY else found


def _worst(problem: Problem, schedule: StagedPlan, conditions: Conditions) -> Conditions:
    """The instant of the least throughput before anything changes: what is enough for it is enough until then."""
    runs = schedule.stages[0].deployment
    lasts = len(schedule.throughput)
    if len(schedule.stages) > 1:
        lasts = max(1, round((schedule.stages[1].time - conditions.time) / conditions.seconds))
    worst = int(np.argmin(schedule.throughput[:lasts]))
    waiting = Assembly(problem, runs, conditions).flows().waiting[worst]
    at = _later(conditions, worst, waiting, conditions.time)
    speeds = {name: column[:1] for name, column in at.speeds.items()}
    links = {pair: column[:1] for pair, column in at.bandwidth.items()}
    return replace(at, rates=at.rates[:1], speeds=speeds, bandwidth=links, steady=True)


def farthest(throughput: Floats, goal: Goal) -> int:
    """For how many instants from the first on the relative throughput of each is within the tolerance.

    Lines 5 to 13. Their "cumulative" throughput is read as that of an instant with what waits from those before (4.4): a
    mean over the instants would let one that is low follow one that is high, and hosts come late (p. 114 says otherwise).
    """
    off = np.flatnonzero([_way(each, goal) for each in throughput.tolist()])
    return int(off[0]) if off.size else throughput.size


def _way(reached: float, goal: Goal) -> int:
    """1 where less is reached than the tolerance allows, -1 where more is, else 0."""
    if reached < goal.lowest - NEARLY:
        return 1
    return -1 if reached > goal.throughput + goal.tolerance + NEARLY else 0


@dataclass(frozen=True)
class _Trial:
    """An action on a copy. gain: of profit, over what is left of the interval. said: what it is."""

    assembly: Assembly
    found: Flows
    gain: float
    said: str


class _Search:
    """The loop of Algorithm 5. begin: the instant (ot) from which on `assembly` is to run.

    At one cross-over actions go one way only, each brings the throughput nearer or is undone, and there is a bound on their
    number; where none is left, the next instant is gone to. Printed, nothing ends the loop where no action helps.
    """

    def __init__(self, problem: Problem, deployment: Deployment, conditions: Conditions, why: tuple[str, ...] = ()) -> None:
        self.problem, self.goal, self.all = problem, problem.goal, conditions
        numbers = [int(host.name[1:]) for host in deployment.hosts if host.name.startswith(PLANNED)]
        deployment = named(deployment, 1 + max(numbers, default=0))
        self.begin, self.planned = 0, 1 + max(numbers, default=0) + len(deployment.hosts)
        self.why = list(why)
        self.stages = [PlannedStage(conditions.time, deployment, why)]
        self.expected: list[Floats] = []
        self.missed: list[Missed] = []
        self._go_on(deployment, conditions)

    def schedule(self) -> StagedPlan:
        """The plan."""
        while self.begin < self.all.instants:
            held = farthest(self.found.application, self.goal)
            if held:
                self._advance(held)
            if self.begin < self.all.instants and not self._adapt():
                self._advance(1)
        stages = tidied(self.problem, self.stages)
        return StagedPlan(stages, np.concatenate([*self.expected, np.zeros(0)]), tuple(self.missed), self._worth(stages))

    def _go_on(self, deployment: Deployment, conditions: Conditions) -> None:
        """Take up what is left of the interval."""
        self.assembly = Assembly(self.problem, deployment, conditions)
        self.bandwidth = self.assembly.limits()
        self.found = self.assembly.flows(self.bandwidth)
        self.way, self.acted = 0, 0
        self.untouched = self.assembly, self.found
        starts = min((kind.start for kind in self.problem.types), default=0.0)
        late = 0.0 if conditions.steady else max(0.0, starts - conditions.lead)
        self.at = min(math.ceil(late / conditions.seconds - NEARLY), conditions.instants - 1)

    def _advance(self, instants: int) -> None:
        """Keep the deployment for so many instants, and note what was planned for their first."""
        if self.acted:
            self._settle()
        self.expected.append(self.found.application[:instants])
        self.begin += instants
        now, ahead = self.assembly.conditions, self.begin < self.all.instants
        if ahead:
            queues = self.found.waiting[instants]
            self._go_on(self.assembly.deployment(), _later(now, instants, queues, self.all.time))

    def _settle(self) -> None:
        """Note the stage that was reached: planned hosts of the cheapest types, each with a name of its own."""
        settled = named(repacked(self.assembly, self.goal.throughput).deployment(), self.planned)
        self.planned += len(settled.hosts)
        self.assembly = assembly = Assembly(self.problem, settled, self.assembly.conditions)
        self.bandwidth = assembly.limits()
        self.found = assembly.flows(self.bandwidth)
        time = assembly.conditions.time
        stage = PlannedStage(time, settled, tuple(dict.fromkeys(self.why)))
        self.stages = [*(each for each in self.stages if each.time < time), stage]
        self.why = []

    def _adapt(self) -> bool:
        """Plan actions at the cross-over, for what is left of the interval (lines 18 to 27); False where none helps.

        Whether to act, the mean of what is left says: an instant alone is passed over, since a host is paid for longer. The
        tolerance says when; what is done then goes on to the target, as in Algorithm 4: a plan that ends at the edge of the
        tolerance leaves it with the first deviation. And it goes on for the first instant only in which a host that is
        leased for it is up: what comes later is the next cross-over's.
        """
        way = _way(float(self.found.application.mean()), self.goal)
        if not way:
            return False
        most, before = MOST_AT_ONCE * max(1, len(self.problem.operators)), self.acted
        while self.way in (0, way) and self.acted < most:
            trial = self._down() if way < 0 else self._up() if self._reached < self.goal.throughput - NEARLY else None
            if trial is None:
                break
            self.assembly, self.found, self.way = trial.assembly, trial.found, way
            self.acted += 1
            self.why.append(trial.said)
        if way > 0 and self._reached < self.goal.lowest - NEARLY:
            self._miss()
        return self.acted > before and farthest(self.found.application, self.goal) > 0

    def _miss(self) -> None:
        """Note that the target is not reached; what was done without any effect is undone."""
        self.missed.append(Missed(self.assembly.conditions.time, self._reached))
        assembly, found = self.untouched
        if self.acted and self._reached <= float(found.application[self.at]) + PROGRESS:
            self.assembly, self.found = assembly, found
            self.acted, self.why = 0, []

    @property
    def _reached(self) -> float:
        """Relative throughput in the first instant in which what is done is in force."""
        return float(self.found.application[self.at])

    def _up(self) -> _Trial | None:
        """`ScaleUpOrDecAppValue`: of the operator that holds most up, which can have more cores or work less."""
        relative = self.found.relative[self.at]
        for operator in sorted(np.flatnonzero(relative < 1 - NEARLY).tolist(), key=lambda row: float(relative[row])):
            tried = [*self._switched(operator, cheaper(self.assembly, operator)), *self._grown(operator)]
            if tried := [each for each in tried if self._helps(each, operator)]:
                return max(tried, key=lambda each: (each.gain, each.found.application[self.at]))
        return self._linked()

    def _helps(self, trial: _Trial, operator: int) -> bool:
        """Whether more reaches the outputs, or the operator holds up less: those after it may come next.

        The second is not enough for an instance that another operator gave up: it would be taken back, and so on.
        """
        before, after = self.found, trial.found
        if after.application[self.at] > before.application[self.at] + PROGRESS:
            return True
        taken = bool((trial.assembly.total < self.assembly.total).any())
        return not taken and bool(after.relative[self.at, operator] > before.relative[self.at, operator] + PROGRESS)

    def _linked(self) -> _Trial | None:
        """Instances beside those that send to them, where no operator lacks cores and links hold records up."""
        if self.bandwidth is None:
            return None
        trial, hosts = self.assembly.copy(), len(self.assembly.hosts)
        allocate(trial, self.goal.throughput)
        found = trial.flows(trial.limits())
        if found.application[self.at] <= self._reached + PROGRESS:
            return None
        return _Trial(trial, found, 0.0, f"{len(trial.hosts) - hosts} hosts more: links hold records up")

    def _down(self) -> _Trial | None:
        """`ScaleDownOrIncAppValue`: of the operator with most to spare, whose throughput may fall to the target."""
        for place, operator in enumerate(self._by_spare()):
            tried = [*self._switched(operator, better(self.assembly, operator))]
            if not self.problem.shared or not place:
                tried += self._shrunk(operator)
            if tried := [each for each in tried if self._enough(each)]:
                return max(tried, key=lambda each: (each.gain, -each.found.application[0]))
        return None

    def _enough(self, trial: _Trial) -> bool:
        """Whether the target is reached now, and on average of the rest."""
        reached = trial.found.application
        return min(float(reached[0]), float(reached.mean())) >= self.goal.throughput - NEARLY

    def _by_spare(self) -> Sequence[int]:
        """Operators, those of the highest relative throughput first; of equals those with the most cores for their need."""
        relative, needs, capacity = self.found.relative[0], self._needs(0), self.assembly.capacity[0]
        with np.errstate(over="ignore"):
            spare = np.divide(capacity, needs, out=np.full(needs.shape, np.inf), where=needs > 0)
        return sorted(self.assembly.order, key=lambda row: (-round(float(relative[row]), 9), -float(spare[row])))

    def _switched(self, operator: int, option: int | None) -> Iterator[_Trial]:
        if option is None:
            return
        trial = self.assembly.copy()
        trial.switch(operator, option)
        options = self.problem.options[operator]
        more = value_of(self.problem, trial.active) - value_of(self.problem, self.assembly.active)
        said = f"{self.problem.operators[operator]} as {options[option].name}: value {more:+.3g}"
        yield self._tried(trial, more, 0.0, said)

    def _grown(self, operator: int) -> Iterator[_Trial]:
        """As many instances more as the operator lacks; or one that another can spare; where cores are shared, a host."""
        problem, name = self.problem, self.problem.operators[operator]
        hosts, had = len(self.assembly.hosts), int(self.assembly.total[operator])
        for spared in (None, self.found) if not problem.shared else (None,):
            trial, added = self.assembly.copy(), 0
            for _ in range(1 if problem.shared or spared else self._lacking(operator)):
                if not grow(trial, operator, spared, lease=spared is None):
                    break
                added += 1
            if added:
                fresh = int(trial.instances[hosts:, operator].sum())
                money = self._price(operator, fresh, trial.hosts[hosts:])
                said = f"{len(trial.hosts) - hosts} host more" if problem.shared else f"{name} x {had + added}"
                yield self._tried(trial, 0.0, money, f"{said}: {name} holds up the rest")

    def _lacking(self, operator: int) -> int:
        """Instances that bring the operator to its part of the target, at least one; later ones are added singly."""
        relative, at = float(self.found.relative[self.at, operator]), self.at
        wanted = min(1.0, relative * self.goal.throughput / max(self._reached, NEARLY)) * float(self._needs(at)[operator])
        return max(1, math.floor((wanted - float(self.assembly.capacity[at, operator])) / self._each(operator)))

    def _needs(self, at: int) -> Floats:
        """Cores of speed 1 that each operator fills in an instant with what reaches it and what waits."""
        records = self.found.arriving[at] + self.found.waiting[at] / self.assembly.conditions.seconds
        needs: Floats = records * self.problem.costs(self.assembly.active)
        return needs

    def _each(self, operator: int) -> float:
        """Cores of speed 1 of an instance."""
        speeds = self.assembly.speeds
        return float(self.problem.per_instance[operator]) * float(speeds.mean() if speeds.size else 1.0)

    def _shrunk(self, operator: int) -> Iterator[_Trial]:
        """As many instances less as the operator can spare, or one; where cores are shared, a host."""
        if self.problem.shared:
            rows = range(len(self.assembly.hosts))
            fewer = vacated(self.assembly, self.goal.throughput, rows)
            if len(fewer.hosts) < len(self.assembly.hosts):
                yield self._tried(fewer, 0.0, -self._saved(fewer), f"{len(fewer.hosts)} hosts are enough")
            return
        if not self.assembly.sizable[operator]:
            return
        part = min(1.0, self.goal.throughput / max(float(self.found.application[0]), NEARLY))
        need = float(self._needs(0)[operator]) * part
        spare = math.floor((float(self.assembly.capacity[0, operator]) - need) / self._each(operator))
        for count in dict.fromkeys((max(1, spare), 1)):
            trial = self.assembly.copy()
            taken = sum(shrink(trial, operator) is not None for _ in range(min(count, int(trial.total[operator]) - 1)))
            if taken:
                said = f"{self.problem.operators[operator]} x {int(trial.total[operator])}: it has cores to spare"
                yield self._tried(trial, 0.0, -self._saved(trial), said)

    def _tried(self, trial: Assembly, value: float, money: float, said: str) -> _Trial:
        """An action with its gain of profit (4.8) over what is left of the interval."""
        rest = trial.conditions.seconds * trial.conditions.instants
        gain = value * rest / self.goal.period - self.problem.line.sigma * money
        return _Trial(trial, trial.flows(self.bandwidth), gain, said)

    def _price(self, operator: int, instances: int, hosts: Sequence[Host]) -> float:
        """Money for new hosts until the interval ends: of the cheapest type for what is on them, as they are repacked."""
        if not hosts:
            return 0.0
        works = self._end - min(host.ready for host in hosts)
        cores, memory = float(self.problem.cores[operator]), float(self.problem.memory[operator])

        def of(type: HostType) -> float:
            room = min(type.cores / cores if cores > 0 else math.inf, type.memory / memory if memory > 0 else math.inf)
            each = instances if math.isinf(room) else max(1, math.floor(room + NEARLY))
            count = len(hosts) if self.problem.shared else math.ceil(instances / max(1, each))
            return count * type.price * type.billing.units(works)

        return min(of(type) for type in self.assembly.types_for(operator))

    def _saved(self, fewer: Assembly) -> float:
        """Money that hosts which hold nothing any more would have cost until the interval ends."""
        now = self.assembly.conditions.time
        if self.problem.shared:
            stay = {id(host) for host in fewer.hosts}
            gone = [host for host in self.assembly.hosts if id(host) not in stay]
        else:
            held = self.assembly.instances.sum(axis=1) > 0
            gone = [fewer.hosts[row] for row in np.flatnonzero(held & (fewer.instances.sum(axis=1) == 0)).tolist()]
        return math.fsum(_money(host, now, self._end) for host in gone)

    @property
    def _end(self) -> float:
        return self.all.time + self.all.seconds * self.all.instants

    def _worth(self, stages: Sequence[PlannedStage]) -> float:
        """What the interval adds to the profit of the period (5.2, p. 103)."""
        times = [*(stage.time for stage in stages), self._end]
        value = math.fsum(
            value_of(self.problem, stage.deployment.active) * (until - stage.time)
            for stage, until in zip(stages, times[1:], strict=True)
        )
        last: dict[str, tuple[Host, float]] = {}
        for stage, until in zip(stages, times[1:], strict=True):
            last |= {host.name: (host, until) for host in stage.deployment.hosts}
        money = math.fsum(_money(host, self.all.time, until) for host, until in last.values())
        return value / self.goal.period - self.problem.line.sigma * money


def _later(conditions: Conditions, instants: int, queues: Floats, since: float) -> Conditions:
    """The same from so many instants later on; hosts may be leased from `since` on."""
    time = conditions.time + instants * conditions.seconds
    return replace(
        conditions,
        rates=conditions.rates[instants:],
        queues=queues,
        time=time,
        speeds={name: column[instants:] for name, column in conditions.speeds.items()},
        bandwidth={pair: column[instants:] for pair, column in conditions.bandwidth.items()},
        lead=time - since,
    )


def _money(host: Host, now: float, until: float) -> float:
    """Money for `host` from `now` to `until`: units that begin then."""
    billing = host.type.billing
    begun = billing.units(now - host.since) if now >= host.since else 0
    return max(0, billing.units(until - host.since) - begun) * host.type.price if until > host.since else 0.0


def _gone(before: Assembly, after: Assembly) -> tuple[str, ...]:
    left = {host.name for host in after.hosts}
    return tuple(f"{host.name} is not needed when its paid time ends" for host in before.hosts if host.name not in left)
