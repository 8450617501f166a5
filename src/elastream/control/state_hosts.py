"""Hosts that state needs, whatever the policy, and room on hosts that are nearly full of it."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from elastream.control.extension import LoopExtension
from elastream.core.action import Action, CancelDrain, LeaseHost, MoveTask
from elastream.core.alarm import Alarms
from elastream.core.decision import Proposal
from elastream.core.hosts import HostType
from elastream.core.memory import DECLARED, MARGIN_S, RESERVE, Fit, MemoryUse, fits, memory_uses, spill, until_help
from elastream.core.observation import Observation

# State fits if it has room, with NEARLY of each limit left free, MARGIN_S after a host that is asked for now could work.
#
# | state | answer |
# | --- | --- |
# | use or limit of a host unknown, such as a new one's | none; the time of a lack runs on |
# | fits | none; the lack is over |
# | does not fit in a heap for less than LOOK_S | none |
# | does not fit in a container for less than SETTLED_S | none: it lags behind moves |
# | a host came or began to leave less than SETTLED_S ago, is coming, or is new and holds none of the state | none |
# | `max_hosts` are there, or no type has room for a partition that fits nowhere | none; the alarm of growth speaks |
# | the policy leases a host | none, and no scaling rule but a budget refuses that one |
# | otherwise | one host, of the type with the cheapest room |
#
# A release leaves RESERVE free, more than NEARLY, and for longer. So a host that came for state does not go at once.
NEARLY = RESERVE / 2
SETTLED_S, LOOK_S = 180.0, 60.0
# Part of a type's memory by which a limit may differ from it and still follow from the type.
ALIKE = 0.1
# Proposer in decision records.
BY = "memory"


class StateHosts(LoopExtension):
    """Leases a host before state fills the present ones, and moves state off nearly full ones.

    Attributes:
        needed: Hosts that the state needs; 0 if the present ones suffice, or none can help.
    """

    def __init__(self) -> None:
        self.needed = 0
        self._looked, self._since = -math.inf, dict[str, float]()
        self._relieved: dict[tuple[str, str], _Relief] = {}

    def proposals(self, observation: Observation, planned: Sequence[Action], alarms: Alarms) -> Sequence[Proposal]:
        self.needed = 0
        if observation.time - self._looked < LOOK_S:
            return ()
        self._looked, can, proposed = observation.time, observation.context.capabilities, list[Action]()
        if "LeaseHost" in can and (lease := self._lease(observation)) is not None:
            self.needed = len(observation.usable) + len(observation.coming) + 1
            # A host that the policy leases is as good.
            proposed += [] if any(isinstance(each, LeaseHost | CancelDrain) for each in planned) else [lease]
        if "MoveTask" in can:
            proposed += self._moves(observation)
        return tuple(Proposal(each, BY) for each in proposed)

    def _lease(self, observation: Observation) -> LeaseHost | None:
        context, now = observation.context, observation.time
        known = [each for each in fits(observation, until_help(observation), NEARLY) if each.kind != DECLARED]
        for fit in known:
            if fit.stuck:
                self._since.setdefault(fit.kind, now)
            else:
                self._since.pop(fit.kind, None)
        lacks = {each.kind: each for each in known if now - self._since.get(each.kind, math.inf) >= _settle_s(each.kind)}
        settled = observation.since_change >= SETTLED_S
        if not lacks or not settled or observation.coming or len(observation.leases) >= context.max_hosts:
            return None
        for use in memory_uses(observation):
            if (lack := lacks.get(use.kind)) is None or _empty(use, observation):
                continue
            if (kind := _cheapest(use, lack, observation)) is not None:
                return LeaseHost(observation.host_name(), kind.name, kind.region, why=f"{BY}: {lack.sentence}")
        return None

    def _moves(self, observation: Observation) -> Iterator[MoveTask]:
        tasks, hosts = observation.tasks, observation.hosts.ids
        ringed = [observation.operators.rows.get(name, -1) for name in observation.rings]
        moving = [tasks.rows[str(task)] for task in observation.moving if str(task) in tasks.rows]
        movable = ~np.isin(tasks.operator, ringed) & ~np.isin(np.arange(len(tasks)), moving)
        rows, moved = _rows(observation), set[int]()
        for now, use in zip(memory_uses(observation), memory_uses(observation, until_help(observation)), strict=True):
            room, nearly = use.room, use.up_to(NEARLY) - use.used
            known, holds = [row for row in rows if not math.isnan(room[row])], set(tasks.host[use.tasks > 0].tolist())
            for row in rows if known else ():
                # Nothing is measured on an executor before its first task.
                if math.isnan(room[row]) and row not in holds:
                    room[row] = _room(use, observation.leases[hosts[row]].type, known, observation)
            # What a container uses still counts the state that leaves it.
            waits = use.kind == DECLARED or (use.kind != "heap" and observation.moving)
            for row in rows if not waits else ():
                if not nearly[row] < 0:
                    continue
                own = np.flatnonzero((tasks.host == row) & movable).tolist()
                relief = _Relief(observation.time, float(now.tasks[own].sum()), float(now.used[row]))
                last = self._relieved.get((use.kind, hosts[row]))
                if last is not None and not relief.may_follow(last):
                    continue
                for position, size in spill(use.tasks[own].tolist(), -float(room[row]), -float(room[row])):
                    to = max((each for each in rows if not math.isnan(room[each])), key=room.__getitem__)
                    if size <= room[to] and own[position] not in moved:
                        room[to] -= size
                        moved.add(own[position])
                        self._relieved[use.kind, hosts[row]] = relief
                        why = f"{BY}: {hosts[row]} is nearly full of state"
                        yield MoveTask(tasks.tasks[own[position]], hosts[to], why=why)


class _Relief(NamedTuple):
    """Relief of a host: its time, and the host's state and use of memory then (MB)."""

    time: float
    state: float
    used: float

    def may_follow(self, last: "_Relief") -> bool:
        """Return True if SETTLED_S have passed, and `last` moved nothing or its memory was freed."""
        return self.time - last.time >= SETTLED_S and (self.state >= last.state or self.used < last.used)


def _settle_s(kind: str) -> float:
    return LOOK_S if kind == "heap" else SETTLED_S  # containers lag behind moves


def _rows(observation: Observation) -> list[int]:
    return [observation.hosts.rows[host] for host in observation.usable if host in observation.hosts.rows]


def _empty(use: MemoryUse, observation: Observation) -> bool:
    """Return True if a host that came less than MARGIN_S ago has none of the state yet."""
    holds = {observation.hosts.ids[row] for row in observation.tasks.host[use.tasks > 0].tolist() if row >= 0}
    arrivals = zip(observation.usable, observation.came, strict=True)
    return any(host not in holds and observation.time - at < MARGIN_S for host, at in arrivals)


def _cheapest(use: MemoryUse, lack: Fit, observation: Observation) -> HostType | None:
    """Return the type with the lowest price of room for the state without room; None if none has room."""
    growing = observation.growth.get(use.kind, 0.0) > 0
    rows, offers = _rows(observation), []
    for kind in observation.context.leasable.values():
        room = _room(use, kind, rows, observation)
        if room >= lack.stuck:
            # Room beyond the need is worth nothing, unless state grows into it.
            price = kind.price_rate / (room if growing else min(room, lack.missing))
            offers.append((price, kind.cores, kind))
    return min(offers, key=lambda offer: offer[:2])[2] if offers else None


def _room(use: MemoryUse, kind: HostType, rows: Sequence[int], observation: Observation) -> float:
    """Return the MB of state that a new host may hold, by those in `rows`."""
    types = [observation.leases[observation.hosts.ids[row]].type for row in rows]
    alike = [row for row, each in zip(rows, types, strict=True) if each.name == kind.name]
    limit = float(np.median(use.limit[alike or rows]))
    shares = [use.limit[row] / each.memory for row, each in zip(rows, types, strict=True)]
    if not alike and use.kind != "heap" and all(abs(share - 1) <= ALIKE for share in shares):
        limit = float(np.median(shares)) * kind.memory
    at = observation.tasks.host
    state = np.bincount(at[at >= 0], use.tasks[at >= 0], len(use.used))
    fixed = min(limit, float(np.median(np.broadcast_to(use.fixed, use.used.shape)[rows])))
    # The host with the least beside its state shows what a new one uses: garbage fills the others.
    return limit - RESERVE * (limit - fixed) - max(0.0, float(np.min((use.used - state)[rows])))
