"""What `lookahead` can do at a cross-over, and what each action is worth by itself (`ScaleUp`, `ScaleDown`, p. 107).

Actions are tried on copies. Which is taken, local profit says: value for as long as it is gained or lost, and money for
whole billing time units.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from elastream.core.frames import Floats
from elastream.core.hosts import HostType
from elastream.core.qos import Flows
from elastream.policies.look_ahead.schedule import PLANNED, Missed, PlannedStage, StagedPlan, named, tidied
from elastream.policies.value_cost.assembly import Assembly
from elastream.policies.value_cost.greedy import better, cheaper
from elastream.policies.value_cost.problem import Conditions, Deployment, Goal, Host, Problem, value_of
from elastream.policies.value_cost.steps import allocate, grow, repacked, shrink, vacated
from elastream.units import ROUNDING

Hold: TypeAlias = Literal["step", "interval"]
"""What is to be within the tolerance: the throughput of each step, or its mean over what is left of the interval (5.2)."""

PROGRESS = 1e-4
"""Relative throughput that an action must bring at least: less is rounding, and no reason to go on."""


@dataclass(frozen=True)
class TriedAction:
    """An action on a copy. gain: of profit, over what is left of the interval. said: what it is."""

    assembly: Assembly
    found: Flows
    gain: float
    said: str


@dataclass(frozen=True)
class Choices:
    """The actions there are for `assembly`, whose instants are those that are left. found: its flows under `bandwidth`. at:
    the first instant in which a host that is leased now is up. end: of the interval, seconds. hold: see `Hold`."""

    assembly: Assembly
    found: Flows
    bandwidth: Floats | None
    at: int
    end: float
    hold: Hold

    @property
    def problem(self) -> Problem:
        """What is planned for."""
        return self.assembly.problem

    @property
    def goal(self) -> Goal:
        """What is wanted."""
        return self.problem.goal

    @property
    def reached(self) -> float:
        """Relative throughput in the first instant in which what is done is in force."""
        return float(self.found.application[self.at])

    @property
    def judged(self) -> float:
        """The throughput that says whether there is something to do: of the step, or the mean of what is left."""
        found = self.found.application
        return float(found[0] if self.hold == "step" else found.mean())

    def up(self) -> TriedAction | None:
        """`ScaleUpOrDecAppValue`: of the operator that holds most up, which can have more cores or work less."""
        relative = self.found.relative[self.at]
        for operator in sorted(np.flatnonzero(relative < 1 - ROUNDING).tolist(), key=lambda row: float(relative[row])):
            tried = [*self._switched(operator, cheaper(self.assembly, operator)), *self._grown(operator)]
            if tried := [each for each in tried if self._helps(each, operator)]:
                return max(tried, key=lambda each: (each.gain, each.found.application[self.at]))
        return self._linked()

    def _helps(self, trial: TriedAction, operator: int) -> bool:
        """Whether more reaches the outputs, or the operator holds up less: those after it may come next.

        The second is not enough for an instance that another operator gave up: it would be taken back, and so on.
        """
        before, after = self.found, trial.found
        if after.application[self.at] > before.application[self.at] + PROGRESS:
            return True
        taken = bool((trial.assembly.total < self.assembly.total).any())
        return not taken and bool(after.relative[self.at, operator] > before.relative[self.at, operator] + PROGRESS)

    def _linked(self) -> TriedAction | None:
        """Instances beside those that send to them, where no operator lacks cores and links hold records up."""
        if self.bandwidth is None:
            return None
        trial, hosts = self.assembly.copy(), len(self.assembly.hosts)
        allocate(trial, self.goal.throughput)
        found = trial.flows(trial.limits())
        if found.application[self.at] <= self.reached + PROGRESS:
            return None
        return TriedAction(trial, found, 0.0, f"{len(trial.hosts) - hosts} hosts more: links hold records up")

    def down(self) -> TriedAction | None:
        """`ScaleDownOrIncAppValue`: of the operator with most to spare, whose throughput may fall to the target."""
        for place, operator in enumerate(self._by_spare()):
            tried = [*self._switched(operator, better(self.assembly, operator))]
            if not self.problem.shared or not place:
                tried += self._shrunk(operator)
            if tried := [each for each in tried if self._enough(each)]:
                return max(tried, key=lambda each: (each.gain, -each.found.application[0]))
        return None

    def _enough(self, trial: TriedAction) -> bool:
        """Whether the target is reached now, and on average of the rest: what is given up then is leased again."""
        reached = trial.found.application
        return min(float(reached[0]), float(reached.mean())) >= self.goal.throughput - ROUNDING

    def _by_spare(self) -> Sequence[int]:
        """Operators, those of the highest relative throughput first; of equals those with the most cores for their need."""
        relative, needs, capacity = self.found.relative[0], self._needs(0), self.assembly.capacity[0]
        with np.errstate(over="ignore"):
            spare = np.divide(capacity, needs, out=np.full(needs.shape, np.inf), where=needs > 0)
        return sorted(self.assembly.order, key=lambda row: (-round(float(relative[row]), 9), -float(spare[row])))

    def _switched(self, operator: int, option: int | None) -> Iterator[TriedAction]:
        if option is None:
            return
        trial = self.assembly.copy()
        trial.switch(operator, option)
        options = self.problem.options[operator]
        more = value_of(self.problem, trial.active) - value_of(self.problem, self.assembly.active)
        said = f"{self.problem.operators[operator]} as {options[option].name}: value {more:+.3g}"
        yield self._tried(trial, more, 0.0, said)

    def _grown(self, operator: int) -> Iterator[TriedAction]:
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
        wanted = min(1.0, relative * self.goal.throughput / max(self.reached, ROUNDING)) * float(self._needs(at)[operator])
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

    def _shrunk(self, operator: int) -> Iterator[TriedAction]:
        """As many instances less as the operator can spare, or one; where cores are shared, a host."""
        if self.problem.shared:
            rows = range(len(self.assembly.hosts))
            fewer = vacated(self.assembly, self.goal.throughput, rows)
            if len(fewer.hosts) < len(self.assembly.hosts):
                yield self._tried(fewer, 0.0, -self._saved(fewer), f"{len(fewer.hosts)} hosts are enough")
            return
        if not self.assembly.sizable[operator]:
            return
        part = min(1.0, self.goal.throughput / max(float(self.found.application[0]), ROUNDING))
        need = float(self._needs(0)[operator]) * part
        spare = math.floor((float(self.assembly.capacity[0, operator]) - need) / self._each(operator))
        for count in dict.fromkeys((max(1, spare), 1)):
            trial = self.assembly.copy()
            taken = sum(shrink(trial, operator) is not None for _ in range(min(count, int(trial.total[operator]) - 1)))
            if taken:
                said = f"{self.problem.operators[operator]} x {int(trial.total[operator])}: it has cores to spare"
                yield self._tried(trial, 0.0, -self._saved(trial), said)

    def _tried(self, trial: Assembly, value: float, money: float, said: str) -> TriedAction:
        """An action with its gain of profit (4.8).

        An alternate is gone back on as soon as that is of use: it counts for as long as it is needed, or holds. A host is
        paid for its whole units.
        """
        found = trial.flows(self.bandwidth)
        lasts = trial.conditions.seconds * self._lasting(found, lost=value < 0)
        gain = value * lasts / self.goal.period - self.problem.line.sigma * money
        return TriedAction(trial, found, gain, said)

    def _lasting(self, found: Flows, *, lost: bool) -> int:
        """Instants for which another alternate counts: one of less value until the throughput would be within the tolerance
        without it, one of more until it is below that with it; all that is left to hold the interval."""
        instants = self.assembly.conditions.instants
        if self.hold == "interval":
            return instants
        if lost:
            again = np.flatnonzero(self.found.application[self.at :] >= self.goal.lowest - ROUNDING)
            return max(1, self.at + int(again[0])) if again.size else instants
        below = np.flatnonzero(found.application < self.goal.lowest - ROUNDING)
        return int(below[0]) if below.size else instants

    def _price(self, operator: int, instances: int, hosts: Sequence[Host]) -> float:
        """Money for new hosts until the interval ends: of the cheapest type for what is on them, as they are repacked."""
        if not hosts:
            return 0.0
        works = self.end - min(host.ready for host in hosts)
        cores, memory = float(self.problem.cores[operator]), float(self.problem.memory[operator])

        def of(type: HostType) -> float:
            room = min(type.cores / cores if cores > 0 else math.inf, type.memory / memory if memory > 0 else math.inf)
            each = instances if math.isinf(room) else max(1, math.floor(room + ROUNDING))
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
        return math.fsum(money_for(host, now, self.end) for host in gone)


def money_for(host: Host, now: float, until: float) -> float:
    """Money for `host` from `now` to `until`: units that begin then."""
    billing = host.type.billing
    begun = billing.units(now - host.since) if now >= host.since else 0
    return max(0, billing.units(until - host.since) - begun) * host.type.price if until > host.since else 0.0


def beyond(host: Host, now: float, until: float) -> float:
    """Money of `money_for` that is for the time after `until`."""
    billing = host.type.billing
    if not money_for(host, now, until):
        return 0.0
    paid_until = host.since + billing.units(until - host.since) * billing.unit
    return (paid_until - until) / billing.unit * host.type.price


MOST_AT_ONCE = 8
"""Actions at one cross-over, times the number of operators, after which it is left as it is: a bound, which is not met."""


def look_ahead(
    problem: Problem,
    deployment: Deployment,
    conditions: Conditions,
    *,
    ending: Collection[str] = (),
    hold: Hold = "step",
) -> StagedPlan:
    """A plan for the interval of `conditions`; deployment: what runs now, with hosts that are still starting.

    hold: what is to be within the tolerance, see `Hold`. ending: hosts whose paid time ends before the next round. They are
    given back where the interval is worth more without them, and no more instants fall below the tolerance for that
    ("repacking and shut-down", line 29); together, or those of them of which that holds.
    """
    found = _Search(problem, deployment, conditions, hold).schedule()
    left = [sorted(ending)] if ending else []
    while left:
        names = left.pop()
        first = Assembly(problem, found.stages[0].deployment, _now(conditions))
        fewer = vacated(first, problem.goal.throughput, [row for row, host in enumerate(first.hosts) if host.name in names])
        if len(fewer.hosts) == len(first.hosts):
            continue
        why = (*found.stages[0].why, *_gone(first, fewer))
        without = _Search(problem, fewer.deployment(), conditions, hold, why).schedule()
        holds = _short(without, problem.goal) <= _short(found, problem.goal)
        if holds and without.worth > found.worth + ROUNDING:
            found = without
        elif len(names) > 1:  # some of them may go all the same
            left += [names[len(names) // 2 :], names[: len(names) // 2]]
    return found


def _short(schedule: StagedPlan, goal: Goal) -> tuple[int, int]:
    """How often no action reaches the target, and how many instants are below the tolerance."""
    return len(schedule.missed), int((schedule.throughput < goal.lowest - ROUNDING).sum())


def _now(conditions: Conditions) -> Conditions:
    """The first instant alone, as if it lasted: what it needs not may go, if what comes later can be had again for less."""
    return replace(_first(conditions, 1), steady=True)


def _first(conditions: Conditions, instants: int) -> Conditions:
    """The same until so many instants later."""
    speeds = {name: column[:instants] for name, column in conditions.speeds.items()}
    links = {pair: column[:instants] for pair, column in conditions.bandwidth.items()}
    return replace(conditions, rates=conditions.rates[:instants], speeds=speeds, bandwidth=links)


def farthest(throughput: Floats, goal: Goal, hold: Hold = "step") -> int:
    """For how many instants from the first on the relative throughput is within the tolerance (lines 5 to 13).

    Their "cumulative" throughput is read as that of an instant with what waits from those before (4.4), or, to hold the
    interval, as the mean over the instants so far.
    """
    if hold == "interval" and throughput.size:
        so_far = np.cumsum(throughput) / np.arange(1, throughput.size + 1)
        return max((k + 1 for k, each in enumerate(so_far.tolist()) if not _way(each, goal)), default=0)
    off = np.flatnonzero([_way(each, goal) for each in throughput.tolist()])
    return int(off[0]) if off.size else throughput.size


def _way(reached: float, goal: Goal) -> int:
    """1 where less is reached than the tolerance allows, -1 where more is, else 0."""
    if reached < goal.lowest - ROUNDING:
        return 1
    return -1 if reached > goal.throughput + goal.tolerance + ROUNDING else 0


class _Search:
    """The loop of Algorithm 5. begin: the instant (ot) from which on `assembly` is to run. hold: see `Hold`.

    At one cross-over actions go one way only, each brings the throughput nearer or is undone, and there is a bound on their
    number; where none is left, the next instant is gone to. Printed, nothing ends the loop where no action helps.
    """

    def __init__(
        self,
        problem: Problem,
        deployment: Deployment,
        conditions: Conditions,
        hold: Hold = "step",
        why: tuple[str, ...] = (),
    ) -> None:
        self.problem, self.goal, self.all, self.hold = problem, problem.goal, conditions, hold
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
            held = farthest(self.found.application, self.goal, self.hold)
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
        self.at = min(math.ceil(late / conditions.seconds - ROUNDING), conditions.instants - 1)

    def _advance(self, instants: int) -> None:
        """Keep the deployment for so many instants, and note what was planned for their first."""
        if self.acted:
            self._settle(instants)
        self.expected.append(self.found.application[:instants])
        self.begin += instants
        now, ahead = self.assembly.conditions, self.begin < self.all.instants
        if ahead:
            queues = self.found.waiting[instants]
            self._go_on(self.assembly.deployment(), _later(now, instants, queues, self.all.time))

    def _settle(self, instants: int) -> None:
        """Note the stage that was reached: planned hosts of the cheapest types, each with a name of its own."""
        now = self.assembly.conditions
        for packed in self._packed(instants):
            settled = named(packed.deployment(), self.planned)
            assembly = Assembly(self.problem, settled, now)
            bandwidth = assembly.limits()
            found = assembly.flows(bandwidth)
            if self._keeps(found.application[:instants], self.found.application[:instants]):
                break
        self.planned += len(settled.hosts)
        self.assembly, self.bandwidth, self.found = assembly, bandwidth, found
        stage = PlannedStage(now.time, settled, tuple(dict.fromkeys(self.why)))
        self.stages = [*(each for each in self.stages if each.time < now.time), stage]
        self.why = []

    def _packed(self, instants: int) -> Iterator[Assembly]:
        """What was reached, repacked for the mean throughput of all that is left of the interval; where rates differ much
        that is not enough for the instants that the stage is to hold: for that of these alone; as it is."""
        yield repacked(self.assembly, self.goal.throughput)
        held = Assembly(self.problem, self.assembly.deployment(), _first(self.assembly.conditions, instants))
        yield repacked(held, self.goal.throughput)
        yield self.assembly

    def _keeps(self, after: Floats, before: Floats) -> bool:
        """Whether what is held is nowhere below the tolerance where it was not, and nowhere lower where it was."""
        if self.hold == "interval":
            upto = np.arange(1, before.size + 1)
            after, before = np.cumsum(after) / upto, np.cumsum(before) / upto
        return bool((after >= np.minimum(before, self.goal.lowest) - ROUNDING).all())

    def _adapt(self) -> bool:
        """Plan actions at the cross-over, for what is left of the interval (lines 18 to 27); False where none helps.

        The tolerance says when; what is done then goes on to the target, as in Algorithm 4: a plan that ends at the edge of
        the tolerance leaves it with the first deviation. And it goes on for the first instant only in which a host that is
        leased for it is up: what comes later is the next cross-over's.
        """
        way = _way(self._choices.judged, self.goal)
        if not way:
            return False
        most, before = MOST_AT_ONCE * max(1, len(self.problem.operators)), self.acted
        while self.way in (0, way) and self.acted < most:
            choices = self._choices
            short = choices.reached < self.goal.throughput - ROUNDING
            trial = choices.down() if way < 0 else choices.up() if short else None
            if trial is None:
                break
            self.assembly, self.found, self.way = trial.assembly, trial.found, way
            self.acted += 1
            self.why.append(trial.said)
        if way > 0 and self._choices.reached < self.goal.lowest - ROUNDING:
            self._miss()
        return self.acted > before and farthest(self.found.application, self.goal, self.hold) > 0

    @property
    def _choices(self) -> Choices:
        return Choices(self.assembly, self.found, self.bandwidth, self.at, self._end, self.hold)

    def _miss(self) -> None:
        """Note that the target is not reached; what was done without any effect is undone."""
        self.missed.append(Missed(self.assembly.conditions.time, self._choices.reached))
        assembly, found = self.untouched
        if self.acted and self._choices.reached <= float(found.application[self.at]) + PROGRESS:
            self.assembly, self.found = assembly, found
            self.acted, self.why = 0, []

    @property
    def _end(self) -> float:
        return self.all.time + self.all.seconds * self.all.instants

    def _worth(self, stages: Sequence[PlannedStage]) -> float:
        """What the interval adds to the profit of the period (5.2, p. 103).

        What is paid of a host beyond the interval's end is not of this interval: else one that is leased near its end would
        cost as much as one kept for all of it.
        """
        times = [*(stage.time for stage in stages), self._end]
        value = math.fsum(
            value_of(self.problem, stage.deployment.active) * (until - stage.time)
            for stage, until in zip(stages, times[1:], strict=True)
        )
        last: dict[str, tuple[Host, float]] = {}
        for stage, until in zip(stages, times[1:], strict=True):
            last |= {host.name: (host, until) for host in stage.deployment.hosts}
        money = math.fsum(
            money_for(host, self.all.time, until) - (beyond(host, self.all.time, until) if until >= self._end else 0.0)
            for host, until in last.values()
        )
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


def _gone(before: Assembly, after: Assembly) -> tuple[str, ...]:
    left = {host.name for host in after.hosts}
    return tuple(f"{host.name} is not needed when its paid time ends" for host in before.hosts if host.name not in left)
