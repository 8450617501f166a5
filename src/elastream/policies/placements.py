"""Placements that ignore loads: baselines for placement policies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from elastream.core.action import Action, MoveTask
from elastream.core.frames import Integers
from elastream.core.observation import Context, Observation
from elastream.core.plant import Plan, Policy
from elastream.policies.elastic_allocator.policy import free_slots, movable
from elastream.policies.static import missing_hosts, placement_unsupported_reason


@dataclass(frozen=True)
class Even(Policy):
    """Storm's even scheduler: places the tasks of `operators` (empty: all) on the hosts in round-robin order."""

    operators: Sequence[str] = ()
    hosts: int = 0
    places_stateless: ClassVar = True
    name: ClassVar = "even"

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        rows = movable(observation, self.operators)
        turns = np.arange(rows.size) % max(1, len(observation.usable))
        return Plan((*missing_hosts(observation, self.hosts), *_moves(observation, rows, turns, "round-robin placement")))

    def unsupported_reason(self, context: Context) -> str | None:
        return placement_unsupported_reason(self.name, self.hosts, context)


@dataclass(frozen=True)
class Random(Policy):
    """Each task on a random host; deterministic for a seed.

    Args:
        slots: True to draw among the free slots, as on Storm, where each task fills one.
    """

    seed: int = 0
    operators: Sequence[str] = ()
    slots: bool = False
    hosts: int = 0
    places_stateless: ClassVar = True
    name: ClassVar = "random"

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        rows = movable(observation, self.operators)
        random, usable = np.random.default_rng(self.seed), observation.usable
        drawn = random.integers(0, max(1, len(usable)), rows.size)
        if self.slots and usable:
            at = np.array([observation.hosts.rows[host] for host in usable])
            free = np.repeat(np.arange(at.size), free_slots(observation, at, rows))
            placed = min(rows.size, free.size)
            drawn[:placed] = random.permutation(free)[:placed]
        return Plan((*missing_hosts(observation, self.hosts), *_moves(observation, rows, drawn, "random placement")))

    def unsupported_reason(self, context: Context) -> str | None:
        return placement_unsupported_reason(self.name, self.hosts, context)


@dataclass(frozen=True)
class Untouched(Policy):
    """Policy without actions."""

    name: ClassVar = "untouched"

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        return Plan()


def _moves(observation: Observation, rows: Integers, targets: Integers, why: str) -> list[Action]:
    tasks, hosts, usable = observation.tasks, observation.hosts.ids, observation.usable
    if not usable:
        return []
    return [
        MoveTask(tasks.tasks[row], usable[host], why=why)
        for row, host in zip(rows.tolist(), targets.tolist(), strict=True)
        if hosts[tasks.host[row]] != usable[host]
    ]
