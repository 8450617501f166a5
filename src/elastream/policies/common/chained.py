"""Sizing of queries whose tasks share the cores of their hosts. Any host takes any task, so hosts count by cores."""

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from elastream.core.action import Action, CancelDrain, DrainHost, LeaseHost, ReleaseHost
from elastream.core.hosts import HostType
from elastream.core.memory import memory_uses
from elastream.core.observation import Observation
from elastream.core.wording import counted, percent
from elastream.policies.common.measures import capacity, due_back, host_capacity, tasks_on, types_to_lease
from elastream.units import ROUNDING, format_duration

# Most threads of an operator that waits.
THREADS = 64
# Least part of a host's price for which cheaper ones take its place.
WORTH_CHANGE = 0.2


def has_equal_shares(observation: Observation, slots: int) -> bool:
    """Return True if no stateless stage has more tasks than `slots`: then each slot gets equal work."""
    return all(tasks <= slots for tasks in stateless_tasks(observation))


def is_narrow(observation: Observation, slots: int) -> bool:
    return any(tasks < slots for tasks in stateless_tasks(observation))


def stateless_tasks(observation: Observation) -> list[int]:
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


@dataclass(frozen=True)
class SharedHosts:
    """Changes of hosts whose tasks share cores, for needs in cores of speed 1 (NaN if unknown).

    Attributes:
        most: Utilisation to which the remaining hosts may be filled.
        spare: Hosts to keep on top of the need.
        mixed: True if hosts of other types than `kind` may be leased.
        pace: Seconds until the next round.
    """

    observation: Observation
    kind: HostType
    most: float
    spare: int
    equal: bool
    pace: float
    settle: float
    mixed: bool = False

    def capacity(self, hosts: Sequence[str]) -> float:
        return shared_capacity(self.observation, hosts, equal=self.equal)

    def lease_missing(self, need: float, because: Callable[[], str]) -> list[Action]:
        """Return actions that add hosts for `need` cores: cancelled drains first, then leases.

        Keeps at least `min_hosts`. Slow hosts that the others wait for go if fewer suffice without them.
        """
        observation, context, kind = self.observation, self.observation.context, self.kind
        there = (*observation.usable, *observation.coming)
        lacking, by_need, short, slow = context.min_hosts - len(there), 0, 0.0, frozenset[str]()
        if not math.isnan(need):
            short, slow = self._missing(need, there)
            by_need = math.ceil(short - ROUNDING) + self.spare
        drains = self._without(slow)
        if max(lacking, by_need) <= 0:
            return drains
        why = f"at least {counted(context.min_hosts, 'host')}"
        if by_need > max(0, lacking):
            lacking, has = by_need, self.capacity(there)
            cores = "core is" if f"{has:.3g}" == "1" else "cores are"
            why = f"{because()}; {has:.3g} {cores} on {counted(len(there), 'host')}"
            why += f", and {counted(self.spare, 'host')} to spare" if self.spare else ""
        slot = self._least_slot([host for host in there if host not in slow])
        quick = [host for host in observation.recoverable if observation.cores.slots((host,))[1] >= slot]
        cancelled = quick[: max(0, lacking)]
        leases = min(max(0, lacking) - len(cancelled), context.max_hosts - len(observation.leases))
        kinds: Sequence[HostType] = types_to_lease(observation, kind, leases)
        if self.mixed and leases == by_need > self.spare == 0:
            kinds = self._with_cheapest_rest(kinds, short, slot)
        return [
            *(CancelDrain(host, why=why) for host in cancelled),
            *(LeaseHost(observation.host_name(n), each.name, each.region, why=why) for n, each in enumerate(kinds)),
            *drains,
        ]

    def _least_slot(self, hosts: Sequence[str]) -> float:
        """Return the cores of speed 1 that a slot beside `hosts` must have: less would make all tasks wait."""
        return min(self._new_slot, self.observation.cores.slots(hosts)[1]) * (1 - ROUNDING) if self.equal else 0.0

    @property
    def _new_slot(self) -> float:
        """Cores of speed 1 of a new host's slot: the median of present hosts of its type, else as declared."""
        observation = self.observation
        there = [host for host in observation.usable if observation.leases[host].type.name == self.kind.name]
        return statistics.median(observation.cores.slots((host,))[1] for host in there) if there else self.kind.slot

    def _missing(self, need: float, there: Sequence[str]) -> tuple[float, frozenset[str]]:
        """Return the missing hosts of `kind`, with fractions, and the slow hosts without which these suffice."""
        kind, cores, none, new = self.kind, self.observation.cores, frozenset[str](), self._new_slot
        if not self.equal:
            return (need - self.capacity(there)) / (kind.cores * kind.speed), none

        def missing(hosts: Sequence[str]) -> float:
            slots, least = cores.slots(hosts)
            return (need / min(least, new) - slots) / kind.width

        best, slow = missing(there), none
        if best <= ROUNDING:
            return best, slow
        speeds = {host: cores.slots((host,))[1] for host in there if host not in self.observation.pinned}
        for speed in sorted({each for each in speeds.values() if each < new}):
            slower = frozenset(host for host, each in speeds.items() if each <= speed)
            less = missing([host for host in there if host not in slower])
            stay = len(there) - len(slower) + max(0, math.ceil(less - ROUNDING))
            if math.ceil(less - ROUNDING) < math.ceil(best - ROUNDING) and stay >= self.observation.context.min_hosts:
                best, slow = less, slower
        return best, slow

    def _without(self, slow: Collection[str]) -> list[Action]:
        """Return drains of hosts in `slow`, if the usable ones serve as much without them."""
        usable = self.observation.usable
        rest = [host for host in usable if host not in slow]
        if len(rest) == len(usable) or not self.capacity(rest) >= self.capacity(usable):
            return []
        why = "all tasks wait for its slow cores, and the others serve as much without it"
        return [DrainHost(host, why=why) for host in usable if host in slow]

    def _with_cheapest_rest(self, kinds: Sequence[HostType], short: float, slot: float) -> Sequence[HostType]:
        """Return `kinds` for `short` hosts; the cheapest with such slots replace the last."""
        # All but one host have the lowest price per core, so that no mix costs less by more than that host's price.
        observation, last = self.observation, kinds[-1]
        rest = (short - len(kinds) + 1) * self._size(last)
        room = observation.context.max_hosts - len(observation.leases) - len(kinds) + 1
        options = [
            (hosts * each.price_rate, hosts, each)
            for each in observation.context.leasable.values()
            if each.region == last.region and each.slot >= slot
            for hosts in [math.ceil(rest / self._size(each) - ROUNDING)]
            if 0 < hosts <= room
        ]
        price, hosts, chosen = min(options, key=lambda option: option[:2], default=(math.inf, 1, last))
        if price >= last.price_rate:
            return kinds
        return (*kinds[:-1], *types_to_lease(observation, chosen, hosts))

    def _size(self, kind: HostType) -> float:
        """Return what a host counts: slots where all tasks wait for the slowest one, else cores of speed 1."""
        return kind.width if self.equal else kind.cores * kind.speed

    def hosts_for(self, need: float) -> float:
        """Return the hosts that give `need` cores, with fractions; NaN if unknown."""
        there = (*self.observation.usable, *self.observation.coming)
        hosts = len(there) + (need - self.capacity(there)) / (self.kind.cores * self.kind.speed) + self.spare
        return hosts if math.isnan(hosts) else max(hosts, float(self.observation.context.min_hosts))

    def _suffice(self, rest: Sequence[str], highest: float) -> bool:
        working = sorted(rest, key=lambda each: host_capacity(self.observation, each))[self.spare :]
        return len(rest) >= self.observation.context.min_hosts and highest <= self.most * self.capacity(working)

    def drain_surplus(self, highest: float, part: float = 0.5) -> list[Action]:
        """Return drains of hosts that `highest` busy cores, the most in `settle` seconds, do not need.

        They are at most `part` of the hosts, not the last one, due back (`measures.due_back`) and not pinned. Hosts without
        work of others go first, then the dearest.
        """
        observation, usable = self.observation, self.observation.usable
        if not highest <= self.most * (capacity(observation, usable) - observation.cores.least(usable)):
            return []  # as in most rounds: not even the smallest could go
        candidates = sorted(
            (
                host
                for host in usable
                if host not in observation.pinned
                and due_back(observation.leases[host], observation.time, self.pace, self.pace)
            ),
            key=lambda h: (
                h in observation.occupied,
                -observation.leases[h].type.price_rate,
                tasks_on(observation, h),
                observation.leases[h].remaining(observation.time),
                usable.index(h),
            ),
        )
        rest, least = list(usable), math.inf
        for host in candidates:
            if len(rest) <= max(1, len(usable) - int(part * len(usable))):
                break
            if host_capacity(observation, host) >= least:
                continue  # as one that must stay
            if self._suffice([each for each in rest if each != host], highest):
                rest.remove(host)
            else:
                least = host_capacity(observation, host)
        going = [host for host in candidates if host not in rest]
        if not going:
            return []
        why = f"{counted(len(rest), 'host')} filled to {highest / self.capacity(rest):.0%} at most, as needed "
        why += f"for {format_duration(self.settle)}" if self.settle else "now"
        return [DrainHost(host, why=why) for host in going]

    def lease_successors(self, highest: float, start: float, settles: float) -> tuple[str, float, list[Action]]:
        """Return a host that costs much for its work, the start of cheaper ones (seconds) and their leases, or no leases.

        Args:
            start: Start of a host, as measured (seconds).
            settles: Seconds for which hosts work before another may go.
        """
        observation, now = self.observation, self.observation.time
        room = observation.context.max_hosts - len(observation.leases)
        kinds = observation.context.leasable.values() if self.mixed and not observation.draining else ()
        usable, seen = sorted(observation.usable, key=lambda each: -observation.leases[each].type.price_rate), set[str]()
        for host in usable:
            lease = observation.leases[host]
            limit = (1 - WORTH_CHANGE) * lease.type.price_rate
            cheaper = [kind for kind in kinds if kind.region == lease.type.region and kind.price_rate < limit]
            if not cheaper or lease.type.name in seen or host in observation.pinned:
                continue
            slowest = max(start, *(kind.start for kind in cheaper))
            if not due_back(lease, now, self.pace, slowest + settles + self.pace):
                continue
            seen.add(lease.type.name)
            rest = [each for each in usable if each != host]
            lacking = highest / self.most - (self.capacity(rest) if rest else 0.0)
            least = max(0, observation.context.min_hosts - len(rest))
            if not (0 < lacking < math.inf or (least and lacking <= 0)):
                continue
            slot = self._least_slot(rest) if rest else 0.0
            memory = lease.type.memory if memory_uses(observation) else 0.0  # state must find as much as it has now
            options = []
            for kind in cheaper:
                by_work = lacking / (kind.width * slot or kind.cores * kind.speed)
                number = max(least, math.ceil(max(by_work, memory / kind.memory) - ROUNDING))
                if kind.slot >= slot and 0 < number <= room:
                    options.append((number * kind.price_rate, number, kind))
            price, number, kind = min(options, key=lambda option: option[:2], default=(math.inf, 0, lease.type))
            if price < limit:
                why = f"{counted(number, 'host')} of type {kind.name} can do the work of {host} for "
                why += f"{percent(price / lease.type.price_rate)} of its price"
                names = enumerate(types_to_lease(observation, kind, number))
                leases: list[Action] = [
                    LeaseHost(observation.host_name(n), each.name, each.region, why=why) for n, each in names
                ]
                return host, slowest, leases
        return "", 0.0, []

    def drain_replaced(self, host: str, highest: float) -> list[Action]:
        """Return the drain of `host` if the others suffice without it and it may go."""
        observation = self.observation
        due = due_back(observation.leases[host], observation.time, self.pace, self.pace)
        rest = [each for each in observation.usable if each != host]
        if not due or host in observation.pinned or not self._suffice(rest, highest):
            return []
        return [DrainHost(host, why="cheaper hosts can do its work now")]

    def withdraw_surplus(self, highest: float) -> list[Action]:
        """Return releases of unneeded hosts that wait for at least `settle` seconds, newest request first."""
        observation = self.observation
        rest, going = [*observation.usable, *observation.coming], list[str]()
        for host in reversed(observation.waiting) if observation.usable else ():
            if observation.time - observation.leases[host].since < self.settle:
                continue  # when it was requested, the others did not suffice
            if not self._suffice([each for each in rest if each != host], highest):
                break
            rest.remove(host)
            going.append(host)
        why = "it still waits, and the others suffice"
        if self.settle:
            why = f"it still waits, and for {format_duration(self.settle)} the others would have sufficed"
        return [ReleaseHost(host, why=why) for host in going]


def thread_count(observation: Observation, operator: str, occupied: float, most: float, limit: int | None) -> int:
    """Return the threads a task needs so that an operator that waits occupies at most the share `most` of them.

    Args:
        occupied: Threads occupied now, over all tasks of the operator's stage.
        limit: Most threads of a task. None: THREADS.
    """
    stage = observation.context.layout.stage_of[operator]
    wide = 1.0 if stage.name == operator else float(observation.composition.parallelism.get(stage.name, 1))
    threads = max(1, math.ceil(occupied / wide / most - ROUNDING))
    return min(threads, THREADS if limit is None else limit)
