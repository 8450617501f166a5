"""Sizes queries whose tasks share the cores of their hosts: how many hosts, and how many threads of an operator that waits.

Any host takes any task, so that hosts are counted by cores, and the ones that go are those that cost least to empty.
"""

import math
from collections.abc import Callable, Sequence

from elastream.core.action import Action, CancelDrain, DrainHost, LeaseHost, ReleaseHost
from elastream.core.hosts import HostType
from elastream.core.observation import Observation
from elastream.core.wording import counted
from elastream.policies.common.billing import due_back
from elastream.policies.common.measures import capacity, host_capacity, spread, tasks_on
from elastream.units import ROUNDING, format_duration

THREADS = 64
"""Most threads of an operator that waits."""


def in_equal_parts(observation: Observation, slots: int) -> bool:
    """Whether no stage without state has more tasks than `slots`: of more, quick slots would take more than slow ones."""
    return all(tasks <= slots for tasks in _tasks(observation))


def narrow(observation: Observation, slots: int) -> bool:
    """Whether a stage without state has fewer tasks than `slots`."""
    return any(tasks < slots for tasks in _tasks(observation))


def _tasks(observation: Observation) -> list[int]:
    """Tasks of the stages without state, as far as they are known."""
    graph, counts = observation.context.graph, observation.composition.parallelism
    return [counts[each] for each in observation.context.scalable & counts.keys() if not graph.by_name[each].waits]


def shared_capacity(observation: Observation, hosts: Sequence[str], *, equal: bool) -> float:
    """Cores of speed 1 that `hosts` have for a stage's tasks together.

    equal: whether each slot has one task, with as many records as the others: all then wait for that on the slowest slot.
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
    """Hosts for `need` cores of speed 1 beside those that are there or coming: drains cancelled first, then leases.

    need: NaN where unknown; `min_hosts` holds in any case. because: says why. spare: hosts on top. equal: as for
    `shared_capacity`.
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
    kept = observation.draining[: max(0, lacking)]
    leases = min(max(0, lacking) - len(kept), context.max_hosts - len(observation.leases))
    return [
        *(CancelDrain(host, why=why) for host in kept),
        *(
            LeaseHost(observation.host_name(n), each.name, each.region, why=why)
            for n, each in enumerate(spread(observation, kind, leases))
        ),
    ]


def hosts_for(observation: Observation, kind: HostType, need: float, spare: int, *, equal: bool) -> float:
    """Hosts for `need` cores of speed 1, parts of one included, that are there or coming or of type `kind`; NaN if unknown.

    spare: hosts on top. equal: as for `shared_capacity`.
    """
    there = (*observation.usable, *observation.coming)
    lacking = need - shared_capacity(observation, there, equal=equal)
    found = len(there) + lacking / (kind.cores * kind.speed) + spare
    return found if math.isnan(found) else max(found, float(observation.context.min_hosts))


def drain_surplus(
    observation: Observation, highest: float, most: float, spare: int, pace: float, settle: float, *, equal: bool
) -> list[Action]:
    """Drains of hosts without which the others are filled to `most` at most by `highest` cores; half of them at most.

    Only of those that cost nothing, or whose paid time ends before the next round, `pace` seconds later, could do it.
    settle: seconds for which `highest` is the highest need. equal: as for `shared_capacity`.
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
    """Releases of hosts that wait for their provider, without which the others, coming ones too, suffice; newest first.

    Otherwise as `drain_surplus`. A host that has begun to start is not withdrawn: it is paid for.
    """
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


def threads(observation: Observation, operator: str, occupied: float, most: float, limit: int | None) -> int:
    """Threads of an operator that waits, of which `occupied` in all its stage's tasks are to fill `most`."""
    stage = observation.context.layout.stage_of[operator]
    wide = 1.0 if stage.name == operator else float(observation.composition.parallelism.get(stage.name, 1))
    wanted = max(1, math.ceil(occupied / wide / most - ROUNDING))
    return min(wanted, THREADS if limit is None else limit)
