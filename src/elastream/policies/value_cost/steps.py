"""Steps of greedy plans on instances and hosts: a core more, a core less, repacking, giving back (thesis, 4.8).

Each is a function of an `Assembly`; the reactive policies take them in the order of Algorithms 3 and 4 (`greedy`),
look-ahead planning in its own. What one costs is in proportion to the instances that it adds or removes.
"""

import math
from collections.abc import Collection, Sequence

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostType
from elastream.core.qos import Flows
from elastream.policies.value_cost.assembly import Assembly
from elastream.policies.value_cost.packing import largest, packed, rate_of
from elastream.policies.value_cost.problem import throughput
from elastream.units import ROUNDING

AT_ONCE = 1 / 128
"""Part of an operator's instances that is added at once. The thesis adds single ones; where they are hundreds, a step of
less than a hundredth changes no plan by more, and planning takes as long as the logarithm of the load."""
HALVINGS = 12
"""Of a part of all cores, to find that with which a goal is just reached: to less than a thousandth."""


# Instances and hosts: Algorithm 3, lines 12 to 19.


def needs_of(assembly: Assembly, found: Flows) -> Floats:
    """Cores of speed 1 that each operator would fill with what reaches it and what waits; mean over instants,
    (operators,)."""
    costs = assembly.problem.costs(assembly.active)
    records: Floats = (found.arriving + found.waiting[:-1] / assembly.conditions.seconds).mean(axis=0)
    return records * costs


def bottleneck(assembly: Assembly, found: Flows, without: Collection[int] = ()) -> int | None:
    """The operator of the lowest relative throughput (`GetNextPE`); None where none is held up for want of cores."""
    relative = found.relative.mean(axis=0)
    can = assembly.sizable | assembly.problem.shared
    rows = [row for row in assembly.order if can[row] and row not in without and relative[row] < 1 - ROUNDING]
    return min(rows, key=lambda row: float(relative[row]), default=None)


def grow(assembly: Assembly, operator: int, found: Flows | None = None, *, lease: bool = True) -> bool:
    """Give `operator` one instance more; whether that could be done. Where cores are shared, lease a host.

    Where there is room; else in place of an instance of another operator that has cores to spare by `found`; else, with
    `lease`, on a new host of the largest type.
    """
    problem = assembly.problem
    row = None if problem.shared else assembly.place(operator)
    if row is None and found is not None and not problem.shared:
        row = _taken_over(assembly, operator, found)
    if row is None and lease and assembly.may_lease and (kind := _largest_for(assembly, operator)) is not None:
        row = assembly.lease(kind)
    if row is None:
        return False
    if not problem.shared:
        assembly.add(operator, row)
    return True


def _largest_for(assembly: Assembly, operator: int) -> HostType | None:
    """The largest type that holds an instance of `operator`; where cores are shared, that which adds most to all.

    Where each core has as many records as the others, a slow host makes the others wait: then it may add nothing.
    """
    if not (assembly.problem.shared and assembly.problem.equal and assembly.hosts):
        return largest(assembly.types_for(operator))
    now, slowest = float(assembly.capacity[:, 0].mean()), float(assembly.speeds.min())
    cores = math.fsum([host.type.cores for host in assembly.hosts])
    gain = {kind.name: (cores + kind.cores) * min(slowest, kind.speed) - now for kind in assembly.problem.types}
    most = max(gain.values(), default=0.0)
    return largest([kind for kind in assembly.problem.types if gain[kind.name] >= most - ROUNDING and most > 0])


def _taken_over(assembly: Assembly, operator: int, found: Flows) -> int | None:
    """Row of a host on which an instance that another operator can spare was removed, so that one of `operator` has
    room."""
    problem, speeds = assembly.problem, assembly.speeds
    spare = assembly.capacity.mean(axis=0) - needs_of(assembly, found)
    for other in sorted(
        np.flatnonzero(assembly.sizable & (assembly.total > 1)).tolist(), key=lambda row: -float(spare[row])
    ):
        if spare[other] <= ROUNDING:
            break
        if other == operator:
            continue
        can = (assembly.instances[:, other] > 0) & (speeds * problem.per_instance[other] <= spare[other] + ROUNDING)
        for row in np.flatnonzero(can).tolist():
            assembly.add(other, row, -1)
            if row in assembly.holding(operator):
                return int(row)
            assembly.add(other, row)
    return None


def allocate(assembly: Assembly, target: float, *, lease: bool = True) -> bool:
    """Give cores to the operators that hold the others up until `target` is reached; whether it is.

    First an instance to each operator that has none, depth first; then to that of the lowest throughput. Ends where no
    operator that is held up can have more (lines 12 to 19 have no such end). lease: whether hosts may be leased.
    """
    problem, stuck = assembly.problem, set[int]()
    for row in () if problem.shared else assembly.order:
        if assembly.sizable[row] and not assembly.total[row]:
            grow(assembly, row, lease=lease)
    while True:
        found = assembly.flows()
        if found.application.mean() >= target - ROUNDING:
            return _linked(assembly, target, lease=lease)
        operator = bottleneck(assembly, found, stuck)
        if operator is None:
            return False
        need = needs_of(assembly, found)[operator]
        for step in range(max(1, int(AT_ONCE * assembly.total[operator]))):
            if step and assembly.capacity[:, operator].mean() >= need:
                break
            if not grow(assembly, operator, found if not step else None, lease=lease):
                stuck.add(operator)
                break


def _linked(assembly: Assembly, target: float, *, lease: bool) -> bool:
    """Add instances where links hold records back, beside those that send them first, until `target` is reached."""
    bandwidth, stuck = assembly.limits(), set[int]()
    while bandwidth is not None:
        found = assembly.flows(bandwidth)
        reached = float(found.application.mean())
        if reached >= target - ROUNDING:
            break
        operator = bottleneck(assembly, found, stuck)
        if operator is None:
            operator = _behind_link(assembly, found, bandwidth, stuck)
        if operator is None:
            return False
        before = assembly.copy()
        grown = grow(assembly, operator, lease=lease)
        bandwidth = assembly.limits()
        if not grown or assembly.reached(bandwidth) <= reached + ROUNDING:
            assembly.become(before)
            bandwidth = assembly.limits()
            stuck.add(operator)
    return True


def _behind_link(assembly: Assembly, found: Flows, bandwidth: Floats, without: Collection[int]) -> int | None:
    """The operator that the link with the least of what is to go over it leads to; None where no link limits anything."""
    problem = assembly.problem
    wanted = found.emitted.mean(axis=0)[problem.edges[:, 0]] * problem.parts
    part = np.divide(bandwidth.mean(axis=0), wanted, out=np.full(len(wanted), np.inf), where=wanted > 0)
    rows = [edge for edge in np.argsort(part).tolist() if part[edge] < 1 - ROUNDING]
    targets = [int(problem.edges[edge, 1]) for edge in rows]
    return next((row for row in targets if row not in without), None)


# Repacking and giving back: Algorithm 3, lines 20 to 25; Algorithm 4, line 11.


def repacked(assembly: Assembly, target: float) -> Assembly:
    """The same with the hosts that are still to be leased of the types that cost least (`RepackPEInstances`,
    `RepackFreeVMs`).

    What the largest type was filled with is put on the cheapest hosts found that give each operator what it needs for
    `target`, so that a smaller host may do for an operator's last instance. Unchanged where that is no cheaper, or would
    not keep `target`, or what was reached.
    """
    new = [row for row, host in enumerate(assembly.hosts) if not host.name]
    if not new:
        return assembly
    problem, floor = assembly.problem, min(target, assembly.reached(assembly.limits()))
    kept = assembly.without(new)
    has = np.where(assembly.sizable | problem.shared, kept.capacity.mean(axis=0), 0.0)
    if problem.shared:
        needs = np.array([max(0.0, shared_need(assembly, target) - has[0])])
        least = np.zeros(1, dtype=np.int64)
    else:
        needs = np.where(assembly.sizable, np.maximum(just_enough(assembly, target) - has, 0.0), 0.0)
        least = np.where(assembly.sizable & (kept.total == 0), 1, 0)
    bins = packed(problem, assembly.order, needs, least, problem.max_hosts - len(kept.hosts))
    if bins is None or math.fsum([rate_of(each.type) for each in bins]) >= assembly.prices[new].sum() - ROUNDING:
        return assembly
    for each in bins:
        row = kept.lease(each.type)
        for operator in np.flatnonzero(each.counts).tolist():
            kept.add(operator, row, int(each.counts[operator]))
    return kept if kept.reached(kept.limits()) >= floor - ROUNDING else assembly


def just_enough(assembly: Assembly, target: float) -> Floats:
    """Cores of speed 1 of each operator with which `target` is just reached, no more than it has; shape (operators,).

    First what an operator that could do more than reaches it does not need, then the same part of all: what the last core
    of the largest type was too much.
    """
    found, has = assembly.flows(), assembly.capacity.mean(axis=0)
    full = found.relative.min(axis=0) >= 1 - ROUNDING
    used = np.where(assembly.sizable & full, np.minimum(has, needs_of(assembly, found)), has)

    def enough(part: float) -> bool:
        capacity = np.where(assembly.sizable, part * used, used)
        flows = throughput(assembly.problem, assembly.active, capacity, assembly.conditions)
        return bool(flows.application.mean() >= target - ROUNDING)

    low, high = 0.0, 1.0
    if not enough(high):
        return np.asarray(has)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return np.asarray(np.where(assembly.sizable, high * used, used))


def weights(assembly: Assembly, operator: int | None = None) -> Floats:
    """Weight of each host (4.10), the least of which loses an instance of `operator` first; shape (hosts,).

    Low for a host of whose paid time little is left, of whose cores few are used, that has many of the operator's
    instances, and whose cores are dear. Printed with the part of the cores that is free, which contradicts the text ("VMs
    with fewer cores used are prioritized for removal"). None: without the operator's part, for a host as a whole.
    """
    cores, prices = assembly.cores, assembly.prices
    used = np.ones(len(cores)) if assembly.problem.shared else np.clip(1 - assembly.free_cores / cores, 0.0, 1.0)
    elsewhere = np.ones(len(cores))
    if operator is not None and assembly.total[operator] > 0:
        elsewhere = 1 - assembly.instances[:, operator] / assembly.total[operator]
    worth = np.divide(cores * assembly.speeds, prices, out=np.full(len(cores), np.inf), where=prices > 0)
    with np.errstate(invalid="ignore"):
        found: Floats = np.nan_to_num(assembly.paid * used * elsewhere * worth, nan=0.0, posinf=np.inf)
    return found


def over_provisioned(assembly: Assembly, found: Flows, without: Collection[int] = ()) -> int | None:
    """The operator of the highest relative throughput, of equals with the most cores to spare; None where each has one."""
    relative = found.relative.mean(axis=0)
    capacity, needs = assembly.capacity.mean(axis=0), needs_of(assembly, found)
    rows = [row for row in assembly.order if row not in without and assembly.sizable[row] and assembly.total[row] > 1]
    return max(
        rows,
        key=lambda row: (round(float(relative[row]), 9), float(capacity[row] / needs[row]) if needs[row] > 0 else math.inf),
        default=None,
    )


def shrink(assembly: Assembly, operator: int) -> int | None:
    """Take an instance of `operator` from the host of the least weight; its row, None where it has only one."""
    rows = np.flatnonzero(assembly.instances[:, operator])
    if assembly.total[operator] <= 1 or not rows.size:
        return None
    row = int(rows[np.argmin(weights(assembly, operator)[rows])])
    assembly.add(operator, row, -1)
    return row


def shed(assembly: Assembly, target: float) -> Assembly:
    """The same with as few instances as keep `target` (Algorithm 4, lines 5 to 10); where cores are shared, hosts.

    Printed, it ends with the removal that was one too many; here that one is undone, and what other operators can spare
    still goes. On a host that is paid an instance more costs nothing: which hosts go is decided by `vacated` and
    `shut_down`.
    """
    if assembly.problem.shared:
        return without_spare(assembly, shared_need(assembly, target))
    fewer, needed, single = assembly.copy(), set[int](), set[int]()
    bandwidth = assembly.limits()
    found = fewer.flows(bandwidth)
    while (operator := over_provisioned(fewer, found, needed)) is not None:
        most = 1 if operator in single else max(1, int(AT_ONCE * fewer.total[operator]))
        rows = [row for _ in range(most) if (row := shrink(fewer, operator)) is not None]
        after = fewer.flows(bandwidth)
        if rows and after.application.mean() >= target - ROUNDING:
            found = after
            continue
        for row in rows:
            fewer.add(operator, row)
        (needed if len(rows) <= 1 else single).add(operator)
    return fewer if bandwidth is None or fewer.reached(fewer.limits()) >= target - ROUNDING else assembly


def cores_of(assembly: Assembly) -> float:
    """Cores of speed 1 of all hosts together, where operators share them."""
    return float(assembly.capacity[:, 0].mean()) if assembly.hosts else 0.0


def shared_need(assembly: Assembly, target: float) -> float:
    """Cores of speed 1 that all operators need together for `target`, where they share all; no more than there are."""
    work = (assembly.flows().possible * assembly.problem.costs(assembly.active)).sum(axis=1)
    return min(cores_of(assembly), target * float(work.mean()))


def without_spare(assembly: Assembly, need: float, rows: Sequence[int] | None = None) -> Assembly:
    """The same without those of the hosts in `rows` that `need` cores of speed 1 do not need, where operators share all
    cores.

    In the order of `rows`; None: all, the least weight first (4.10).
    """
    problem, cores, speeds = assembly.problem, assembly.cores, assembly.speeds
    kept, gone = np.ones(len(cores), dtype=np.bool_), list[int]()
    for row in np.argsort(weights(assembly)).tolist() if rows is None else rows:
        if len(cores) - len(gone) <= max(1, problem.min_hosts):
            break
        kept[row] = False
        has = cores[kept].sum() * speeds[kept].min() if problem.equal else cores[kept] @ speeds[kept]
        if has >= need - ROUNDING:
            gone.append(row)
        else:
            kept[row] = True
    return assembly.without(gone) if gone else assembly


REPAID = 3600.0
"""Seconds within which a host that is leased in place of another has saved what both cost together: no less than the
billing time unit that the thesis has, so that where hosts are paid by the second none is exchanged for every small
gain."""


def vacated(assembly: Assembly, target: float, rows: Collection[int]) -> Assembly:
    """The same without those of the hosts in `rows` whose instances others have room for, or nobody needs, to keep
    `target`.

    For hosts whose paid time ends: to empty one earlier saves nothing. The least weight first (4.10); where all cores are
    shared, the dearest. Those that hold nothing are `shut_down`'s: one may have been leased for what is on another.
    """
    if assembly.problem.shared:
        dearest = sorted(rows, key=lambda each: -float(assembly.prices[each]))
        return without_spare(assembly, shared_need(assembly, target), dearest)
    floor = min(target, assembly.reached(assembly.limits()))
    by_weight, holds = weights(assembly), assembly.instances.sum(axis=1)
    gone: list[int] = []
    for row in sorted((each for each in rows if holds[each]), key=lambda each: float(by_weight[each])):
        if len(assembly.hosts) - len(gone) <= assembly.problem.min_hosts:
            break
        trial = _emptied(assembly, row, gone)
        if trial is not None and trial.reached(trial.limits()) >= floor - ROUNDING:
            assembly = trial
            gone.append(row)
    return assembly.without(gone) if gone else assembly


def _emptied(assembly: Assembly, row: int, gone: Collection[int]) -> Assembly | None:
    """The same with the instances of a host on others, as far as these have room; None where one must stay that fits
    nowhere.

    gone: rows of hosts that take none.
    """
    trial = assembly.copy()
    for operator in np.flatnonzero(trial.instances[row]).tolist():
        for _ in range(int(trial.instances[row, operator])):
            trial.add(operator, row, -1)
            other = trial.place(operator, without=[row, *gone])
            if other is not None:
                trial.add(operator, other)
            elif not trial.sizable[operator] or not trial.total[operator]:
                return None
    return trial


def shut_down(assembly: Assembly) -> Assembly:
    """The same without hosts that hold nothing, but for `min_hosts`; the dearest go first."""
    if assembly.problem.shared:
        return assembly
    empty = np.flatnonzero(assembly.instances[:, assembly.problem.placed].sum(axis=1) == 0).tolist()
    empty.sort(key=lambda row: -float(assembly.prices[row]))
    gone = empty[: max(0, len(assembly.hosts) - assembly.problem.min_hosts)]
    return assembly.without(gone) if gone else assembly


def replacements(assembly: Assembly, target: float, rows: Collection[int]) -> list[HostType]:
    """Types of hosts to be leased beside those in `rows`, since they cost less for what the others have no room for.

    For hosts whose paid time ends when the new ones are up: what is on them stays there until `vacated` finds them due.
    Only where the new ones cost less, what both cost together included, within a unit of the old, or within an hour
    (`REPAID`).
    """
    problem, found = assembly.problem, list[HostType]()
    enough = np.zeros(0) if problem.shared or not rows else just_enough(assembly, target)
    for row in sorted(rows, key=lambda each: -float(assembly.prices[each])):
        rest = assembly.without([row])
        emptied = rest if problem.shared else _emptied(assembly, row, ())
        if emptied is not None and emptied.reached(emptied.limits()) >= target - ROUNDING:
            continue  # it can go as it is
        bins = packed(
            problem, assembly.order, *_left_by(assembly, rest, row, enough, target), problem.max_hosts - len(assembly.hosts)
        )
        over = max(assembly.hosts[row].type.billing.unit, REPAID)
        rate = math.fsum([rate_of(each.type) for each in bins or ()])
        if bins and rate * (float(assembly.paid[row]) + over) < assembly.prices[row] * over - ROUNDING:
            assembly = assembly.copy()
            for each in bins:
                assembly.lease(each.type)
                found.append(each.type)
    return found


def _left_by(assembly: Assembly, rest: Assembly, row: int, enough: Floats, target: float) -> tuple[Floats, Integers]:
    """What new hosts are to hold if that in `row` goes and `rest` stay: cores of speed 1, of the `enough` of each
    operator, and instances at least."""
    problem = assembly.problem
    if problem.shared:
        return np.array([max(0.0, shared_need(assembly, target) - cores_of(rest))]), np.zeros(1, dtype=np.int64)
    has = np.where(assembly.sizable, rest.capacity.mean(axis=0), 0.0)
    needs = np.where(assembly.sizable, np.maximum(enough - has, 0.0), 0.0)
    least = np.where(assembly.sizable, rest.total == 0, assembly.instances[row] * problem.placed)
    return needs, np.asarray(least, dtype=np.int64)
