"""A plan over time: what runs from when on, which of it is due, and what of it is given up when it is planned anew.

Planned changes cost nothing to retract, enacted ones are paid: they are counted apart (thesis, p. 105).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from elastream.core.frames import Floats
from elastream.policies.value_cost.problem import Deployment, Host, Problem

PLANNED = "+"
"""Begins the name of a host that is planned and not leased: no host of a plant is called so."""


@dataclass(frozen=True)
class PlannedStage:
    """What is to run from `time` on, seconds. why: what was changed, and why, a sentence each."""

    time: float
    deployment: Deployment
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Missed:
    """A time from which on no action reaches the target; reached: the mean relative throughput from there on."""

    time: float
    reached: float


@dataclass(frozen=True)
class StagedPlan:
    """A plan for an interval. stages: by time, the first is what runs now. throughput: expected, of each instant. missed:
    where the target is not reached. worth: what the interval adds to the profit of the period."""

    stages: tuple[PlannedStage, ...]
    throughput: Floats
    missed: tuple[Missed, ...] = ()
    worth: float = 0.0


class Change(NamedTuple):
    """One planned change: from `time` on, `value` of `subject`: an option of an operator, instances, hosts of a type."""

    time: float
    subject: str
    value: str


def named(deployment: Deployment, first: int) -> Deployment:
    """The same, each new host with a name of its own, numbered from `first` on."""
    numbers = iter(range(first, first + len(deployment.hosts)))
    hosts = tuple(host if host.name else replace(host, name=f"{PLANNED}{next(numbers)}") for host in deployment.hosts)
    return replace(deployment, hosts=hosts)


def tidied(problem: Problem, stages: Sequence[PlannedStage]) -> tuple[PlannedStage, ...]:
    """The same without hosts that hold nothing then or later ("shuts down those that are unused"), but for `min_hosts`.

    Where cores are shared every host works.
    """
    if problem.shared:
        return tuple(stages)
    needed: set[str] = set()
    found: list[PlannedStage] = []
    for stage in reversed(stages):
        hosts, instances = stage.deployment.hosts, stage.deployment.instances
        needed |= {host.name for host, held in zip(hosts, instances, strict=True) if held.any()}
        unused = [row for row, host in enumerate(hosts) if host.name not in needed]
        unused.sort(key=lambda row: hosts[row].type.price)
        spare = set(unused[max(0, problem.min_hosts - (len(hosts) - len(unused))) :])
        keep = [row for row in range(len(hosts)) if row not in spare]
        kept = replace(stage.deployment, hosts=tuple(hosts[row] for row in keep), instances=instances[keep])
        found.append(replace(stage, deployment=kept))
    return tuple(reversed(found))


def due(schedule: StagedPlan, now: float, pace: float) -> Deployment:
    """What is to be in force now: the stage of the time, with hosts that later ones need and that must be leased now.

    A host is leased so early that it has started when it is needed; one that would be late in the next round, `pace`
    seconds later, is due.
    """
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
    """Whether both run the same on the same hosts; where cores are reserved, hosts that hold nothing do not count."""
    return one.active == other.active and _held(problem, one) == _held(problem, other)


def _held(problem: Problem, deployment: Deployment) -> Mapping[str, tuple[int, ...]]:
    rows = zip(deployment.hosts, deployment.instances.tolist(), strict=True)
    return {host.name: tuple(held) for host, held in rows if problem.shared or any(held)}


def changes(problem: Problem, schedule: StagedPlan) -> tuple[Change, ...]:
    """What the stages change, each against the one before."""
    return tuple(
        Change(later.time, subject, value)
        for earlier, later in zip(schedule.stages, schedule.stages[1:], strict=False)
        for subject, _, value in differences(problem, earlier.deployment, later.deployment)
    )


def differences(problem: Problem, before: Deployment, after: Deployment) -> Iterator[tuple[str, str, str]]:
    """(subject, value before, value after) of alternates, instances and hosts that two deployments do not share."""
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
    found: dict[str, int] = {}
    for host in deployment.hosts:
        found[host.type.name] = found.get(host.type.name, 0) + 1
    return found


def retracted(before: Sequence[Change], after: Sequence[Change], now: float, within: float) -> int:
    """How many changes planned for after `now` a new plan has no more; one moved by less than `within` seconds stays."""
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
class Done:
    """Changes that were enacted lately, and how many of all were reversed. last: (time, before, after) by subject."""

    last: Mapping[str, tuple[float, str, str]] = field(default_factory=dict)
    reversed: int = 0

    def after(self, problem: Problem, now: float, within: float, before: Deployment, wanted: Deployment) -> "Done":
        """With what leads from `before` to `wanted`, enacted now.

        A change reverses the last of its subject, if that was at most `within` seconds ago: another alternate and back,
        more instances or hosts and then fewer.
        """
        last = {subject: each for subject, each in self.last.items() if now - each[0] <= within}
        count = self.reversed
        for subject, one, other in differences(problem, before, wanted):
            if subject in last and _back(last[subject][1:], (one, other)):
                count += 1
            last[subject] = now, one, other
        return Done(last, count)


def _back(earlier: tuple[str, str], later: tuple[str, str]) -> bool:
    """Whether `later` goes back what `earlier` went: numbers the other way, names to where they were."""
    if all(each.isdecimal() for each in (*earlier, *later)):
        return (int(earlier[1]) > int(earlier[0])) != (int(later[1]) > int(later[0]))
    return later[1] == earlier[0]
