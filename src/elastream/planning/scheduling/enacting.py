"""Actions that lead from the plan in force to a wanted one.

Switches come first, then hosts, then instances; what is given up goes last, and only at the end of what is paid (4.8.2).
Actions are absolute, and what is on its way counts: planned again from what it leads to, a plan has no actions.
"""

import math
from collections.abc import Sequence

import numpy as np

from elastream.model.action import Action, CancelDrain, DrainHost, ReleaseHost, SetParallelism, SwitchAlternate, TaskId
from elastream.model.cloud import HostState
from elastream.model.metrics import Metric
from elastream.model.observation import Integers, Observation
from elastream.model.stages import Unit
from elastream.planning.algorithms.billing import due_back
from elastream.planning.algorithms.draft import Draft
from elastream.planning.algorithms.fused import threads
from elastream.planning.algorithms.measures import source_sum, tasks_on
from elastream.planning.algorithms.placement import balance
from elastream.planning.provision import TARGET_UTILISATION
from elastream.planning.scheduling.problem import Deployment, Problem

__all__ = ["enacted"]


def enacted(
    observation: Observation, problem: Problem, wanted: Deployment, *, pace: float, why: str = "as planned"
) -> tuple[Action, ...]:
    """Actions that make the observed plan into `wanted`; none where it is already, or is on its way.

    Hosts of `wanted` with a name are those leased; one without is leased now, whatever its `since`: leave out what is not
    due yet. A leased host that is not wanted goes when what is paid of it ends before the next round, `pace` seconds later;
    until then it stays, without instances. An instance moves to a host that is up: what is to move to one that starts does
    so in a later round. why: what is said of each action.
    """
    draft = Draft(observation)
    for row, option in enumerate(wanted.active):
        operator, name = problem.operators[row], problem.options[row][option].name
        if name and observation.composition.alternate(observation.context.graph.by_name[operator]).name != name:
            draft.do(SwitchAlternate(operator, name, why))
    return (_Shared if problem.shared else _Apart)(draft, problem, wanted, pace, why).actions()


class _Enacting:
    """Common to both kinds of plant. kept: names of the leased hosts that stay."""

    def __init__(self, draft: Draft, problem: Problem, wanted: Deployment, pace: float, why: str) -> None:
        self.draft, self.problem, self.wanted, self.pace, self.why = draft, problem, wanted, pace, why
        self.observation = draft.observation
        self.kept = {host.name for host in wanted.hosts if host.name}

    def _going(self) -> list[str]:
        """Hosts that are up, are not wanted, and of which what is paid ends; those that cost least to empty first."""
        leases, now = self.observation.leases, self.observation.time
        found = [
            host for host in self.observation.usable if host not in self.kept and due_back(leases[host], now, self.pace)
        ]
        return sorted(found, key=lambda host: (tasks_on(self.observation, host), leases[host].remaining(now)))


class _Apart(_Enacting):
    """Instances hold cores of single hosts."""

    def actions(self) -> tuple[Action, ...]:
        draft, target = self.draft, self._target()
        removals: list[TaskId] = []
        moves: list[tuple[TaskId, int]] = []
        adds: list[tuple[Unit, int]] = []
        for unit in draft.units:
            column = draft.column[unit.name]
            if not self.problem.placed[self.problem.row[unit.name]]:
                continue
            change = target[:, column] - draft.counts[:, column]
            surplus = [task for row in np.flatnonzero(change < 0).tolist() for task in self._last(unit, row, -change[row])]
            lacking = [row for row in np.flatnonzero(change > 0).tolist() for _ in range(change[row])]
            lacking.sort(key=lambda row: not draft.ready[row])  # what moves goes to those that are up
            moved = min(len(surplus), len(lacking))
            moves += zip(surplus[:moved], lacking[:moved], strict=True)
            removals += surplus[moved:]
            # Those of a lost host wait for room, and are placed by the plant.
            waiting = draft.instances[unit.name] - int(draft.counts[:, column].sum())
            adds += [(unit, row) for row in lacking[moved : max(moved, len(lacking) - max(0, waiting))]]
        for task in removals:
            draft.remove(task, self.why)
        self._move([(task, row) for task, row in moves if draft.ready[row]])
        for unit, row in adds:
            if draft.feasibility(unit)[row] >= 1:
                draft.add(unit, draft.hosts[row], self.why)
        return (*draft.plan, *self._releases())

    def _target(self) -> Integers:
        """Instances by host and unit, in the draft's order, with the hosts leased that are to be.

        No operator is left without an instance, and one whose instances are fixed keeps their number.
        """
        draft, problem = self.draft, self.problem
        found: list[tuple[int, int]] = []
        for number, host in enumerate(self.wanted.hosts):
            if host.name in draft.leases:
                found.append((draft.row(host.name), number))
            elif not host.name and draft.may_lease:
                found.append((draft.row(draft.lease(host.type, self.why)), number))
        target = np.zeros_like(draft.counts)
        for unit in draft.units:
            column, row = draft.column[unit.name], problem.row[unit.name]
            for at, number in found:
                target[at, column] = self.wanted.instances[number, row]
            here = draft.counts[:, column]
            if problem.fixed[row] and target[:, column].sum() != here.sum():
                target[:, column] = here
            if not target[:, column].any() and here.any():
                target[int(np.argmax(here)), column] = 1
        return target

    def _last(self, unit: Unit, row: int, count: int) -> Sequence[TaskId]:
        """The highest numbered instances of `unit` on a host."""
        here = [task for task in self.draft.tasks_on(self.draft.hosts[row]) if self.draft.unit_of(task) is unit]
        return sorted(here, key=lambda task: -task.index)[:count]

    def _move(self, moves: list[tuple[TaskId, int]]) -> None:
        """Make the moves that there is room for, as often as others make room; those of a ring stay."""
        draft, left = self.draft, moves
        while left:
            later = []
            for task, row in left:
                if draft.feasibility(draft.unit_of(task))[row] >= 1:
                    draft.move(task, draft.hosts[row], self.why)
                else:
                    later.append((task, row))
            if len(later) == len(left):
                return
            left = later

    def _releases(self) -> list[Action]:
        draft = self.draft
        going = [host for host in self._going() if not draft.counts[draft.row(host)].any()]
        most = max(0, len(draft.hosts) - max(1, self.problem.min_hosts))
        return [ReleaseHost(host, "not needed, and what is paid of it ends") for host in going[:most]]


class _Shared(_Enacting):
    """Tasks take turns on the slots of all hosts (Spark): the parallelism of stages follows the slots."""

    def actions(self) -> tuple[Action, ...]:
        draft, observation = self.draft, self.observation
        leases = observation.leases
        draining = [host for host, lease in leases.items() if lease.state is HostState.DRAINING]
        for host in self.wanted.hosts:
            if host.name:
                continue
            again = next((name for name in draining if leases[name].type.name == host.type.name), None)
            if again is not None:
                draining.remove(again)
                draft.do(CancelDrain(again, self.why))
            elif draft.may_lease:
                draft.lease(host.type, self.why)
        for name in draining:
            if not tasks_on(observation, name):
                draft.do(ReleaseHost(name, "it holds no more tasks"))
        going = self._drains() if not draining and len(draft.hosts) == len(draft.observation.usable) else []
        draft.actions += going
        draft.actions += [action for name in sorted(observation.context.scalable) for action in self._widened(name, going)]
        moves = [] if going or draining else balance(observation)
        return (*draft.plan, *moves)

    def _drains(self) -> list[Action]:
        """Drains of hosts that are not wanted, half of those there at most: their tasks move to the others."""
        usable = self.observation.usable
        most = min(len(usable) // 2, len(usable) - max(1, self.problem.min_hosts))
        return [DrainHost(host, "not needed, and what is paid of it ends") for host in self._going()[: max(0, most)]]

    def _widened(self, operator: str, going: Sequence[Action]) -> list[Action]:
        """The tasks of a stage, one a slot; or the threads of an operator that waits, as many as are occupied."""
        observation = self.observation
        now = observation.composition.parallelism.get(operator, math.nan)
        now = observation.operators.value(operator, Metric.PARALLELISM) if math.isnan(now) else now
        if math.isnan(now):
            return []
        if observation.context.graph.by_name[operator].waits:
            busy = observation.operators.value(operator, Metric.BUSY_CORES)
            due, done = (source_sum(observation, metric) for metric in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE))
            if math.isnan(busy) or not done > 0 or math.isnan(due):
                return []
            wanted = threads(observation, operator, busy * max(1.0, due / done), TARGET_UTILISATION, None)
        else:
            left = {each.host for each in going if isinstance(each, DrainHost)}
            leases = observation.leases
            wanted = sum(leases[host].type.width for host in observation.usable if host not in left)
        return [SetParallelism(operator, wanted, why=self.why)] if wanted and wanted != now else []
