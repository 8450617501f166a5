"""What `lookahead` can do at a cross-over, and what each action is worth by itself (`ScaleUp`, `ScaleDown`, p. 107).

Actions are tried on copies. Which is taken, local profit says: value for as long as it is gained or lost, and money for
whole billing time units.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from elastream.model.cloud import HostType
from elastream.model.observation import Floats
from elastream.model.qos import Flows
from elastream.planning.scheduling.assembly import Assembly
from elastream.planning.scheduling.giving_back import vacated
from elastream.planning.scheduling.greedy import better, cheaper
from elastream.planning.scheduling.packing import NEARLY
from elastream.planning.scheduling.problem import Goal, Host, Problem, value_of
from elastream.planning.scheduling.steps import allocate, grow, shrink

__all__ = ["PROGRESS", "Choices", "Hold", "TriedAction", "beyond", "money_for"]

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
        for operator in sorted(np.flatnonzero(relative < 1 - NEARLY).tolist(), key=lambda row: float(relative[row])):
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
        return min(float(reached[0]), float(reached.mean())) >= self.goal.throughput - NEARLY

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
        wanted = min(1.0, relative * self.goal.throughput / max(self.reached, NEARLY)) * float(self._needs(at)[operator])
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
        part = min(1.0, self.goal.throughput / max(float(self.found.application[0]), NEARLY))
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
            again = np.flatnonzero(self.found.application[self.at :] >= self.goal.lowest - NEARLY)
            return max(1, self.at + int(again[0])) if again.size else instants
        below = np.flatnonzero(found.application < self.goal.lowest - NEARLY)
        return int(below[0]) if below.size else instants

    def _price(self, operator: int, instances: int, hosts: Sequence[Host]) -> float:
        """Money for new hosts until the interval ends: of the cheapest type for what is on them, as they are repacked."""
        if not hosts:
            return 0.0
        works = self.end - min(host.ready for host in hosts)
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
