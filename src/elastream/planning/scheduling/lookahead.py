"""PLAStiCC: plans for a whole prediction interval, from one cross-over to the next (thesis, 5.3.1, Algorithm 5).

A deployment is kept for as long as it will hold the target. Where it will not, something is changed: an instance or an
alternate at a time, whichever leaves more profit; and so on from there. What is planned for later is a plan only: it costs
nothing to retract. All steps are `greedy`'s, over the instants that are left.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from elastream.model.observation import Floats
from elastream.planning.scheduling.assembly import Assembly
from elastream.planning.scheduling.giving_back import vacated
from elastream.planning.scheduling.local_profit import PROGRESS, Choices, Hold, beyond, money_for
from elastream.planning.scheduling.packing import NEARLY
from elastream.planning.scheduling.problem import Conditions, Deployment, Goal, Host, Problem, value_of
from elastream.planning.scheduling.schedule import PLANNED, Missed, PlannedStage, StagedPlan, named, tidied
from elastream.planning.scheduling.steps import repacked

__all__ = ["farthest", "look_ahead"]

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
        if holds and without.worth > found.worth + NEARLY:
            found = without
        elif len(names) > 1:  # some of them may go all the same
            left += [names[len(names) // 2 :], names[: len(names) // 2]]
    return found


def _short(schedule: StagedPlan, goal: Goal) -> tuple[int, int]:
    """How often no action reaches the target, and how many instants are below the tolerance."""
    return len(schedule.missed), int((schedule.throughput < goal.lowest - NEARLY).sum())


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
    if reached < goal.lowest - NEARLY:
        return 1
    return -1 if reached > goal.throughput + goal.tolerance + NEARLY else 0


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
        self.at = min(math.ceil(late / conditions.seconds - NEARLY), conditions.instants - 1)

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
        return bool((after >= np.minimum(before, self.goal.lowest) - NEARLY).all())

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
            short = choices.reached < self.goal.throughput - NEARLY
            trial = choices.down() if way < 0 else choices.up() if short else None
            if trial is None:
                break
            self.assembly, self.found, self.way = trial.assembly, trial.found, way
            self.acted += 1
            self.why.append(trial.said)
        if way > 0 and self._choices.reached < self.goal.lowest - NEARLY:
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
