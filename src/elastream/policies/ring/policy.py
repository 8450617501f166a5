"""Load balancing and elasticity of operators with state: hosts on a ring negotiate with their neighbours.

Kumbhare's thesis, section 6.5; `docs/explanation/resilient-state.md` lists the differences.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np

from elastream.core.action import Action, DrainHost, LeaseHost, SetTokens
from elastream.core.decision import Unknown
from elastream.core.hosts import HostState, HostType
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Context, Observation
from elastream.core.plant import Plan, Policy
from elastream.core.ring import Ring, in_zones
from elastream.core.wording import at_most, counted, percent
from elastream.errors import InputError
from elastream.policies.common.measures import due_back, emptied, missing_type_reason, price_of_core, types_to_lease
from elastream.policies.common.provision import TARGET_UTILISATION
from elastream.policies.ring.balance import Arc, even_cut, half_cut, midpoint, wider_cut
from elastream.policies.ring.load import RingLoad
from elastream.policies.static import filling, missing_hosts
from elastream.units import ROUNDING

# Target latency if none is set (seconds).
DEFAULT_LATENCY_S = 2.0
# Part of the highest level by which a change must lower it (HPA's default tolerance).
TOLERANCE = 0.1
# Seconds between rounds, until two rounds have run.
FIRST_PACE_S = 2.0
# Relative standard error of a host's partitions from which a cut waits for more batches, and the longest wait (seconds).
# Otherwise it would use loads from before a skew.
UNCERTAIN, LONGEST_DOUBT_S = 0.35, 30.0
# Seconds over which busy cores beside state partitions are averaged.
OTHER_MEAN_S = 30.0
# Hosts that may join in a round, or as many as are on the ring if these are more (HPA: 4 pods, or twice as many).
AT_ONCE = 4
# Least seconds for which hosts must be light before one goes.
LEAST_CALM_S = 10.0


@dataclass(frozen=True, slots=True)
class RingMemory:
    """Memory of the policy. `high`, `low`: since when each host is overloaded or light; `other`: as `Round._other`."""

    time: float
    high: Mapping[str, float] = field(default_factory=dict)
    low: Mapping[str, float] = field(default_factory=dict)
    changed: float = -math.inf
    hosts: frozenset[str] = frozenset()
    other: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RingBalance(Policy):
    """Every operator with state has a ring of all hosts, whose tokens follow the load (`elastream.core.ring`).

    A host is *overloaded* if its CPU use is at least `cpu_high` and records wait `queue_high` seconds; *light* up to
    `cpu_low` and `queue_low`. An overloaded host gives partitions to clockwise neighbours, up to the first light one.
    Without a light one hosts are leased, which join beside the fullest. A host goes if it and its clockwise neighbour were
    light for `calm` seconds, the neighbour can carry both, and its paid time ends.

    Args:
        cpu_low: None: half of `cpu_high`.
        queue_high: Seconds; None: half of the target latency.
        queue_low: Seconds; None: half of `queue_high`.
        patience: Seconds that a host must be overloaded.
        cool_down: Seconds without decisions after a change.
        calm: Seconds; None: the start of a host, at least 10 s.
        cut: `"half"`: the thesis's half of an interval, or the best cut if that does not help. `"load"`: the best cut over
            as many neighbours as help.
        gain: Least part by which a change must lower the highest level.
        host_type: Type to lease; None: the cheapest per core and second.
        partitions_a_host: State partitions for each host that may be leased, if the run sets none.
    """

    cpu_high: float = TARGET_UTILISATION
    cpu_low: float | None = None
    queue_high: float | None = None
    queue_low: float | None = None
    patience: float = 3.0
    cool_down: float = 10.0
    calm: float | None = None
    cut: Literal["half", "load"] = "half"
    gain: float = TOLERANCE
    host_type: str | None = None
    partitions_a_host: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.light < self.cpu_high <= 1:
            raise InputError(
                f"cpu_low is {self.light:g} and cpu_high {self.cpu_high:g}; they must be 0 < cpu_low < cpu_high <= 1"
            )
        for name in ("queue_high", "queue_low", "patience", "cool_down", "calm"):
            if (value := getattr(self, name)) is not None and not value >= 0:
                raise InputError(f"{name} is {value:g} s; it must be 0 s or more")
        if self.queue_high is not None and self.queue_low is not None and self.queue_low > self.queue_high:
            raise InputError(f"queue_low is {self.queue_low:g} s; it must be at most queue_high, {self.queue_high:g} s")
        if self.partitions_a_host < 1:
            raise InputError(f"partitions_a_host is {self.partitions_a_host}; it must be 1 or more")
        if not 0 <= self.gain < 1:
            raise InputError(f"gain is {self.gain:g}; it must be 0 or more and below 1")
        if self.cut not in (options := ("half", "load")):
            raise InputError(f"cut is {self.cut!r}; it must be {' or '.join(map(repr, options))}")

    @property
    def light(self) -> float:
        return self.cpu_high / 2 if self.cpu_low is None else self.cpu_low

    def queues(self, target_latency: float | None) -> tuple[float, float]:
        """Return (queue_high, queue_low) in seconds under this target latency."""
        high = (target_latency or DEFAULT_LATENCY_S) / 2 if self.queue_high is None else self.queue_high
        return high, high / 2 if self.queue_low is None else self.queue_low

    needs: ClassVar[Needs] = frozenset({(Rows.HOST, Metric.CPU), (Rows.OPERATOR, Metric.BACKLOG)})
    name: ClassVar = "ring"

    def plan(self, observation: Observation, memory: RingMemory | None = None) -> Plan:
        """Plan missing hosts, widths of stateless stages, then one kind of change of the rings."""
        return Round(self, observation, memory).plan()

    def unsupported_reason(self, context: Context) -> str | None:
        if context.layout.unchained:
            return "it divides state partitions, which operators apart do not have: simulate the dataflow fused"
        if not any(stage.keyed for stage in context.layout.stages):
            return "it divides the state of keyed operators among hosts, and the dataflow has none: use threshold"
        if reason := missing_type_reason(context, self.host_type):
            return reason
        high, low = self.queues(context.target_latency)
        if low > high:
            return f"queue_low is {low:g} s; it must be at most queue_high, half of the target latency: {high:g} s"
        return None


class Round:
    def __init__(self, policy: "RingBalance", observation: Observation, before: RingMemory | None) -> None:
        self.policy, self.observation, self.before = policy, observation, before
        target = observation.context.target_latency
        self.queue_high, self.queue_low = policy.queues(target)
        self.load = RingLoad(observation, policy.cpu_high, self.queue_high, target or math.inf)
        self.remarks: list[str] = []
        self.unknown: tuple[Unknown, ...] = ()
        self.pace = FIRST_PACE_S if before is None else max(observation.time - before.time, 0.0)
        self.rings = {name: ring for name, ring in observation.rings.items() if name in self.load.units}
        self.memory = self._updated_memory()

    def plan(self) -> Plan:
        observation, context = self.observation, self.observation.context
        actions = [*missing_hosts(observation, context.min_hosts, self._kind().name), *filling(observation)]
        self._warn_of_few_partitions()
        self._warn_of_exposed_zones()
        changes: list[Action] = []
        if observation.usable and "SetTokens" in context.capabilities:
            changes = self._first_rings() or self._join()
            if not changes and not self._unsettled:
                changes = self._relieve() or self._shrink()
        memory = replace(self.memory, changed=observation.time) if changes else self.memory
        actions += [*changes, *emptied(self.observation)]
        return Plan(tuple(actions), memory, remarks=tuple(self.remarks), unknown=self.unknown)

    # -- memory --------------------------------------------------------------------------------------------------------

    def _updated_memory(self) -> RingMemory:
        now, before = self.observation.time, self.before or RingMemory(self.observation.time)
        levels, queues, policy = self.load.levels, self.load.queues, self.policy
        high = {h: before.high.get(h, now) for h in levels if levels[h] >= policy.cpu_high and queues[h] >= self.queue_high}
        low = {h: before.low.get(h, now) for h in levels if levels[h] <= policy.light and queues[h] <= self.queue_low}
        hosts = frozenset(self.observation.usable)
        # Partitions that move still run on their old hosts, so CPU use belongs to those, not to the planned hosts.
        moving = any(task.operator in self.rings for task in self.observation.moving)
        moving = moving or any(not self.observation.follows(name, ring) for name, ring in self.rings.items())
        changed = now if moving or (self.before is not None and hosts != before.hosts) else before.changed
        return RingMemory(now, high, low, changed, hosts, self._other_load(before, changed))

    def _other_load(self, before: RingMemory, changed: float) -> Mapping[str, float]:
        """Return the busy cores of hosts beside state: a moving mean."""
        # Uncertain measurements count less, such as at the start of a skew.
        measured = {host: cores for host, cores in before.other.items() if host in self.load.other}
        if not self._measured_after(changed):
            return measured
        weight = 1 - math.exp(-self.pace / OTHER_MEAN_S)

        def learnt(host: str, cores: float) -> float:
            was, doubt = measured.get(host, cores), self.load.uncertainty(host) / UNCERTAIN
            return was + weight / (1 + doubt**2) * (cores - was)

        return {host: learnt(host, cores) for host, cores in self.load.other.items()}

    def _measured_after(self, changed: float) -> bool:
        return self.observation.time - self.observation.hosts.age(Metric.CPU) >= changed + self.policy.cool_down

    def _arc_of(self, operator: str, ring: Ring, hosts: tuple[str, ...], joins: str | None = None) -> Arc:
        return self.load.arc(operator, ring, hosts, joins, self.memory.other)

    @cached_property
    def _unsettled(self) -> bool:
        """Return True if metrics may predate the last change, or one is unknown."""
        self.unknown = self.load.lacking
        return not self._measured_after(self.memory.changed) or bool(self.unknown) or not self.rings

    @cached_property
    def _overloaded(self) -> list[str]:
        since = self.observation.time - self.policy.patience
        return self._worst(host for host, began in self.memory.high.items() if began <= since)

    def _worst(self, hosts: Iterable[str]) -> list[str]:
        levels, queues = self.load.levels, self.load.queues
        return sorted(hosts, key=lambda host: (-round(levels[host], 2), -queues[host], host))

    # -- rings ---------------------------------------------------------------------------------------------------------

    def _first_rings(self) -> list[Action]:
        observation = self.observation
        order = in_zones({host: observation.leases[host].zone for host in observation.usable})
        if self.rings:  # the order of hosts is the same on all rings, so that a host has one neighbour
            first = next(iter(self.rings.values()))
            order = (*first.nodes, *(host for host in order if host not in first))
        tokens = tuple(Ring.even(order).tokens.items())
        why = f"{counted(len(order), 'host')} at even tokens"
        return [SetTokens(name, tokens, why=why) for name in self.load.units if name not in self.rings]

    def _join(self) -> list[Action]:
        """Return rings with the usable hosts that are not on every ring yet."""
        # Each joins beside an overloaded host, the worst first. Otherwise it joins between neighbours of one fault zone, or
        # beside the fullest host.
        rings, joining = (
            dict(self.rings),
            [h for h in self.observation.usable if any(h not in r for r in self.rings.values())],
        )
        lead = max(rings, key=lambda name: float(np.nan_to_num(self.load.loads(name)).sum()), default="")
        overloaded = [host for host in self._worst(self.memory.high) if host in rings.get(lead, ())]
        for host in joining:
            if host in rings[lead]:
                beside = rings[lead].before(host)
            elif overloaded:
                beside = overloaded.pop(0)
            else:
                beside = self._fullest(lead, rings[lead], host, self._separated_zones(rings[lead], host))
            for name, ring in rings.items():
                if host not in ring:
                    neighbour = beside if beside in ring else self._fullest(name, ring, host)
                    rings[name] = self._divided(name, ring, neighbour, host)
        why = f"{', '.join(joining)} joined where hosts are fullest"
        return [
            SetTokens(name, tuple(ring.tokens.items()), why=why) for name, ring in rings.items() if ring != self.rings[name]
        ]

    def _fullest(self, operator: str, ring: Ring, joins: str, among: Sequence[str] = ()) -> str:
        """Return the host with the highest level, or the longest interval; ties by the fault zone of `joins`."""
        hosts, arc = among or ring.nodes, self._arc_of(operator, ring, ring.nodes)
        levels = arc.levels(arc.owned)
        if np.isnan(levels).any() or not arc.loads.sum() > 0:
            full = {host: ring.length(host) for host in hosts}
        else:
            full = {host: level for host, level in zip(ring.nodes, levels.tolist(), strict=True) if host in hosts}
        least = (1 - self.policy.gain) * max(full.values())
        alike = {host: min(self._alike(ring, host, joins)) for host, level in full.items() if level >= least}
        return max(alike, key=lambda host: (-alike[host], full[host]))

    def _separated_zones(self, ring: Ring, joins: str) -> list[str]:
        """Return the hosts before which `joins` would separate equal zones."""
        zones = {host: self.observation.leases[host].zone for host in (*ring.nodes, joins)}
        return [h for h in ring.nodes if ring.before(h) != h and zones[ring.before(h)] == zones[h] != zones[joins]]

    def _divided(self, operator: str, ring: Ring, host: str, joins: str) -> Ring:
        before = self._before(ring, host, joins)
        arc = self._arc_of(operator, ring, (host,), joins)
        if before:  # what `host` gives up lies at the other end
            arc = replace(arc, loads=arc.loads[::-1])
        owned = self._cut(arc)
        if owned is None:
            cut = midpoint(ring, host)
        else:
            cut = (arc.first + owned[1 if before else 0]) % arc.count / arc.count
        if cut in ring.tokens.values():
            cut = midpoint(ring, host)
        return ring.at(host, cut).with_node(joins, ring.tokens[host]) if before else ring.with_node(joins, cut)

    def _before(self, ring: Ring, host: str, joins: str) -> bool:
        """Return True if `joins` has fewer neighbours of its zone before `host`, where a lost host was (section 6.6)."""
        behind, before = self._alike(ring, host, joins)
        return before < behind

    def _alike(self, ring: Ring, host: str, joins: str) -> tuple[int, int]:
        near, far = ring.before(host), ring.successors(host, 1) or (host,)

        def alike(*hosts: str) -> int:
            zones = [self.observation.leases[each].zone for each in hosts]
            return sum(one == other for one, other in pairwise(zones))

        return alike(near, host, joins, *far), alike(near, joins, host, *far)

    def _warn_of_few_partitions(self) -> None:
        hosts = len(self.observation.usable)
        for name in self.load.units:
            if (count := self.observation.context.partitions[name]) < hosts:
                self.remarks.append(
                    f"{name} has {counted(count, 'state partition')} for {counted(hosts, 'host')}: {hosts - count} of them "
                    "hold none of its state; give more (state_partitions) or fewer hosts"
                )

    def _warn_of_exposed_zones(self) -> None:
        replicas, leases = self.observation.context.replicas, self.observation.leases
        zones: dict[str, list[str]] = {}
        for host in self.observation.usable:
            zones.setdefault(leases[host].zone, []).append(host)
        if not replicas or len(zones) <= replicas or not self.rings:
            return
        ring = next(iter(self.rings.values()))
        for zone, hosts in zones.items():
            if not ring.survives(hosts, replicas):
                self.remarks.append(
                    f"fault zone {zone} ({', '.join(hosts)}) holds some state with all its copies, as hosts of it are "
                    "neighbours on the ring: if it is lost, that state is read from the checkpoint"
                )

    # -- balance and scale-out -----------------------------------------------------------------------------------------

    def _relieve(self) -> list[Action]:
        stuck: list[str] = []
        if self._overloaded and self._is_bounded():
            return []
        for host in self._overloaded:
            if host not in next(iter(self.rings.values())):
                continue
            neighbours = self._neighbourhood(host)
            if neighbours is not None and self._is_doubtful(host):
                continue
            if neighbours is not None and (change := self._balanced(neighbours)) is not None:
                return [change]
            if self._is_divisible(host):
                stuck.append(host)
            else:
                self._explain_indivisible(host)
                if self.load.one_queue:
                    return []  # a query is as slow as its slowest host: more capacity beside the others would not help
        return self._leases(stuck)

    def _is_doubtful(self, host: str) -> bool:
        lasted = self.observation.time - self.memory.high[host]
        return self.policy.cut == "load" and lasted < LONGEST_DOUBT_S and self.load.uncertainty(host) > UNCERTAIN

    def _neighbourhood(self, host: str) -> tuple[str, ...] | None:
        """Return `host` and its clockwise neighbours up to the first light one; None without one."""
        # With `cut` "load" and known loads a light one is not required: the first neighbour suffices.
        ring, neighbours = next(iter(self.rings.values())), [host]
        for neighbour in ring.successors(host, len(ring)):
            neighbours.append(neighbour)
            if neighbour in self.memory.low:
                return tuple(neighbours)
        loads_known = not any(np.isnan(self.load.loads(name)).any() for name in self.rings)
        return tuple(neighbours[:2]) if self.policy.cut == "load" and loads_known and len(neighbours) > 1 else None

    def _balanced(self, hosts: tuple[str, ...]) -> SetTokens | None:
        by_load = sorted(
            self.rings, key=lambda name: -float(np.nan_to_num(self._arc_of(name, self.rings[name], hosts[:1]).loads).sum())
        )
        for name in by_load:
            if self.rings[name].successors(hosts[0], len(hosts) - 1) != hosts[1:]:
                continue  # another program set its tokens, in another order of hosts
            if (cut := self._balanced_arc(name, hosts)) is None:
                continue
            arc, owned = cut
            now, then = float(arc.levels(arc.owned).max()), float(arc.levels(owned).max())
            tokens = {**self.rings[name].tokens, **arc.tokens(owned)}
            why = f"{hosts[0]} is overloaded, {hosts[-1]} {'is light' if hosts[-1] in self.memory.low else 'takes a part'}"
            if more := len(arc.hosts) - len(hosts):
                why += f", {counted(more, 'host')} behind it take part"
            if now == now:
                why += f": {percent(now)} of the fullest's cores become {percent(then)}"
            return SetTokens(name, tuple(Ring(tokens).tokens.items()), why=why)
        return None

    def _balanced_arc(self, operator: str, hosts: tuple[str, ...]) -> tuple[Arc, tuple[int, ...]] | None:
        """Return neighbours from `hosts` on to redistribute partitions among, with new numbers; None if nothing helps."""
        # With `cut` "load", includes further hosts behind these until the change helps.
        ring = self.rings[operator]
        arc = self._arc_of(operator, ring, hosts)
        owned = self._cut(arc)
        if self.policy.cut == "load" and not np.isnan(arc.loads).any():
            whole = self._arc_of(operator, ring, (hosts[0], *ring.successors(hosts[0], len(ring))))
            return wider_cut(whole, len(hosts), owned, self.policy.gain)
        return None if owned is None else (arc, owned)

    def _cut(self, arc: Arc) -> tuple[int, ...] | None:
        """Return the partitions of each host of `arc` after a change; None if it would not help."""
        half = half_cut(arc)
        if np.isnan(arc.loads).any() or not arc.loads.sum() > 0:
            return half
        cuts = (half, even_cut(arc)) if self.policy.cut == "half" else (even_cut(arc),)
        return next((owned for owned in cuts if owned is not None and self._lowers(arc, arc.owned, owned)), None)

    def _lowers(self, arc: Arc, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        return float(arc.levels(after).max()) < (1 - self.policy.gain) * float(arc.levels(before).max())

    def _is_divisible(self, host: str) -> bool:
        """Return True if other hosts could take enough work from `host`."""
        # Partitions up to the number of its cores already run side by side: dividing these gains nothing.
        there, width = len(self.observation.usable), self.observation.leases[host].type.width
        for name, ring in self.rings.items():
            arc = self._arc_of(name, ring, (host,), host)
            crowded = arc.loads.size > width
            loads_known = not np.isnan(arc.loads).any()
            fixed = arc.fixed[:1] * there / (there + max(1, there // 4))  # tasks without state are dealt to all hosts
            split = replace(arc, fixed=fixed.repeat(2))
            owned = None if not crowded else even_cut(split) if loads_known else half_cut(arc)
            alone = (arc.loads.size, 0)
            if not loads_known and owned is not None:
                return True
            before = float(arc.levels(alone)[0])
            after = float(split.levels(alone if owned is None else owned).max())
            if after < (1 - self.policy.gain) * before:
                return True
        return False

    def _is_bounded(self) -> bool:
        """Return True, with a remark, if the largest partitions alone take all of the time."""
        largest = self.load.largest
        if not largest >= 1 / (1 + self.policy.gain):
            return False
        loads = {name: np.nan_to_num(self.load.loads(name)) for name in self.load.units}
        name = max(loads, key=lambda each: float(loads[each].max(initial=0.0)))
        self.remarks.append(
            f"{', '.join(self._overloaded)} overloaded, and no host and no change of a ring would help: the largest state "
            f"partition of each stage keeps one core busy for {percent(largest)} of the time at this rate, number "
            f"{int(np.argmax(loads[name]))} of {name} the longest; one key, or several in one partition, cannot be "
            "divided: pre-aggregate before that key, or use hosts with faster cores"
        )
        return True

    def _explain_indivisible(self, host: str) -> None:
        if (heaviest := self.load.heaviest(host)) is not None:
            name, number, cores = heaviest
            count = self.observation.context.partitions[name]
            threads = sum(self.observation.leases[each].type.width for each in self.observation.usable)
            more = f"give more than {counted(count, 'state partition')}, " if count <= threads else ""
            self.remarks.append(
                f"{host} is overloaded and no change of its ring would help: state partition {number} of {name} keeps "
                f"{cores:.2g} of its {self.observation.capacities[host]:.3g} cores busy, and one key, or several in one "
                f"partition, cannot be divided: {more}pre-aggregate before that key, or use hosts with faster cores"
            )

    def _leases(self, hosts: list[str]) -> list[Action]:
        observation, context = self.observation, self.observation.context
        if not hosts or observation.coming:
            return []
        kind = self._kind(hosts[0])
        levels = [level * observation.capacities[host] for host, level in self.load.levels.items() if level == level]
        need = math.fsum(levels) * self.load.growth(kind.start + self.pace)
        short = need / self.policy.cpu_high - math.fsum(observation.capacities[host] for host in observation.usable)
        missing = max(1, math.ceil(short / (kind.cores * kind.speed) - ROUNDING))
        if self.load.without_pause:
            enough = self.load.enough(self.policy.gain)
            if math.isinf(enough):
                self.remarks.append(
                    f"{', '.join(hosts)}: records wait for micro-batches that follow one another without a pause, and no "
                    "number of hosts would shorten these enough: the time between tasks does not become less"
                )
                return []
            missing = math.ceil(enough - len(observation.usable) - ROUNDING)
            if missing <= 0:
                return []  # the backlog shrinks already
        why = f"{', '.join(hosts)} overloaded, and no light host would relieve {'it' if len(hosts) == 1 else 'them'}"
        room = context.max_hosts - len(observation.leases)
        # A joining host takes over a part of one host. Of many at once, most would only split each other's parts.
        missing = min(missing, max(AT_ONCE, len(observation.usable)))
        leases = min(missing, max(0, room))
        if leases < missing:
            self.remarks.append(f"{at_most(context.max_hosts)}, and {why}")
        if "LeaseHost" not in context.capabilities:
            leases = 0
        kinds = (kind, *types_to_lease(observation, kind, leases - 1))[:leases]
        return [LeaseHost(observation.host_name(n), each.name, each.region, why=why) for n, each in enumerate(kinds)]

    # -- scale-in ------------------------------------------------------------------------------------------------------

    def _shrink(self) -> list[Action]:
        observation, policy = self.observation, self.policy
        usable, ring = observation.usable, next(iter(self.rings.values()))
        leaving = any(lease.state is HostState.DRAINING for lease in observation.leases.values())
        if len(usable) <= max(1, observation.context.min_hosts) or observation.coming or leaving or self.memory.high:
            return []
        if not all(seconds <= self.queue_low for seconds in self.load.waits.values()):
            return []
        kind = self._kind()
        calm = max(LEAST_CALM_S, kind.start) if policy.calm is None else policy.calm
        since, growth = observation.time - calm, self.load.growth(kind.start + self.pace)
        for host in sorted((h for h in usable if h in ring), key=lambda host: (self.load.levels[host], host)):
            successor = ring.successors(host, 1)[0]
            if not all(self.memory.low.get(each, math.inf) <= since for each in (host, successor)):
                continue
            cores = math.fsum(self.load.levels[each] * observation.capacities[each] for each in (host, successor))
            level = growth * cores / observation.capacities[successor]
            room = level <= (1 - policy.gain) * policy.cpu_high
            room = room and self.load.keeps_pace(self.load.levels[successor], level, policy.gain)
            if room and due_back(observation.leases[host], observation.time, self.pace, self.pace):
                why = f"it and {successor} have been light for {calm:.0f} s: {successor} takes over, "
                why += f"at {percent(level)} of its cores"
                return [DrainHost(host, why=why)]
        return []

    def _kind(self, beside: str | None = None) -> HostType:
        """Return the type to lease: the cheapest, in another zone than `beside` and its neighbour."""
        context = self.observation.context
        if self.policy.host_type is not None:
            return context.host_types[self.policy.host_type]
        zones: set[str] = set()
        if beside is not None:
            ring = next(iter(self.rings.values()))
            zones = {self.observation.leases[each].zone for each in (beside, *ring.successors(beside, 1))}
        return min(context.leasable.values(), key=lambda kind: (price_of_core(kind), kind.zone in zones, kind.cores))
