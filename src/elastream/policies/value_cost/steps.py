"""Mutable deployment, and the steps of a greedy search: add, remove, repack, release (thesis, 4.8)."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostType
from elastream.core.qos import Flows
from elastream.policies.value_cost.problem import (
    Conditions,
    Deployment,
    Host,
    Problem,
    capacities,
    largest,
    limits,
    packed,
    rate_of,
    speeds_of,
    throughput,
)
from elastream.units import ROUNDING

# Rows of `Assembly._of`: cores and MB of a host, how much of both is free, money/h, paid seconds left, ready time.
CORES, MEMORY, FREE_CORES, FREE_MEMORY, PRICE, LEFT, READY = range(7)


class Assembly:
    """Working copy of a deployment. `sizable`: operators with a variable number of instances; `order`: depth first."""

    def __init__(self, problem: Problem, deployment: Deployment, conditions: Conditions) -> None:
        self.problem, self.conditions = problem, conditions
        self.active = list(deployment.active)
        self.hosts = list(deployment.hosts)
        self.order, self._beside = depth_first(problem), _neighbours(problem)
        self.sizable = problem.placed & ~problem.fixed
        # Cores and memory that an instance of each operator holds.
        self._needs: Floats = np.array([problem.cores, problem.memory]) * problem.placed
        count, operators = len(self.hosts), len(problem.operators)
        self.capacity: Floats = np.array(capacities(problem, deployment, conditions), dtype=np.float64)
        self._instances: Integers = np.zeros((max(16, 2 * count), operators), dtype=np.int64)
        self._instances[:count] = np.asarray(deployment.instances, dtype=np.int64).reshape(count, operators)
        self._speeds: Floats = np.zeros((conditions.instants, len(self._instances)))
        self._speeds[:, :count] = speeds_of(deployment, conditions)
        self._of: Floats = np.zeros((7, len(self._instances)))
        self._of[:, :count] = np.array([self._row(host) for host in self.hosts]).reshape(-1, 7).T
        self._of[[FREE_CORES, FREE_MEMORY], :count] -= self._needs @ self._instances[:count].T
        self.total: Integers = self._instances.sum(axis=0)

    def _row(self, host: Host) -> tuple[float, ...]:
        kind = host.type
        left = _left_of(host.since, kind.billing.unit, self.conditions.time)
        return kind.cores, kind.memory, kind.cores, kind.memory, rate_of(kind), left, host.ready

    @property
    def instances(self) -> Integers:
        return self._instances[: len(self.hosts)]

    @property
    def cores(self) -> Floats:
        return self._of[CORES, : len(self.hosts)]

    @property
    def free_cores(self) -> Floats:
        return self._of[FREE_CORES, : len(self.hosts)]

    @property
    def prices(self) -> Floats:
        """Price of each host (money/h)."""
        return self._of[PRICE, : len(self.hosts)]

    @property
    def paid(self) -> Floats:
        """Time until each host's paid unit ends (s); a whole unit for a host to lease."""
        return self._of[LEFT, : len(self.hosts)]

    @property
    def speeds(self) -> Floats:
        return np.asarray(self._speeds[:, : len(self.hosts)].mean(axis=0))

    @property
    def may_lease(self) -> bool:
        return len(self.hosts) < self.problem.max_hosts

    def deployment(self) -> Deployment:
        return Deployment(tuple(self.active), tuple(self.hosts), self.instances.copy())

    def copy(self) -> "Assembly":
        other = object.__new__(Assembly)
        other.__dict__.update(self.__dict__)
        other.active, other.hosts = list(self.active), list(self.hosts)
        for name in ("capacity", "_instances", "_speeds", "_of", "total"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def under(self, conditions: Conditions) -> "Assembly":
        """Return a copy under other rates and queues. Host speeds stay."""
        other = self.copy()
        other.conditions = conditions
        return other

    def become(self, other: "Assembly") -> None:
        """Take over the state of `other`, which must not be used afterwards."""
        self.__dict__.update(other.__dict__)

    def flows(self, bandwidth: Floats | None = None) -> Flows:
        """Return the rates of all operators (4.4 to 4.7) under the limits of `limits`."""
        return throughput(self.problem, self.active, self.capacity, self.conditions, bandwidth)

    def limits(self) -> Floats | None:
        if not len(self.problem.edges) or np.isnan(self.problem.record_bytes).all():
            return None
        return limits(self.problem, self.deployment(), self.conditions)

    def reached(self, bandwidth: Floats | None = None) -> float:
        return float(self.flows(bandwidth).application.mean())

    def switch(self, operator: int, option: int) -> None:
        self.active[operator] = option

    def holding(self, operator: int) -> Integers:
        free = self._of[[FREE_CORES, FREE_MEMORY], : len(self.hosts)]
        return np.asarray(np.flatnonzero((free >= self._needs[:, operator, None] - ROUNDING).all(axis=0)))

    def place(self, operator: int, without: Collection[int] = ()) -> int | None:
        """Return the best host row for an instance of `operator`, or None if none has room.

        Prefers hosts with a neighbouring operator, then hosts that are up, then the fullest.
        """
        rows = self.holding(operator)
        if without and rows.size:
            rows = rows[~np.isin(rows, list(without))]
        if not rows.size:
            return None
        beside = (self._instances[rows][:, self._beside[operator]] > 0).any(axis=1)
        coming = self._of[READY, rows] > self.conditions.time
        return int(rows[np.lexsort((self._of[FREE_CORES, rows], coming, ~beside))[0]])

    def add(self, operator: int, host: int, count: int = 1) -> None:
        """Put `count` instances of `operator` on a host; a negative number removes them."""
        self._instances[host, operator] += count
        self.total[operator] += count
        if self.problem.placed[operator]:
            self._of[[FREE_CORES, FREE_MEMORY], host] -= count * self._needs[:, operator]
            self.capacity[:, operator] += count * self._speeds[:, host] * self.problem.per_instance[operator]

    def lease(self, type: HostType) -> int:
        """Lease a host, up to `lead` seconds before `conditions.time`. Returns its row."""
        row = len(self.hosts)
        now = self.conditions.time - min(self.conditions.lead, type.start)
        host = Host("", type, type.speed, now, now + type.start)
        if row == len(self._instances):
            self._instances = np.concatenate([self._instances, np.zeros_like(self._instances)])
            self._speeds = np.concatenate([self._speeds, np.zeros_like(self._speeds)], axis=1)
            self._of = np.concatenate([self._of, np.zeros_like(self._of)], axis=1)
        self.hosts.append(host)
        alone = Deployment((), (host,), np.zeros((1, len(self.problem.operators)), dtype=np.int64))
        self._speeds[:, row] = speeds_of(alone, self.conditions)[:, 0]
        self._of[:, row] = self._row(host)
        if self.problem.shared:
            self.capacity = np.array(capacities(self.problem, self.deployment(), self.conditions))
        return row

    def without(self, rows: Collection[int]) -> "Assembly":
        left_out = set(rows)
        rest = [row for row in range(len(self.hosts)) if row not in left_out]
        hosts = tuple(self.hosts[row] for row in rest)
        return Assembly(
            self.problem, replace(self.deployment(), hosts=hosts, instances=self.instances[rest]), self.conditions
        )

    def alone(self, operator: int, problem: Problem, conditions: Conditions, *, room: bool = True) -> "Assembly":
        """Return the view of one operator's scheduler."""
        own = Assembly(
            problem, Deployment((self.active[operator],), tuple(self.hosts), self.instances[:, [operator]]), conditions
        )
        own._of[:, : len(self.hosts)] = self._of[:, : len(self.hosts)] if room else 0.0
        return own

    def take(self, operator: int, own: "Assembly") -> None:
        self.switch(operator, own.active[0])
        for host in own.hosts[len(self.hosts) :]:
            self.lease(host.type)
        change = own.instances[:, 0] - self.instances[:, operator]
        for row in np.flatnonzero(change).tolist():
            self.add(operator, row, int(change[row]))

    def types_for(self, operator: int) -> tuple[HostType, ...]:
        if self.problem.shared:
            return self.problem.types
        cores, memory = self._needs[:, operator].tolist()
        return tuple(t for t in self.problem.types if t.cores >= cores - ROUNDING and t.memory >= memory - ROUNDING)


def _left_of(since: float, unit: float, now: float) -> float:
    elapsed = (now - since) / unit
    return unit * (math.floor(elapsed) + 1 - elapsed) if elapsed > 0 else unit


def depth_first(problem: Problem) -> tuple[int, ...]:
    """Return the operators' rows in depth-first order from the sources (`GetNextPE`)."""
    visited: dict[int, None] = {}
    for source in problem.sources.tolist():
        stack = [source]
        while stack:
            row = stack.pop()
            if row not in visited:
                visited[row] = None
                stack.extend(reversed(problem.reach[row]))
    return (*visited, *(row for row in range(len(problem.operators)) if row not in visited))


def _neighbours(problem: Problem) -> list[list[int]]:
    neighbours: list[list[int]] = [[] for _ in problem.operators]
    for source, target in problem.edges.tolist():
        neighbours[source].append(target)
        neighbours[target].append(source)
    return neighbours


# Share of an operator's instances added per step. The thesis adds one at a time; with hundreds of instances, a step below 1
# % hardly changes the plan and planning time grows only with the logarithm of the load.
AT_ONCE = 1 / 128
# Bisection steps for a share of all cores: precise to below 0.1 %.
HALVINGS = 12


# Instances and hosts: Algorithm 3, lines 12 to 19.


def needs_of(assembly: Assembly, flows: Flows) -> Floats:
    """Return the mean cores of speed 1 that each operator needs for arriving and waiting records, shape (operators,)."""
    costs = assembly.problem.costs(assembly.active)
    records: Floats = (flows.arriving + flows.waiting[:-1] / assembly.conditions.seconds).mean(axis=0)
    return records * costs


def bottleneck(assembly: Assembly, flows: Flows, without: Collection[int]) -> int | None:
    """Return the operator with the lowest relative throughput (`GetNextPE`), or None if no operator lacks cores."""
    relative = flows.relative.mean(axis=0)
    can = assembly.sizable | assembly.problem.shared
    rows = [row for row in assembly.order if can[row] and row not in without and relative[row] < 1 - ROUNDING]
    return min(rows, key=lambda row: float(relative[row]), default=None)


def grow(assembly: Assembly, operator: int, flows: Flows | None = None, *, lease: bool = True) -> bool:
    """Add an instance of `operator`, or a host where cores are shared. Return True on success.

    Tries free room, then an instance that another operator can spare, then, with `lease`, a new host of the largest type.
    """
    problem = assembly.problem
    row = None if problem.shared else assembly.place(operator)
    if row is None and flows is not None and not problem.shared:
        row = _taken_over(assembly, operator, flows)
    if row is None and lease and assembly.may_lease and (kind := _largest_for(assembly, operator)) is not None:
        row = assembly.lease(kind)
    if row is None:
        return False
    if not problem.shared:
        assembly.add(operator, row)
    return True


def _largest_for(assembly: Assembly, operator: int) -> HostType | None:
    """Return the largest type for `operator`; with shared cores the one that adds most."""
    # If tasks have equal shares, a slow host delays the others and may add nothing.
    if not (assembly.problem.shared and assembly.problem.equal and assembly.hosts):
        return largest(assembly.types_for(operator))
    now, slowest = float(assembly.capacity[:, 0].mean()), float(assembly.speeds.min())
    cores = math.fsum([host.type.cores for host in assembly.hosts])
    gain = {kind.name: (cores + kind.cores) * min(slowest, kind.speed) - now for kind in assembly.problem.types}
    most = max(gain.values(), default=0.0)
    return largest([kind for kind in assembly.problem.types if gain[kind.name] >= most - ROUNDING and most > 0])


def _taken_over(assembly: Assembly, operator: int, flows: Flows) -> int | None:
    """Remove another operator's spare instance to make room; return its host row."""
    problem, speeds = assembly.problem, assembly.speeds
    spare = assembly.capacity.mean(axis=0) - needs_of(assembly, flows)
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
    """Add cores for the bottlenecks until `target` is reached. Return True if it is.

    Every operator gets an instance first. Stops when no bottleneck can grow; lines 12 to 19 have no such end.
    """
    problem, stuck = assembly.problem, set[int]()
    for row in () if problem.shared else assembly.order:
        if assembly.sizable[row] and not assembly.total[row]:
            grow(assembly, row, lease=lease)
    while True:
        flows = assembly.flows()
        if flows.application.mean() >= target - ROUNDING:
            return _linked(assembly, target, lease=lease)
        operator = bottleneck(assembly, flows, stuck)
        if operator is None:
            return False
        need = needs_of(assembly, flows)[operator]
        for step in range(max(1, int(AT_ONCE * assembly.total[operator]))):
            if step and assembly.capacity[:, operator].mean() >= need:
                break
            if not grow(assembly, operator, flows if not step else None, lease=lease):
                stuck.add(operator)
                break


def _linked(assembly: Assembly, target: float, *, lease: bool) -> bool:
    bandwidth, stuck = assembly.limits(), set[int]()
    while bandwidth is not None:
        flows = assembly.flows(bandwidth)
        reached = float(flows.application.mean())
        if reached >= target - ROUNDING:
            break
        operator = bottleneck(assembly, flows, stuck)
        if operator is None:
            operator = _behind_link(assembly, flows, bandwidth, stuck)
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


def _behind_link(assembly: Assembly, flows: Flows, bandwidth: Floats, without: Collection[int]) -> int | None:
    problem = assembly.problem
    emitted = flows.emitted.mean(axis=0)[problem.edges[:, 0]] * problem.parts
    part = np.divide(bandwidth.mean(axis=0), emitted, out=np.full(len(emitted), np.inf), where=emitted > 0)
    rows = [edge for edge in np.argsort(part).tolist() if part[edge] < 1 - ROUNDING]
    targets = [int(problem.edges[edge, 1]) for edge in rows]
    return next((row for row in targets if row not in without), None)


# Repacking and giving back: Algorithm 3, lines 20 to 25; Algorithm 4, line 11.


def repacked(assembly: Assembly, target: float) -> Assembly:
    """Replace the new hosts by the cheapest set for `target` (`RepackPEInstances`, `RepackFreeVMs`).

    Unchanged if that saves nothing or loses throughput.
    """
    new = [row for row, host in enumerate(assembly.hosts) if not host.name]
    if not new:
        return assembly
    problem, floor = assembly.problem, min(target, assembly.reached(assembly.limits()))
    rest = assembly.without(new)
    has = np.where(assembly.sizable | problem.shared, rest.capacity.mean(axis=0), 0.0)
    if problem.shared:
        needs = np.array([max(0.0, shared_need(assembly, target) - has[0])])
        least = np.zeros(1, dtype=np.int64)
    else:
        needs = np.where(assembly.sizable, np.maximum(just_enough(assembly, target) - has, 0.0), 0.0)
        least = np.where(assembly.sizable & (rest.total == 0), 1, 0)
    bins = packed(problem, assembly.order, needs, least, problem.max_hosts - len(rest.hosts))
    if bins is None or math.fsum([rate_of(each.type) for each in bins]) >= assembly.prices[new].sum() - ROUNDING:
        return assembly
    for each in bins:
        row = rest.lease(each.type)
        for operator in np.flatnonzero(each.counts).tolist():
            rest.add(operator, row, int(each.counts[operator]))
    return rest if rest.reached(rest.limits()) >= floor - ROUNDING else assembly


def just_enough(assembly: Assembly, target: float) -> Floats:
    """Return the least cores of speed 1 of each operator that reach `target`.

    Drops spare capacity, then scales all operators by one factor: the excess of the last large host.
    """
    flows, has = assembly.flows(), assembly.capacity.mean(axis=0)
    full = flows.relative.min(axis=0) >= 1 - ROUNDING
    used = np.where(assembly.sizable & full, np.minimum(has, needs_of(assembly, flows)), has)

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
    """Return the weight of each host (4.10); the least loses instances first.

    Low with little paid time left, few cores in use, many of the operator's instances, a high price per core. The printed
    equation has the free share, which contradicts its text ("VMs with fewer cores used are prioritized for removal").
    `operator=None` weighs hosts as a whole.
    """
    cores, prices = assembly.cores, assembly.prices
    used = np.ones(len(cores)) if assembly.problem.shared else np.clip(1 - assembly.free_cores / cores, 0.0, 1.0)
    elsewhere = np.ones(len(cores))
    if operator is not None and assembly.total[operator] > 0:
        elsewhere = 1 - assembly.instances[:, operator] / assembly.total[operator]
    worth = np.divide(cores * assembly.speeds, prices, out=np.full(len(cores), np.inf), where=prices > 0)
    with np.errstate(invalid="ignore"):
        weight: Floats = np.nan_to_num(assembly.paid * used * elsewhere * worth, nan=0.0, posinf=np.inf)
    return weight


def over_provisioned(assembly: Assembly, flows: Flows, without: Collection[int] = ()) -> int | None:
    """Return the operator with the highest relative throughput, ties by spare cores, or None if none has two instances."""
    relative = flows.relative.mean(axis=0)
    capacity, needs = assembly.capacity.mean(axis=0), needs_of(assembly, flows)
    rows = [row for row in assembly.order if row not in without and assembly.sizable[row] and assembly.total[row] > 1]
    return max(
        rows,
        key=lambda row: (round(float(relative[row]), 9), float(capacity[row] / needs[row]) if needs[row] > 0 else math.inf),
        default=None,
    )


def shrink(assembly: Assembly, operator: int) -> int | None:
    """Remove an instance of `operator` from the host of least weight. Return its row, or None if only one is left."""
    rows = np.flatnonzero(assembly.instances[:, operator])
    if assembly.total[operator] <= 1 or not rows.size:
        return None
    row = int(rows[np.argmin(weights(assembly, operator)[rows])])
    assembly.add(operator, row, -1)
    return row


def shed(assembly: Assembly, target: float) -> Assembly:
    """Remove instances while `target` holds (Algorithm 4, lines 5 to 10); with shared cores, hosts.

    The printed loop ends after one removal too many; here that one is undone.
    """
    if assembly.problem.shared:
        return without_spare(assembly, shared_need(assembly, target))
    fewer, needed, single = assembly.copy(), set[int](), set[int]()
    bandwidth = assembly.limits()
    flows = fewer.flows(bandwidth)
    while (operator := over_provisioned(fewer, flows, needed)) is not None:
        most = 1 if operator in single else max(1, int(AT_ONCE * fewer.total[operator]))
        rows = [row for _ in range(most) if (row := shrink(fewer, operator)) is not None]
        after = fewer.flows(bandwidth)
        if rows and after.application.mean() >= target - ROUNDING:
            flows = after
            continue
        for row in rows:
            fewer.add(operator, row)
        (needed if len(rows) <= 1 else single).add(operator)
    return fewer if bandwidth is None or fewer.reached(fewer.limits()) >= target - ROUNDING else assembly


def cores_of(assembly: Assembly) -> float:
    """Return the cores of speed 1 of all hosts together."""
    return float(assembly.capacity[:, 0].mean()) if assembly.hosts else 0.0


def shared_need(assembly: Assembly, target: float) -> float:
    """Return the shared cores of speed 1 that all operators need for `target`; at most the current ones."""
    work = (assembly.flows().possible * assembly.problem.costs(assembly.active)).sum(axis=1)
    return min(cores_of(assembly), target * float(work.mean()))


def without_spare(assembly: Assembly, need: float, rows: Sequence[int] | None = None) -> Assembly:
    """Remove hosts in `rows` while `need` cores of speed 1 are left; None: all by ascending weight (4.10)."""
    problem, cores, speeds = assembly.problem, assembly.cores, assembly.speeds
    stays, removed = np.ones(len(cores), dtype=np.bool_), list[int]()
    for row in np.argsort(weights(assembly)).tolist() if rows is None else rows:
        if len(cores) - len(removed) <= max(1, problem.min_hosts):
            break
        stays[row] = False
        has = cores[stays].sum() * speeds[stays].min() if problem.equal else cores[stays] @ speeds[stays]
        if has >= need - ROUNDING:
            removed.append(row)
        else:
            stays[row] = True
    return assembly.without(removed) if removed else assembly


# Time in which a replacement must repay the overlap of both hosts. At least the thesis's billing unit: with per-second
# billing, small gains should not swap hosts.
REPAID = 3600.0


def vacated(assembly: Assembly, target: float, rows: Collection[int]) -> Assembly:
    """Remove hosts in `rows` if the others can take their instances and keep `target`.

    Goes by ascending weight (4.10), with shared cores by descending price. Empty hosts stay for `shut_down`.
    """
    if assembly.problem.shared:
        dearest = sorted(rows, key=lambda each: -float(assembly.prices[each]))
        return without_spare(assembly, shared_need(assembly, target), dearest)
    floor = min(target, assembly.reached(assembly.limits()))
    by_weight, holds = weights(assembly), assembly.instances.sum(axis=1)
    removed: list[int] = []
    for row in sorted((each for each in rows if holds[each]), key=lambda each: float(by_weight[each])):
        if len(assembly.hosts) - len(removed) <= assembly.problem.min_hosts:
            break
        trial = _emptied(assembly, row, removed)
        if trial is not None and trial.reached(trial.limits()) >= floor - ROUNDING:
            assembly = trial
            removed.append(row)
    return assembly.without(removed) if removed else assembly


def _emptied(assembly: Assembly, row: int, removed: Collection[int]) -> Assembly | None:
    """Move a host's instances to others with room, not to `gone`. None if a needed one fits nowhere."""
    trial = assembly.copy()
    for operator in np.flatnonzero(trial.instances[row]).tolist():
        for _ in range(int(trial.instances[row, operator])):
            trial.add(operator, row, -1)
            other = trial.place(operator, without=[row, *removed])
            if other is not None:
                trial.add(operator, other)
            elif not trial.sizable[operator] or not trial.total[operator]:
                return None
    return trial


def shut_down(assembly: Assembly) -> Assembly:
    """Remove empty hosts down to `min_hosts`, the most expensive first."""
    if assembly.problem.shared:
        return assembly
    empty = np.flatnonzero(assembly.instances[:, assembly.problem.placed].sum(axis=1) == 0).tolist()
    empty.sort(key=lambda row: -float(assembly.prices[row]))
    removed = empty[: max(0, len(assembly.hosts) - assembly.problem.min_hosts)]
    return assembly.without(removed) if removed else assembly


def replacements(assembly: Assembly, target: float, rows: Collection[int]) -> list[HostType]:
    """Return cheaper types to lease in place of hosts in `rows`.

    The saving must repay the overlap within a billing unit or `REPAID`, whichever is longer.
    """
    problem, types = assembly.problem, list[HostType]()
    enough = np.zeros(0) if problem.shared or not rows else just_enough(assembly, target)
    for row in sorted(rows, key=lambda each: -float(assembly.prices[each])):
        rest = assembly.without([row])
        emptied = rest if problem.shared else _emptied(assembly, row, ())
        if emptied is not None and emptied.reached(emptied.limits()) >= target - ROUNDING:
            continue  # needs no replacement
        bins = packed(
            problem, assembly.order, *_left_by(assembly, rest, row, enough, target), problem.max_hosts - len(assembly.hosts)
        )
        over = max(assembly.hosts[row].type.billing.unit, REPAID)
        rate = math.fsum([rate_of(each.type) for each in bins or ()])
        if bins and rate * (float(assembly.paid[row]) + over) < assembly.prices[row] * over - ROUNDING:
            assembly = assembly.copy()
            for each in bins:
                assembly.lease(each.type)
                types.append(each.type)
    return types


def _left_by(assembly: Assembly, rest: Assembly, row: int, enough: Floats, target: float) -> tuple[Floats, Integers]:
    problem = assembly.problem
    if problem.shared:
        return np.array([max(0.0, shared_need(assembly, target) - cores_of(rest))]), np.zeros(1, dtype=np.int64)
    has = np.where(assembly.sizable, rest.capacity.mean(axis=0), 0.0)
    needs = np.where(assembly.sizable, np.maximum(enough - has, 0.0), 0.0)
    least = np.where(assembly.sizable, rest.total == 0, assembly.instances[row] * problem.placed)
    return needs, np.asarray(least, dtype=np.int64)
