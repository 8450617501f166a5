"""Staged plans, and PLAStiCC's search for one, with changes at cross-overs (thesis, 5.3.1, Algorithm 5).

Actions (`ScaleUp`, `ScaleDown`, p. 107) are tried on copies; the best local profit wins.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from elastream.core.frames import Floats
from elastream.core.hosts import HostType
from elastream.core.qos import Flows
from elastream.policies.value_cost.greedy import better, cheaper
from elastream.policies.value_cost.problem import Conditions, Deployment, Goal, Host, Problem, value_of
from elastream.policies.value_cost.steps import Assembly, allocate, grow, repacked, shrink, vacated
from elastream.units import ROUNDING

# Prefix of planned hosts' names; no plant uses it.
PLANNED = "+"


@dataclass(frozen=True)
class PlannedStage:
    """Deployment from `time` on, with a reason for each change."""

    time: float
    deployment: Deployment
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Missed:
    """Time from which no action reaches the target, and the mean relative throughput from then on."""

    time: float
    reached: float


@dataclass(frozen=True)
class StagedPlan:
    stages: tuple[PlannedStage, ...]  # by time; the first is in force
    throughput: Floats  # expected throughput of each instant
    missed: tuple[Missed, ...] = ()  # times at which the target is missed
    worth: float = 0.0  # interval's part of the period's profit


class Change(NamedTuple):
    """Planned change: at `time` (s), `subject` gets `value`. Subjects are operators, their instances and host types."""

    time: float
    subject: str
    value: str


def named(deployment: Deployment, first: int) -> Deployment:
    numbers = iter(range(first, first + len(deployment.hosts)))
    hosts = tuple(host if host.name else replace(host, name=f"{PLANNED}{next(numbers)}") for host in deployment.hosts)
    return replace(deployment, hosts=hosts)


def tidied(problem: Problem, stages: Sequence[PlannedStage]) -> tuple[PlannedStage, ...]:
    """Return the stages without hosts that stay empty ("shuts down those that are unused"), down to `min_hosts`.

    With shared cores every host works.
    """
    if problem.shared:
        return tuple(stages)
    needed: set[str] = set()
    tidy: list[PlannedStage] = []
    for stage in reversed(stages):
        hosts, instances = stage.deployment.hosts, stage.deployment.instances
        needed |= {host.name for host, counts in zip(hosts, instances, strict=True) if counts.any()}
        unused = [row for row, host in enumerate(hosts) if host.name not in needed]
        unused.sort(key=lambda row: hosts[row].type.price)
        spare = set(unused[max(0, problem.min_hosts - (len(hosts) - len(unused))) :])
        keep = [row for row in range(len(hosts)) if row not in spare]
        rest = replace(stage.deployment, hosts=tuple(hosts[row] for row in keep), instances=instances[keep])
        tidy.append(replace(stage, deployment=rest))
    return tuple(reversed(tidy))


def due(schedule: StagedPlan, now: float, pace: float) -> Deployment:
    """Return the deployment due now, with hosts of later stages that must be leased now."""
    stages = [stage for stage in schedule.stages if stage.time <= now + pace / 2] or [schedule.stages[0]]
    current = stages[-1].deployment
    names = {host.name for host in current.hosts}
    early: list[Host] = []
    for stage in schedule.stages[len(stages) :]:
        for host in stage.deployment.hosts:
            if host.name not in names and host.since < now + pace:
                names.add(host.name)
                early.append(host)
    hosts = (*current.hosts, *early)
    empty = np.zeros((len(early), current.instances.shape[1]), dtype=np.int64)
    return Deployment(
        current.active,
        tuple(replace(host, name="") if host.name.startswith(PLANNED) else host for host in hosts),
        np.concatenate([current.instances, empty]),
    )


def same(problem: Problem, one: Deployment, other: Deployment) -> bool:
    """Return True if both run the same on the same hosts. Empty hosts count only with shared cores."""
    return one.active == other.active and _occupied(problem, one) == _occupied(problem, other)


def _occupied(problem: Problem, deployment: Deployment) -> Mapping[str, tuple[int, ...]]:
    rows = zip(deployment.hosts, deployment.instances.tolist(), strict=True)
    return {host.name: tuple(counts) for host, counts in rows if problem.shared or any(counts)}


def changes(problem: Problem, schedule: StagedPlan) -> tuple[Change, ...]:
    return tuple(
        Change(later.time, subject, value)
        for earlier, later in zip(schedule.stages, schedule.stages[1:], strict=False)
        for subject, _, value in differences(problem, earlier.deployment, later.deployment)
    )


def differences(problem: Problem, before: Deployment, after: Deployment) -> Iterator[tuple[str, str, str]]:
    """Yield (subject, value before, value after) for alternates, instances and hosts."""
    for row, operator in enumerate(problem.operators):
        if before.active[row] != after.active[row]:
            options = problem.options[row]
            yield operator, options[before.active[row]].name, options[after.active[row]].name
    had, has = before.instances.sum(axis=0).tolist(), after.instances.sum(axis=0).tolist()
    for operator, one, other in zip(problem.operators, had, has, strict=True):
        if one != other:
            yield f"instances of {operator}", str(one), str(other)
    was, will = _counted(before), _counted(after)
    for type in sorted(was.keys() | will.keys()):
        if was.get(type, 0) != will.get(type, 0):
            yield f"hosts of {type}", str(was.get(type, 0)), str(will.get(type, 0))


def _counted(deployment: Deployment) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for host in deployment.hosts:
        counts[host.type.name] = counts.get(host.type.name, 0) + 1
    return counts


def retracted(before: Sequence[Change], after: Sequence[Change], now: float, within: float) -> int:
    """Count future changes that a new plan drops. One moved by less than `within` seconds stays."""
    left = list(after)
    count = 0
    for change in before:
        if change.time <= now:
            continue
        same = [each for each in left if each[1:] == change[1:] and abs(each.time - change.time) < within]
        if same:
            left.remove(same[0])
        else:
            count += 1
    return count


@dataclass(frozen=True)
class ChangeHistory:
    """Recently enacted changes, (time, before, after) by subject, and the number of reversals."""

    last: Mapping[str, tuple[float, str, str]] = field(default_factory=dict)
    reversed: int = 0

    def after(
        self, problem: Problem, now: float, within: float, before: Deployment, deployment: Deployment
    ) -> "ChangeHistory":
        """Return the history with the changes from `before` to `deployment`, enacted now.

        A change within `within` seconds that goes the other way reverses the last one of its subject.
        """
        last = {subject: each for subject, each in self.last.items() if now - each[0] <= within}
        count = self.reversed
        for subject, one, other in differences(problem, before, deployment):
            if subject in last and _back(last[subject][1:], (one, other)):
                count += 1
            last[subject] = now, one, other
        return ChangeHistory(last, count)


def _back(earlier: tuple[str, str], later: tuple[str, str]) -> bool:
    if all(each.isdecimal() for each in (*earlier, *later)):
        return (int(earlier[1]) > int(earlier[0])) != (int(later[1]) > int(later[0]))
    return later[1] == earlier[0]


# Scope of the tolerance: each step's throughput, or the mean over the rest of the interval (5.2).
Hold: TypeAlias = Literal["step", "interval"]

# Least gain of relative throughput of a useful action; less is rounding.
PROGRESS = 1e-4


@dataclass(frozen=True)
class TriedAction:
    """Action tried on a copy. `gain` is profit over the rest of the interval."""

    assembly: Assembly
    flows: Flows
    gain: float
    why: str


@dataclass(frozen=True)
class Choices:
    assembly: Assembly
    flows: Flows  # rates of `assembly` under `bandwidth`
    bandwidth: Floats | None
    at: int  # first instant in which a host leased now is up
    end: float  # end of the interval
    hold: Hold

    @property
    def problem(self) -> Problem:
        return self.assembly.problem

    @property
    def goal(self) -> Goal:
        return self.problem.goal

    @property
    def reached(self) -> float:
        """Relative throughput in the first instant that actions affect."""
        return float(self.flows.application[self.at])

    @property
    def judged(self) -> float:
        """Throughput that decides if something must change: of the step, or the mean of the rest."""
        flows = self.flows.application
        return float(flows[0] if self.hold == "step" else flows.mean())

    def up(self) -> TriedAction | None:
        """Return the best action for the worst bottleneck that can change (`ScaleUpOrDecAppValue`)."""
        relative = self.flows.relative[self.at]
        for operator in sorted(np.flatnonzero(relative < 1 - ROUNDING).tolist(), key=lambda row: float(relative[row])):
            tried = [*self._switched(operator, cheaper(self.assembly, operator)), *self._grown(operator)]
            if tried := [each for each in tried if self._helps(each, operator)]:
                return max(tried, key=lambda each: (each.gain, each.flows.application[self.at]))
        return self._linked()

    def _helps(self, trial: TriedAction, operator: int) -> bool:
        before, after = self.flows, trial.flows
        if after.application[self.at] > before.application[self.at] + PROGRESS:
            return True
        removed = bool((trial.assembly.total < self.assembly.total).any())
        return not removed and bool(after.relative[self.at, operator] > before.relative[self.at, operator] + PROGRESS)

    def _linked(self) -> TriedAction | None:
        if self.bandwidth is None:
            return None
        trial, hosts = self.assembly.copy(), len(self.assembly.hosts)
        allocate(trial, self.goal.throughput)
        flows = trial.flows(trial.limits())
        if flows.application[self.at] <= self.reached + PROGRESS:
            return None
        return TriedAction(trial, flows, 0.0, f"{len(trial.hosts) - hosts} hosts more: links hold records up")

    def down(self) -> TriedAction | None:
        """Return the best action for the operator with most spare that keeps the target (`ScaleDownOrIncAppValue`)."""
        for place, operator in enumerate(self._by_spare()):
            tried = [*self._switched(operator, better(self.assembly, operator))]
            if not self.problem.shared or not place:
                tried += self._shrunk(operator)
            if tried := [each for each in tried if self._enough(each)]:
                return max(tried, key=lambda each: (each.gain, -each.flows.application[0]))
        return None

    def _enough(self, trial: TriedAction) -> bool:
        """Return True if the target holds now and on average, so that nothing is leased again."""
        reached = trial.flows.application
        return min(float(reached[0]), float(reached.mean())) >= self.goal.throughput - ROUNDING

    def _by_spare(self) -> Sequence[int]:
        relative, needs, capacity = self.flows.relative[0], self._needs(0), self.assembly.capacity[0]
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
        why = f"{self.problem.operators[operator]} as {options[option].name}: value {more:+.3g}"
        yield self._tried(trial, more, 0.0, why)

    def _grown(self, operator: int) -> Iterator[TriedAction]:
        problem, name = self.problem, self.problem.operators[operator]
        hosts, had = len(self.assembly.hosts), int(self.assembly.total[operator])
        for spared in (None, self.flows) if not problem.shared else (None,):
            trial, added = self.assembly.copy(), 0
            for _ in range(1 if problem.shared or spared else self._lacking(operator)):
                if not grow(trial, operator, spared, lease=spared is None):
                    break
                added += 1
            if added:
                fresh = int(trial.instances[hosts:, operator].sum())
                money = self._price(operator, fresh, trial.hosts[hosts:])
                why = f"{len(trial.hosts) - hosts} host more" if problem.shared else f"{name} x {had + added}"
                yield self._tried(trial, 0.0, money, f"{why}: {name} holds up the rest")

    def _lacking(self, operator: int) -> int:
        relative, at = float(self.flows.relative[self.at, operator]), self.at
        needed = min(1.0, relative * self.goal.throughput / max(self.reached, ROUNDING)) * float(self._needs(at)[operator])
        return max(1, math.floor((needed - float(self.assembly.capacity[at, operator])) / self._each(operator)))

    def _needs(self, at: int) -> Floats:
        records = self.flows.arriving[at] + self.flows.waiting[at] / self.assembly.conditions.seconds
        return np.asarray(records * self.problem.costs(self.assembly.active))

    def _each(self, operator: int) -> float:
        speeds = self.assembly.speeds
        return float(self.problem.per_instance[operator]) * float(speeds.mean() if speeds.size else 1.0)

    def _shrunk(self, operator: int) -> Iterator[TriedAction]:
        if self.problem.shared:
            rows = range(len(self.assembly.hosts))
            fewer = vacated(self.assembly, self.goal.throughput, rows)
            if len(fewer.hosts) < len(self.assembly.hosts):
                yield self._tried(fewer, 0.0, -self._saved(fewer), f"{len(fewer.hosts)} hosts are enough")
            return
        if not self.assembly.sizable[operator]:
            return
        part = min(1.0, self.goal.throughput / max(float(self.flows.application[0]), ROUNDING))
        need = float(self._needs(0)[operator]) * part
        spare = math.floor((float(self.assembly.capacity[0, operator]) - need) / self._each(operator))
        for count in dict.fromkeys((max(1, spare), 1)):
            trial = self.assembly.copy()
            removed = sum(shrink(trial, operator) is not None for _ in range(min(count, int(trial.total[operator]) - 1)))
            if removed:
                why = f"{self.problem.operators[operator]} x {int(trial.total[operator])}: it has cores to spare"
                yield self._tried(trial, 0.0, -self._saved(trial), why)

    def _tried(self, trial: Assembly, value: float, money: float, why: str) -> TriedAction:
        flows = trial.flows(self.bandwidth)
        lasts = trial.conditions.seconds * self._lasting(flows, lost=value < 0)
        gain = value * lasts / self.goal.period - self.problem.line.sigma * money
        return TriedAction(trial, flows, gain, why)

    def _lasting(self, flows: Flows, *, lost: bool) -> int:
        instants = self.assembly.conditions.instants
        if self.hold == "interval":
            return instants
        if lost:
            again = np.flatnonzero(self.flows.application[self.at :] >= self.goal.lowest - ROUNDING)
            return max(1, self.at + int(again[0])) if again.size else instants
        below = np.flatnonzero(flows.application < self.goal.lowest - ROUNDING)
        return int(below[0]) if below.size else instants

    def _price(self, operator: int, instances: int, hosts: Sequence[Host]) -> float:
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
        now = self.assembly.conditions.time
        if self.problem.shared:
            stay = {id(host) for host in fewer.hosts}
            freed = [host for host in self.assembly.hosts if id(host) not in stay]
        else:
            occupied = self.assembly.instances.sum(axis=1) > 0
            freed = [fewer.hosts[row] for row in np.flatnonzero(occupied & (fewer.instances.sum(axis=1) == 0)).tolist()]
        return math.fsum(money_for(host, now, self.end) for host in freed)


def money_for(host: Host, now: float, until: float) -> float:
    billing = host.type.billing
    begun = billing.units(now - host.since) if now >= host.since else 0
    return max(0, billing.units(until - host.since) - begun) * host.type.price if until > host.since else 0.0


def beyond(host: Host, now: float, until: float) -> float:
    """Return the part of `money_for` for time after `until`."""
    billing = host.type.billing
    if not money_for(host, now, until):
        return 0.0
    paid_until = host.since + billing.units(until - host.since) * billing.unit
    return (paid_until - until) / billing.unit * host.type.price


# Bound on actions per operator at one cross-over; not reached in practice.
MOST_AT_ONCE = 8


def look_ahead(
    problem: Problem,
    deployment: Deployment,
    conditions: Conditions,
    *,
    ending: Collection[str] = (),
    hold: Hold = "step",
) -> StagedPlan:
    """Return a plan for the interval of `conditions`.

    Args:
        ending: Hosts whose paid time ends before the next round. They go if the interval is worth more without them
            ("repacking and shut-down", line 29).
    """
    schedule = _Search(problem, deployment, conditions, hold).schedule()
    left = [sorted(ending)] if ending else []
    while left:
        names = left.pop()
        first = Assembly(problem, schedule.stages[0].deployment, _now(conditions))
        fewer = vacated(first, problem.goal.throughput, [row for row, host in enumerate(first.hosts) if host.name in names])
        if len(fewer.hosts) == len(first.hosts):
            continue
        why = (*schedule.stages[0].why, *_release_reasons(first, fewer))
        without = _Search(problem, fewer.deployment(), conditions, hold, why).schedule()
        holds = _short(without, problem.goal) <= _short(schedule, problem.goal)
        if holds and without.worth > schedule.worth + ROUNDING:
            schedule = without
        elif len(names) > 1:  # some of them may still be released
            left += [names[len(names) // 2 :], names[: len(names) // 2]]
    return schedule


def _short(schedule: StagedPlan, goal: Goal) -> tuple[int, int]:
    return len(schedule.missed), int((schedule.throughput < goal.lowest - ROUNDING).sum())


def _now(conditions: Conditions) -> Conditions:
    """Return the first instant as if it lasted, since later capacity can be leased again."""
    return replace(_first(conditions, 1), steady=True)


def _first(conditions: Conditions, instants: int) -> Conditions:
    speeds = {name: column[:instants] for name, column in conditions.speeds.items()}
    links = {pair: column[:instants] for pair, column in conditions.bandwidth.items()}
    return replace(conditions, rates=conditions.rates[:instants], speeds=speeds, bandwidth=links)


def farthest(throughput: Floats, goal: Goal, hold: Hold) -> int:
    """Return how many instants stay within the tolerance (lines 5 to 13).

    "Cumulative" throughput is read as an instant's throughput with earlier backlog (4.4) or, to hold the interval, as the
    mean so far.
    """
    if hold == "interval" and throughput.size:
        so_far = np.cumsum(throughput) / np.arange(1, throughput.size + 1)
        return max((k + 1 for k, each in enumerate(so_far.tolist()) if not _way(each, goal)), default=0)
    off = np.flatnonzero([_way(each, goal) for each in throughput.tolist()])
    return int(off[0]) if off.size else throughput.size


def _way(reached: float, goal: Goal) -> int:
    if reached < goal.lowest - ROUNDING:
        return 1
    return -1 if reached > goal.throughput + goal.tolerance + ROUNDING else 0


class _Search:
    """Loop of Algorithm 5 from the instant `begin` (ot)."""

    # Actions at a cross-over go one way, and each improves the throughput. If none helps, the next instant follows; the
    # printed loop does not end then.

    def __init__(
        self,
        problem: Problem,
        deployment: Deployment,
        conditions: Conditions,
        hold: Hold,
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
        while self.begin < self.all.instants:
            instants = farthest(self.flows.application, self.goal, self.hold)
            if instants:
                self._advance(instants)
            if self.begin < self.all.instants and not self._adapt():
                self._advance(1)
        stages = tidied(self.problem, self.stages)
        return StagedPlan(stages, np.concatenate([*self.expected, np.zeros(0)]), tuple(self.missed), self._worth(stages))

    def _go_on(self, deployment: Deployment, conditions: Conditions) -> None:
        self.assembly = Assembly(self.problem, deployment, conditions)
        self.bandwidth = self.assembly.limits()
        self.flows = self.assembly.flows(self.bandwidth)
        self.way, self.acted = 0, 0
        self.untouched = self.assembly, self.flows
        starts = min((kind.start for kind in self.problem.types), default=0.0)
        late = 0.0 if conditions.steady else max(0.0, starts - conditions.lead)
        self.at = min(math.ceil(late / conditions.seconds - ROUNDING), conditions.instants - 1)

    def _advance(self, instants: int) -> None:
        if self.acted:
            self._settle(instants)
        self.expected.append(self.flows.application[:instants])
        self.begin += instants
        now, ahead = self.assembly.conditions, self.begin < self.all.instants
        if ahead:
            queues = self.flows.waiting[instants]
            self._go_on(self.assembly.deployment(), _later(now, instants, queues, self.all.time))

    def _settle(self, instants: int) -> None:
        now = self.assembly.conditions
        for packed in self._packed(instants):
            settled = named(packed.deployment(), self.planned)
            assembly = Assembly(self.problem, settled, now)
            bandwidth = assembly.limits()
            flows = assembly.flows(bandwidth)
            if self._keeps(flows.application[:instants], self.flows.application[:instants]):
                break
        self.planned += len(settled.hosts)
        self.assembly, self.bandwidth, self.flows = assembly, bandwidth, flows
        stage = PlannedStage(now.time, settled, tuple(dict.fromkeys(self.why)))
        self.stages = [*(each for each in self.stages if each.time < now.time), stage]
        self.why = []

    def _packed(self, instants: int) -> Iterator[Assembly]:
        """Yield repackings for the rest of the interval, for the stage alone, and none."""
        yield repacked(self.assembly, self.goal.throughput)
        stage = Assembly(self.problem, self.assembly.deployment(), _first(self.assembly.conditions, instants))
        yield repacked(stage, self.goal.throughput)
        yield self.assembly

    def _keeps(self, after: Floats, before: Floats) -> bool:
        if self.hold == "interval":
            upto = np.arange(1, before.size + 1)
            after, before = np.cumsum(after) / upto, np.cumsum(before) / upto
        return bool((after >= np.minimum(before, self.goal.lowest) - ROUNDING).all())

    def _adapt(self) -> bool:
        """Plan actions at the cross-over (lines 18 to 27) up to the target; return False if none helps."""
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
            self.assembly, self.flows, self.way = trial.assembly, trial.flows, way
            self.acted += 1
            self.why.append(trial.why)
        if way > 0 and self._choices.reached < self.goal.lowest - ROUNDING:
            self._miss()
        return self.acted > before and farthest(self.flows.application, self.goal, self.hold) > 0

    @property
    def _choices(self) -> Choices:
        return Choices(self.assembly, self.flows, self.bandwidth, self.at, self._end, self.hold)

    def _miss(self) -> None:
        self.missed.append(Missed(self.assembly.conditions.time, self._choices.reached))
        assembly, flows = self.untouched
        if self.acted and self._choices.reached <= float(flows.application[self.at]) + PROGRESS:
            self.assembly, self.flows = assembly, flows
            self.acted, self.why = 0, []

    @property
    def _end(self) -> float:
        return self.all.time + self.all.seconds * self.all.instants

    def _worth(self, stages: Sequence[PlannedStage]) -> float:
        """Return the interval's part of the period's profit (5.2, p. 103), without paid time after the interval."""
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


def _release_reasons(before: Assembly, after: Assembly) -> tuple[str, ...]:
    left = {host.name for host in after.hosts}
    return tuple(f"{host.name} is not needed when its paid time ends" for host in before.hosts if host.name not in left)
