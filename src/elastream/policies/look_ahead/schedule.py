"""Plan over time: stages, due changes, and changes that a new plan retracts (thesis, p. 105)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from elastream.core.frames import Floats
from elastream.policies.value_cost.problem import Deployment, Host, Problem

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
    """Plan for an interval."""

    stages: tuple[PlannedStage, ...]  # by time; the first is in force
    throughput: Floats  # expected throughput of each instant
    missed: tuple[Missed, ...] = ()  # times at which the target is missed
    worth: float = 0.0  # interval's part of the period's profit


class Change(NamedTuple):
    """Planned change: `subject` (operator, instances, hosts of a type) takes `value` at `time`."""

    time: float
    subject: str
    value: str


def named(deployment: Deployment, first: int) -> Deployment:
    """Return the deployment with new hosts named, numbered from `first`."""
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
    """Return the deployment due now, with hosts that later stages need and that must be leased now."""
    stages = [stage for stage in schedule.stages if stage.time <= now + pace / 2] or [schedule.stages[0]]
    there = stages[-1].deployment
    names = {host.name for host in there.hosts}
    early: list[Host] = []
    for stage in schedule.stages[len(stages) :]:
        for host in stage.deployment.hosts:
            if host.name not in names and host.since < now + pace:
                names.add(host.name)
                early.append(host)
    hosts = (*there.hosts, *early)
    empty = np.zeros((len(early), there.instances.shape[1]), dtype=np.int64)
    return Deployment(
        there.active,
        tuple(replace(host, name="") if host.name.startswith(PLANNED) else host for host in hosts),
        np.concatenate([there.instances, empty]),
    )


def same(problem: Problem, one: Deployment, other: Deployment) -> bool:
    """Return True if both run the same on the same hosts. Empty hosts count only with shared cores."""
    return one.active == other.active and _occupied(problem, one) == _occupied(problem, other)


def _occupied(problem: Problem, deployment: Deployment) -> Mapping[str, tuple[int, ...]]:
    rows = zip(deployment.hosts, deployment.instances.tolist(), strict=True)
    return {host.name: tuple(counts) for host, counts in rows if problem.shared or any(counts)}


def changes(problem: Problem, schedule: StagedPlan) -> tuple[Change, ...]:
    """Return the changes from each stage to the next."""
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
