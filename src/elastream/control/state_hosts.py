"""Hosts that state needs, whatever the policy, and room on hosts that are nearly full of it."""

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elastream.control.extension import LoopExtension
from elastream.control.growth import GrowthForecast
from elastream.core.action import Action, MoveTask
from elastream.core.alarm import Alarms
from elastream.core.decision import Proposal
from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostType
from elastream.core.memory import RESERVE, memory_uses, without_room
from elastream.core.observation import Context, Observation
from elastream.core.wording import at_most, counted
from elastream.units import ROUNDING, format_duration

# The bound `min_hosts` that policies see. Rows are tried from the top. State fits if all partitions, largest first, find
# room on the hosts that take tasks or are coming, with NEARLY of each limit left free. "In time" is the start of a host and
# MARGIN_S from now. Until then state grows at its rate.
#
# | memory and hosts | bound |
# | --- | --- |
# | use or limit of a host unknown, such as a new one's, for less than UNKNOWN_S | as before, but no host more |
# | unknown for longer | as it is |
# | state fits in time | as it is; if it grows, at least the hosts that hold what it will be in KEEP_S |
# | it does not, for less than SETTLED_S | all that are there |
# | a host is coming | all |
# | `max_hosts` are there, or no type has room for the largest partition without room | all, and a remark |
# | otherwise | one host more, and a remark; only types with the lowest price of room are offered |
#
# A release must leave RESERVE free (`memory.shortage`), which is more than NEARLY: what comes does not go at once.
NEARLY = RESERVE / 2
MARGIN_S, KEEP_S, SETTLED_S, UNKNOWN_S = 600.0, 3600.0, 30.0, 60.0
# A measured heap is the least of two minutes.
STEADY_S = 150.0
# Part of a type's memory by which a limit may differ from it and still be set by the type.
ALIKE = 0.1
# Proposer in decision records.
BY = "memory"
RELIEF = "memory: its host is nearly full of state"


@dataclass(frozen=True)
class HeldState:
    """State in one kind of memory, and what hosts can hold of it.

    Attributes:
        tasks: MB by task.
        at: Row of each task's host in `hosts`, -1 for another.
        limits: MB by host.
        fixed: By host, MB of the limit that cannot grow.
        others: MB that a host without state uses.
    """

    kind: str
    hosts: Sequence[str]
    tasks: Floats
    at: Integers
    limits: Floats
    fixed: Floats
    others: float

    def rooms(self, reserve: float) -> Floats:
        """Return the MB of state that each host can hold with a share `reserve` of its limit left free."""
        return self.limits - reserve * (self.limits - self.fixed) - self.others

    def room_of(self, kind: HostType, like: HostType) -> float:
        """Return the MB of state that a new host of a type can hold. `like`: type of a host that is there."""
        limit = float(np.median(self.limits))
        if abs(limit - like.memory) <= ALIKE * like.memory:
            limit *= kind.memory / like.memory
        return limit - NEARLY * max(0.0, limit - float(np.median(self.fixed))) - self.others

    def partitions(self, gain: float) -> list[float]:
        """Return the MB of each partition once the state has grown by `gain` MB, the largest first."""
        total = float(self.tasks.sum())
        return (np.sort(self.tasks)[::-1] * (1 + gain / total)).tolist() if total > 0 else []

    def relief(self, movable: Collection[int]) -> Iterator[tuple[int, str]]:
        """Return tasks that leave nearly full hosts, with their new hosts. `movable`: rows of tasks."""
        held = np.bincount(self.at[self.at >= 0], self.tasks[self.at >= 0], len(self.hosts))
        room, at = self.rooms(RESERVE) - held, self.at.copy()
        for host in np.flatnonzero(held > self.rooms(NEARLY)).tolist():
            while room[host] < 0:
                to = int(np.argmax(room))
                fit = [
                    row for row in np.flatnonzero(at == host).tolist() if row in movable and 0 < self.tasks[row] <= room[to]
                ]
                if not fit:
                    break
                # The smallest that suffices, else the largest.
                row = min(fit, key=lambda row: (self.tasks[row] < -room[host], abs(self.tasks[row] + room[host])))
                at[row] = to
                room[host] += self.tasks[row]
                room[to] -= self.tasks[row]
                yield row, self.hosts[to]


def held_states(observation: Observation) -> list[HeldState]:
    """Return the state of each kind of memory whose use and limit are known on all hosts that take tasks."""
    rows = [observation.hosts.rows[host] for host in observation.usable if host in observation.hosts.rows]
    states = []
    for use in memory_uses(observation) if len(rows) == len(observation.usable) > 0 else ():
        column = np.full(len(use.used), -1, dtype=np.int64)
        column[rows] = range(len(rows))
        place = observation.tasks.host
        at = np.where(place >= 0, column[place], -1)
        own = np.bincount(place[place >= 0], use.tasks[place >= 0], len(use.used))
        limits, fixed = use.limit[rows], np.broadcast_to(use.fixed, use.limit.shape)[rows]
        # Garbage goes, and what the emptiest host uses beside its state stays. A host that seems to use nothing else was
        # measured before its state came.
        beside = (use.used - own)[rows]
        others = float(beside[beside > 0].min()) if (beside > 0).any() else 0.0
        if np.isfinite(limits).all() and not np.isnan(beside).any():
            states.append(HeldState(use.kind, observation.usable, use.tasks, at, limits, fixed, others))
    return states


@dataclass(frozen=True)
class _Lack:
    why: str
    partition: float  # MB of the largest without room
    missing: float  # MB without room; inf if state grows


class StateHosts(LoopExtension):
    """Raises the least hosts before state fills those that are there, and moves state off nearly full ones."""

    def __init__(self, forecast: GrowthForecast) -> None:
        self._forecast, self._since = forecast, math.nan
        self._states: Sequence[HeldState] = ()
        self._others: dict[str, deque[tuple[float, float]]] = {}
        self._least, self._known = 0, -math.inf
        self._contexts: tuple[Context, int, frozenset[str], Context] | None = None

    def observed(self, observation: Observation, alarms: Alarms) -> Observation:
        """Return `observation` with the bound of hosts, the types that may be leased, and a remark."""
        self._states = [self._steady(each, observation.time) for each in held_states(observation)]
        there = len(observation.usable) + len(observation.coming)
        if "LeaseHost" not in observation.context.capabilities:
            return observation
        if not self._states:
            known = observation.time - self._known < UNKNOWN_S
            return self._bounded(observation, min(self._least, there)) if known else observation
        self._known = observation.time
        least, lacks = 0, list[tuple[HeldState, _Lack]]()
        for state in self._states:
            hosts, lack = self._need(state, observation)
            least = max(least, hosts)
            lacks += [(state, lack)] if lack else []
        if not lacks:
            self._since = math.nan
            return self._bounded(observation, least)
        self._since = observation.time if math.isnan(self._since) else self._since
        if observation.time - self._since < SETTLED_S or observation.coming:
            return self._bounded(observation, there)
        state, lack = lacks[0]
        if there >= observation.context.max_hosts:
            full = at_most(observation.context.max_hosts, observation.context.limit)
            return self._bounded(observation, there, remark=f"{full}, and {lack.why}")
        offered = _offered(state, lack, observation)
        if not offered:
            return self._bounded(observation, there, remark=f"{lack.why}, and no host type offered has room for it")
        others = frozenset(observation.context.host_types) - offered
        return self._bounded(observation, there + 1, others, f"{lack.why}: one more is needed")

    def proposals(self, observation: Observation, planned: Sequence[Action], alarms: Alarms) -> list[Proposal]:
        if not self._states or "MoveTask" not in observation.context.capabilities:
            return []
        tasks, ringed = observation.tasks, {observation.operators.rows.get(name, -1) for name in observation.rings}
        movable = {row for row in range(len(tasks)) if int(tasks.operator[row]) not in ringed}
        moves = dict[int, str]()
        for state in self._states:
            if state.kind != "declared memory":
                moves |= state.relief(movable - moves.keys())
        return [Proposal(MoveTask(tasks.tasks[row], host, why=RELIEF), BY) for row, host in moves.items()]

    def _steady(self, state: HeldState, now: float) -> HeldState:
        """Return `state` with the most that `others` was for STEADY_S: measured heaps lag behind state that moves."""
        others = self._others.setdefault(state.kind, deque())
        while others and now - others[0][0] > STEADY_S:
            others.popleft()
        others.append((now, state.others))
        return replace(state, others=max(value for _, value in others))

    def _need(self, state: HeldState, observation: Observation) -> tuple[int, _Lack | None]:
        """Return the hosts to keep, 0 if state does not grow, and what lacks."""
        context, like = observation.context, observation.leases[state.hosts[0]].type
        coming = [state.room_of(observation.leases[host].type, like) for host in observation.coming]
        rooms = [*state.rooms(NEARLY).tolist(), *coming]
        ahead = max(kind.start for kind in context.leasable.values()) + MARGIN_S
        gain = self._forecast.gain(state.kind, ahead)
        sizes = state.partitions(gain)
        if (stuck := without_room(sizes, rooms)) > 0:
            total, room = math.fsum(sizes), math.fsum(rooms)
            hosts, when = counted(len(rooms), "host"), f" in {format_duration(ahead)}" if gain else ""
            what = (
                f"memory: {total:.0f} MB of state in {state.kind}{when}, of which {hosts} may hold {room:.0f} MB"
                if total > room
                else f"memory: a partition of {stuck:.0f} MB of state in {state.kind}{when} fits on no host"
            )
            return 0, _Lack(what, stuck, math.inf if gain else max(stuck, total - room))
        later = state.partitions(self._forecast.gain(state.kind, KEEP_S)) if gain else []
        largest = sorted(rooms, reverse=True)
        fitting = (number for number in range(len(rooms) + 1) if not without_room(later, largest[:number] or [0.0]))
        return next(fitting, len(rooms)), None

    def _bounded(
        self, observation: Observation, least: int, without: frozenset[str] = frozenset(), remark: str = ""
    ) -> Observation:
        """Return `observation` with at least `least` hosts, and no leases of the types `without`."""
        context, self._least = observation.context, least
        if least > context.min_hosts:
            # Policies recognise a context by its identity.
            if self._contexts is None or self._contexts[0] is not context or self._contexts[1:3] != (least, without):
                scarce = context.scarce | without
                self._contexts = context, least, without, replace(context, min_hosts=least, scarce=scarce)
            observation = replace(observation, context=self._contexts[3])
        return replace(observation, remarks=(*observation.remarks, remark)) if remark else observation


def _offered(state: HeldState, lack: _Lack, observation: Observation) -> frozenset[str]:
    """Return the types with room for what lacks, at the lowest price of that room."""
    like = observation.leases[state.hosts[0]].type
    rooms = {kind: state.room_of(kind, like) for kind in observation.context.leasable.values()}
    # Room beyond the need is worth nothing, unless state grows into it.
    prices: Mapping[str, float] = {
        kind.name: kind.price / kind.billing.unit / min(room, lack.missing)
        for kind, room in rooms.items()
        if room > 0 and room >= lack.partition
    }
    lowest = min(prices.values(), default=math.inf)
    return frozenset(name for name, price in prices.items() if price <= lowest * (1 + ROUNDING))
