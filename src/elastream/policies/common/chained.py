"""Sizing of queries whose tasks share the cores of their hosts. Any host takes any task, so hosts count by cores."""

import math
from collections.abc import Callable, Sequence

from elastream.core.action import Action, CancelDrain, DrainHost, LeaseHost, ReleaseHost
from elastream.core.hosts import HostType
from elastream.core.observation import Observation
from elastream.core.wording import counted
from elastream.policies.common.measures import capacity, due_back, host_capacity, tasks_on, types_to_lease
from elastream.units import ROUNDING, format_duration

# Most threads of an operator that waits.
THREADS = 64


def has_equal_shares(observation: Observation, slots: int) -> bool:
    """Return True if no stateless stage has more tasks than `slots`: then each slot gets equal work."""
    return all(tasks <= slots for tasks in _tasks(observation))


def is_narrow(observation: Observation, slots: int) -> bool:
    """Return True if a stateless stage has fewer tasks than `slots`."""
    return any(tasks < slots for tasks in _tasks(observation))


def _tasks(observation: Observation) -> list[int]:
    graph, counts = observation.context.graph, observation.composition.parallelism
    return [counts[each] for each in observation.context.scalable & counts.keys() if not graph.by_name[each].waits]


def shared_capacity(observation: Observation, hosts: Sequence[str], *, equal: bool) -> float:
    """Return the cores of speed 1 that `hosts` offer to the tasks of a stage.

    Args:
        equal: True if each slot gets equal work, so that all tasks wait for the slowest slot.
    """
    if not equal:
        return capacity(observation, hosts)
    slots, least = observation.cores.slots(hosts)
    return slots * least if slots else 0.0


def lease_missing(
    observation: Observation,
    kind: HostType,
    need: float,
    because: Callable[[], str],
    spare: int,
    *,
    equal: bool,
) -> list[Action]:
    """Return actions that add hosts for `need` cores: cancelled drains first, then leases.

    Args:
        need: Cores of speed 1 that hosts must have; NaN if unknown. `min_hosts` holds in any case.
        because: Returns the reason.
        spare: Hosts on top of the need.
        equal: See `shared_capacity`.
    """
    context = observation.context
    there = (*observation.usable, *observation.coming)
    has, each = shared_capacity(observation, there, equal=equal), kind.cores * kind.speed
    lacking, by_need = context.min_hosts - len(there), 0
    if not math.isnan(need):
        short = (need - has) / each
        if equal:
            slots, least = observation.cores.slots(there)
            short = (need / min(least, kind.slot) - slots) / kind.width
        by_need = math.ceil(short - ROUNDING) + spare
    if max(lacking, by_need) <= 0:
        return []
    why = f"at least {counted(context.min_hosts, 'host')}"
    if by_need > max(0, lacking):
        lacking = by_need
        cores = "core is" if f"{has:.3g}" == "1" else "cores are"
        why = f"{because()}; {has:.3g} {cores} on {counted(len(there), 'host')}"
        why += f", and {counted(spare, 'host')} to spare" if spare else ""
    cancelled = observation.draining[: max(0, lacking)]
    leases = min(max(0, lacking) - len(cancelled), context.max_hosts - len(observation.leases))
    return [
        *(CancelDrain(host, why=why) for host in cancelled),
        *(
            LeaseHost(observation.host_name(n), each.name, each.region, why=why)
            for n, each in enumerate(types_to_lease(observation, kind, leases))
        ),
    ]


def hosts_for(observation: Observation, kind: HostType, need: float, spare: int, *, equal: bool) -> float:
    """Return the hosts that give `need` cores, with fractions; NaN if unknown. Parameters as in `lease_missing`."""
    there = (*observation.usable, *observation.coming)
    lacking = need - shared_capacity(observation, there, equal=equal)
    hosts = len(there) + lacking / (kind.cores * kind.speed) + spare
    return hosts if math.isnan(hosts) else max(hosts, float(observation.context.min_hosts))


def drain_surplus(
    observation: Observation, highest: float, most: float, spare: int, pace: float, settle: float, *, equal: bool
) -> list[Action]:
    """Return drains so that `highest` busy cores fill the remaining hosts to at most `most`.

    Drains at most half of the hosts, and only hosts that are due back (`billing.due_back`).

    Args:
        spare: Hosts to keep on top of the need.
        pace: Seconds until the next round.
        settle: Seconds over which `highest` is the highest need.
        equal: See `shared_capacity`.
    """
    usable = observation.usable
    least = observation.cores.least(usable)
    if not highest <= most * (capacity(observation, usable) - least):
        return []  # as in most rounds: not even the smallest could go
    candidates = sorted(
        (host for host in usable if due_back(observation.leases[host], observation.time, pace)),
        key=lambda h: (tasks_on(observation, h), observation.leases[h].remaining(observation.time), usable.index(h)),
    )
    going: list[str] = []
    for host in candidates[: len(usable) // 2]:
        rest = [each for each in usable if each not in (*going, host)]
        # Spare hosts are kept in addition to the need: the smallest of the rest count as spare.
        working = sorted(rest, key=lambda each: host_capacity(observation, each))[spare:]
        if len(rest) < observation.context.min_hosts:
            break
        if not highest <= most * shared_capacity(observation, working, equal=equal):
            break
        going.append(host)
    if not going:
        return []
    left = shared_capacity(observation, [host for host in usable if host not in going], equal=equal)
    why = f"{counted(len(usable) - len(going), 'host')} filled to {highest / left:.0%} at most, as needed "
    why += f"for {format_duration(settle)}" if settle else "now"
    return [DrainHost(host, why=why) for host in going]


def withdraw_surplus(
    observation: Observation, highest: float, most: float, spare: int, settle: float, *, equal: bool
) -> list[Action]:
    """Return releases of surplus hosts that have not begun to start, newest first. Parameters as in `drain_surplus`."""
    there = [*observation.usable, *observation.coming]
    going: list[str] = []
    for host in reversed(observation.waiting):
        rest = [each for each in there if each not in (*going, host)]
        working = sorted(rest, key=lambda each: host_capacity(observation, each))[spare:]
        if not observation.usable or len(rest) < observation.context.min_hosts:
            break
        if not highest <= most * shared_capacity(observation, working, equal=equal):
            break
        going.append(host)
    why = "it still waits, and the others suffice"
    if settle:
        why = f"it still waits, and for {format_duration(settle)} the others would have sufficed"
    return [ReleaseHost(host, why=why) for host in going]


def thread_count(observation: Observation, operator: str, occupied: float, most: float, limit: int | None) -> int:
    """Return the threads of a waiting operator of which `occupied` (in all tasks of its stage) fill `most`."""
    stage = observation.context.layout.stage_of[operator]
    wide = 1.0 if stage.name == operator else float(observation.composition.parallelism.get(stage.name, 1))
    wanted = max(1, math.ceil(occupied / wide / most - ROUNDING))
    return min(wanted, THREADS if limit is None else limit)
