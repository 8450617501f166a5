"""The thesis's load balancing and elasticity of operators with state: hosts on a ring negotiate with their neighbours.

Kumbhare's thesis, section 6.5. What it leaves open, and where this policy differs, is said in
`docs/explanation/resilient-state.md`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np

from elastream.core.action import Action, DrainHost, LeaseHost, ReleaseHost, SetTokens
from elastream.core.decision import Unknown
from elastream.core.hosts import HostState, HostType
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Context, Observation
from elastream.core.plant import Plan, Policy
from elastream.core.ring import Ring, in_zones
from elastream.core.wording import at_most, counted, percent
from elastream.errors import InputError
from elastream.policies.common.billing import due_back
from elastream.policies.common.measures import spread, tasks_on
from elastream.policies.common.provision import TARGET_UTILISATION
from elastream.policies.ring.balance import Arc, evened, halved, middle, widened
from elastream.policies.ring.load import RingLoad
from elastream.policies.static import filling, missing_hosts
from elastream.units import ROUNDING

DEFAULT_LATENCY = 2.0
"""Seconds that stand for a target latency where none is given."""
TOLERANCE = 0.1
"""Fraction of the highest level by which a change must lower it (the default tolerance of Kubernetes' HPA)."""
PACE = 2.0
"""Seconds from one round to the next, until two rounds were seen."""
UNCERTAIN, DOUBTS = 0.35, 30.0
"""Standard error of what the partitions of a host take, over that, from which a cut waits for more batches: it would be by
loads of before a skew. And seconds that it waits at most, so that loads which never agree do not hold it up."""
OTHER = 30.0
"""Seconds over which the mean is taken of what hosts are busy with beside their state partitions."""
AT_ONCE = 4
"""Hosts that may join a ring in a round, or as many as are on it, if these are more (HPA: 4 pods, or twice as many)."""
LEAST_CALM = 10.0
"""Seconds for which hosts are to have been light, at least, before one goes."""


@dataclass(frozen=True, slots=True)
class RingMemory:
    """What the policy remembers: since when each host is overloaded, and light; when hosts or rings last changed; and the
    cores that each host is busy with beside its state partitions, a moving mean of what was measured while none moved."""

    time: float
    high: Mapping[str, float] = field(default_factory=dict)
    low: Mapping[str, float] = field(default_factory=dict)
    changed: float = -math.inf
    hosts: frozenset[str] = frozenset()
    other: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RingBalance(Policy):
    """Every operator with state has a ring of all hosts (`elastream.core.ring`), whose tokens follow the load.

    **Overloaded** is a host whose CPU use is at least `cpu_high` and for which records wait at least `queue_high` seconds;
    **light** one with at most `cpu_low` and `queue_low`. Use of CPU counts at the rate at which records arrive, and the
    queue of a query for those of its hosts that would be busy then (`policies.ring.load`).

    **Balance.** An overloaded host asks its neighbour clockwise; if that is not light, this one asks its own, and so on.
    The first that is light takes over a part of the interval before it, and so does each up to the overloaded one, all in
    one change of the ring. cut: how large a part: `"half"`: the thesis's half of the interval; where measured loads of the
    partitions say that this would not lower the highest level of these hosts by `gain`, or with `"load"` always: such that
    the highest level is lowest. With `"load"` further neighbours take part where that lowers the highest level more, and
    none need be light, so that a skew is balanced by one change where halves take one for each neighbour. What hosts are
    busy with beside state is a mean of the last half minute (`OTHER`).

    **Scale-out.** If no host is light, as many hosts are leased as the load needs at `cpu_high`, at least one. A host that
    has come joins every ring between the one with the highest level and its neighbour, and takes over only once it has
    their state (`SetTokens`, by both plants). Of host types of one price the one in another fault zone than the overloaded
    host and its neighbour is leased; at the start neighbours are of distinct zones.

    **Scale-in.** A host goes if it and its neighbour clockwise have been light for `calm` seconds, nothing waits, and the
    neighbour would be below `cpu_high` by `gain` with the load of both as it is expected; and only when what is paid of it
    ends (`policies.common.billing`). It is drained, and its interval is its neighbour's.

    **Damping.** Two thresholds, and: a host must be overloaded for `patience` seconds; after a change nothing is decided
    for `cool_down` seconds from when its state has moved; a trend of the arrival rate, where it is certain
    (`policies.forecasting.trend`), is counted on for one host's start, so that no host goes while the load grows.

    **One key.** A state partition that is busy alone cannot be divided: where a change would not lower the highest level
    by `gain`, nothing is moved and nothing leased for it, and a remark names the partition.

    cpu_low: None: half of cpu_high. queue_high: seconds; None: half the target latency. queue_low: None: half of
    queue_high. calm: None: the start of a host, at least 10 s. host_type: type to lease; None: that with the lowest price
    per core and second. partitions_a_host: state partitions for each host that may be leased, of runs that do not say how
    many: one is a tenth of a host's load.
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
        if self.cut not in (known := ("half", "load")):
            raise InputError(f"cut is {self.cut!r}; it must be {' or '.join(map(repr, known))}")

    @property
    def light(self) -> float:
        """Part of its cores up to which a host is light."""
        return self.cpu_high / 2 if self.cpu_low is None else self.cpu_low

    def queues(self, target_latency: float | None) -> tuple[float, float]:
        """(queue_high, queue_low), seconds, under this target latency."""
        high = (target_latency or DEFAULT_LATENCY) / 2 if self.queue_high is None else self.queue_high
        return high, high / 2 if self.queue_low is None else self.queue_low

    needs: ClassVar[Needs] = frozenset({(Rows.HOST, Metric.CPU), (Rows.OPERATOR, Metric.BACKLOG)})
    name: ClassVar = "ring"

    def plan(self, observation: Observation, memory: RingMemory | None = None) -> Plan:
        """Missing hosts, widths of stages without state, then one kind of change of the rings. memory: `RingMemory`."""
        return Round(self, observation, memory).plan()

    def unsupported_reason(self, context: Context) -> str | None:
        """Return why it can do nothing, or None."""
        if context.layout.unchained:
            return "it divides state partitions, which operators apart do not have: simulate the dataflow fused"
        if not any(stage.keyed for stage in context.layout.stages):
            return "it divides the state of keyed operators among hosts, and the dataflow has none: use threshold"
        if self.host_type is not None and context.host_types and self.host_type not in context.host_types:
            return f"there is no host type {self.host_type!r} (there are: {', '.join(context.host_types)})"
        high, low = self.queues(context.target_latency)
        if low > high:
            return f"queue_low is {low:g} s; it must be at most queue_high, half of the target latency: {high:g} s"
        return None


class Round:
    """One planning round."""

    def __init__(self, policy: "RingBalance", observation: Observation, before: RingMemory | None) -> None:
        self.policy, self.observation, self.before = policy, observation, before
        target = observation.context.target_latency
        self.queue_high, self.queue_low = policy.queues(target)
        self.load = RingLoad(observation, policy.cpu_high, self.queue_high, target or math.inf)
        self.remarks: list[str] = []
        self.unknown: tuple[Unknown, ...] = ()
        self.pace = PACE if before is None else max(observation.time - before.time, 0.0)
        self.rings = {name: ring for name, ring in observation.rings.items() if name in self.load.units}
        self.seen = self._watched()

    def plan(self) -> Plan:
        observation, context = self.observation, self.observation.context
        actions = [*missing_hosts(observation, context.min_hosts, self._kind().name), *filling(observation)]
        self._sparse()
        self._exposed()
        changes: list[Action] = []
        if observation.usable and "SetTokens" in context.capabilities:
            changes = self._first_rings() or self._joined()
            if not changes and not self._unsettled:
                changes = self._relieved() or self._shrunk()
        return self._planned([*actions, *changes, *self._emptied()], changed=bool(changes))

    def _planned(self, actions: Iterable[Action], *, changed: bool = False) -> Plan:
        seen = replace(self.seen, changed=self.observation.time) if changed else self.seen
        return Plan(tuple(actions), seen, remarks=tuple(self.remarks), unknown=self.unknown)

    # -- what holds ----------------------------------------------------------------------------------------------------

    def _watched(self) -> RingMemory:
        now, before = self.observation.time, self.before or RingMemory(self.observation.time)
        levels, queues, policy = self.load.levels, self.load.queues, self.policy
        high = {h: before.high.get(h, now) for h in levels if levels[h] >= policy.cpu_high and queues[h] >= self.queue_high}
        low = {h: before.low.get(h, now) for h in levels if levels[h] <= policy.light and queues[h] <= self.queue_low}
        hosts = frozenset(self.observation.usable)
        # What is on its way runs where it was: use of CPU is of that, and not of the hosts that it is placed on.
        moving = any(task.operator in self.rings for task in self.observation.moving)
        moving = moving or any(not self.observation.follows(name, ring) for name, ring in self.rings.items())
        changed = now if moving or (self.before is not None and hosts != before.hosts) else before.changed
        return RingMemory(now, high, low, changed, hosts, self._other(before, changed))

    def _other(self, before: RingMemory, changed: float) -> Mapping[str, float]:
        """Cores that hosts are busy with beside state, by what was remembered and is measured.

        A measurement is of one batch or two and differs by a third from the next: by it alone, cuts go to and fro. It
        counts for less the less certain loads are, as when a skew begins, where the difference would be of two times.
        """
        known = {host: cores for host, cores in before.other.items() if host in self.load.other}
        if not self._measured_after(changed):
            return known
        weight = 1 - math.exp(-self.pace / OTHER)

        def learnt(host: str, cores: float) -> float:
            was, doubt = known.get(host, cores), self.load.uncertainty(host) / UNCERTAIN
            return was + weight / (1 + doubt**2) * (cores - was)

        return {host: learnt(host, cores) for host, cores in self.load.other.items()}

    def _measured_after(self, changed: float) -> bool:
        """Whether what is measured is of the time after a change, and what follows from it at once."""
        return self.observation.time - self.observation.hosts.age(Metric.CPU) >= changed + self.policy.cool_down

    def _read(self, operator: str, ring: Ring, hosts: tuple[str, ...], joins: str | None = None) -> Arc:
        """`hosts`, neighbours on `ring`, with what they own and what they are busy with beside that."""
        return self.load.arc(operator, ring, hosts, joins, self.seen.other)

    @cached_property
    def _unsettled(self) -> bool:
        """Whether what is measured may be of before the last change, or shortly after, or something needed is unknown."""
        self.unknown = self.load.lacking
        return not self._measured_after(self.seen.changed) or bool(self.unknown) or not self.rings

    @cached_property
    def _overloaded(self) -> list[str]:
        """Hosts that have been overloaded for long enough, the worst first."""
        since = self.observation.time - self.policy.patience
        return self._worst(host for host, began in self.seen.high.items() if began <= since)

    def _worst(self, hosts: Iterable[str]) -> list[str]:
        """`hosts`, that with the highest level first, to a hundredth: of full ones the one with the longest queue."""
        levels, queues = self.load.levels, self.load.queues
        return sorted(hosts, key=lambda host: (-round(levels[host], 2), -queues[host], host))

    # -- rings ---------------------------------------------------------------------------------------------------------

    def _first_rings(self) -> list[Action]:
        """Rings at even tokens for operators that have none."""
        observation = self.observation
        order = in_zones({host: observation.leases[host].zone for host in observation.usable})
        if self.rings:  # the order of hosts is the same on all rings, so that a host has one neighbour
            known = next(iter(self.rings.values()))
            order = (*known.nodes, *(host for host in order if host not in known))
        tokens = tuple(Ring.even(order).tokens.items())
        why = f"{counted(len(order), 'host')} at even tokens"
        return [SetTokens(name, tokens, why=why) for name in self.load.units if name not in self.rings]

    def _joined(self) -> list[Action]:
        """Tokens for usable hosts that are not on every ring yet, the same on all rings, so that a host has one neighbour:
        each beside an overloaded host, the worst first; without one between neighbours of one fault zone that it parts, or
        beside the fullest. Behind it, or before it where fewer neighbours are then of one zone (`_before`)."""
        rings, joining = (
            dict(self.rings),
            [h for h in self.observation.usable if any(h not in r for r in self.rings.values())],
        )
        lead = max(rings, key=lambda name: float(np.nan_to_num(self.load.loads(name)).sum()), default="")
        overloaded = [host for host in self._worst(self.seen.high) if host in rings.get(lead, ())]
        for host in joining:
            if host in rings[lead]:
                beside = rings[lead].before(host)
            elif overloaded:
                beside = overloaded.pop(0)
            else:
                beside = self._fullest(lead, rings[lead], host, self._parted(rings[lead], host))
            for name, ring in rings.items():
                if host not in ring:
                    known = beside if beside in ring else self._fullest(name, ring, host)
                    rings[name] = self._divided(name, ring, known, host)
        why = f"{', '.join(joining)} joined where hosts are fullest"
        return [
            SetTokens(name, tuple(ring.tokens.items()), why=why) for name, ring in rings.items() if ring != self.rings[name]
        ]

    def _fullest(self, operator: str, ring: Ring, joins: str, among: Sequence[str] = ()) -> str:
        """The host of `ring`, or of those `among` it, whose level is highest, by what it would own; where loads are unknown
        that with the longest interval. Of several that are as full, but for `gain`, one beside which `joins` has fewest
        neighbours of its own fault zone."""
        hosts, arc = among or ring.nodes, self._read(operator, ring, ring.nodes)
        levels = arc.levels(arc.owned)
        if np.isnan(levels).any() or not arc.loads.sum() > 0:
            full = {host: ring.length(host) for host in hosts}
        else:
            full = {host: level for host, level in zip(ring.nodes, levels.tolist(), strict=True) if host in hosts}
        least = (1 - self.policy.gain) * max(full.values())
        alike = {host: min(self._alike(ring, host, joins)) for host, level in full.items() if level >= least}
        return max(alike, key=lambda host: (-alike[host], full[host]))

    def _parted(self, ring: Ring, joins: str) -> list[str]:
        """Hosts of the zone of their neighbour counter-clockwise, which is not that of `joins`."""
        zones = {host: self.observation.leases[host].zone for host in (*ring.nodes, joins)}
        return [h for h in ring.nodes if ring.before(h) != h and zones[ring.before(h)] == zones[h] != zones[joins]]

    def _divided(self, operator: str, ring: Ring, host: str, joins: str) -> Ring:
        """`ring` with `joins`, which takes the second part of the interval of `host`, or before it the first."""
        before = self._before(ring, host, joins)
        arc = self._read(operator, ring, (host,), joins)
        if before:  # what `host` gives up lies at the other end
            arc = replace(arc, loads=arc.loads[::-1])
        owned = self._cut(arc)
        if owned is None:
            cut = middle(ring, host)
        else:
            cut = (arc.first + owned[1 if before else 0]) % arc.count / arc.count
        if cut in ring.tokens.values():
            cut = middle(ring, host)
        return ring.at(host, cut).with_node(joins, ring.tokens[host]) if before else ring.with_node(joins, cut)

    def _before(self, ring: Ring, host: str, joins: str) -> bool:
        """Whether `joins` comes before `host` and not behind it: fewer neighbours are of one fault zone then (section 6.6).

        So whoever replaces a lost host, whose neighbour clockwise took over and is the fullest, comes to where that was.
        """
        behind, before = self._alike(ring, host, joins)
        return before < behind

    def _alike(self, ring: Ring, host: str, joins: str) -> tuple[int, int]:
        """Neighbours of one fault zone among `host`, `joins` and those around: `joins` being behind `host`; before it."""
        near, far = ring.before(host), ring.successors(host, 1) or (host,)

        def alike(*hosts: str) -> int:
            zones = [self.observation.leases[each].zone for each in hosts]
            return sum(one == other for one, other in pairwise(zones))

        return alike(near, host, joins, *far), alike(near, joins, host, *far)

    def _sparse(self) -> None:
        """Say where state partitions are too few for the hosts."""
        hosts = len(self.observation.usable)
        for name in self.load.units:
            if (count := self.observation.context.partitions[name]) < hosts:
                self.remarks.append(
                    f"{name} has {counted(count, 'state partition')} for {counted(hosts, 'host')}: {hosts - count} of them "
                    "hold none of its state; give more (state_partitions) or fewer hosts"
                )

    def _exposed(self) -> None:
        """Say which fault zones hold state with all its copies, where there are enough zones to keep these apart."""
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

    def _relieved(self) -> list[Action]:
        """What is done for the first overloaded host that something can be done for; leases for all that nothing could."""
        stuck: list[str] = []
        if self._overloaded and self._bounded():
            return []
        for host in self._overloaded:
            if host not in next(iter(self.rings.values())):
                continue
            neighbours = self._asked(host)
            if neighbours is not None and self._doubtful(host):
                continue
            if neighbours is not None and (change := self._balanced(neighbours)) is not None:
                return [change]
            if self._divisible(host):
                stuck.append(host)
            else:
                self._cannot(host)
                if self.load.one_queue:
                    return []  # a query is as slow as its slowest host: it would gain nothing by more for the others
        return self._grown(stuck)

    def _doubtful(self, host: str) -> bool:
        """Whether a cut by the loads of `host` is to wait until they agree."""
        lasted = self.observation.time - self.seen.high[host]
        return self.policy.cut == "load" and lasted < DOUBTS and self.load.uncertainty(host) > UNCERTAIN

    def _asked(self, host: str) -> tuple[str, ...] | None:
        """`host` and its neighbours clockwise up to the first that is light; None where none is.

        Under `cut` "load" that is no condition where loads are known: so is what a change would gain, whatever the levels.
        Without a light one the first is asked, and those behind it as far as that helps.
        """
        ring, asked = next(iter(self.rings.values())), [host]
        for neighbour in ring.successors(host, len(ring)):
            asked.append(neighbour)
            if neighbour in self.seen.low:
                return tuple(asked)
        known = not any(np.isnan(self.load.loads(name)).any() for name in self.rings)
        return tuple(asked[:2]) if self.policy.cut == "load" and known and len(asked) > 1 else None

    def _balanced(self, hosts: tuple[str, ...]) -> SetTokens | None:
        """The change that evens out `hosts`, of the operator that keeps the first busiest and gives one; None without."""
        by_load = sorted(
            self.rings, key=lambda name: -float(np.nan_to_num(self._read(name, self.rings[name], hosts[:1]).loads).sum())
        )
        for name in by_load:
            if self.rings[name].successors(hosts[0], len(hosts) - 1) != hosts[1:]:
                continue  # its tokens were set by somebody else, in another order of hosts
            if (found := self._arc(name, hosts)) is None:
                continue
            arc, owned = found
            now, then = float(arc.levels(arc.owned).max()), float(arc.levels(owned).max())
            tokens = {**self.rings[name].tokens, **arc.tokens(owned)}
            why = f"{hosts[0]} is overloaded, {hosts[-1]} {'is light' if hosts[-1] in self.seen.low else 'takes a part'}"
            if more := len(arc.hosts) - len(hosts):
                why += f", {counted(more, 'host')} behind it take part"
            if now == now:
                why += f": {percent(now)} of the fullest's cores become {percent(then)}"
            return SetTokens(name, tuple(Ring(tokens).tokens.items()), why=why)
        return None

    def _arc(self, operator: str, hosts: tuple[str, ...]) -> tuple[Arc, tuple[int, ...]] | None:
        """The arc of `hosts` with its cut, under `cut` "load" of those behind them too; None where none would help."""
        ring = self.rings[operator]
        arc = self._read(operator, ring, hosts)
        owned = self._cut(arc)
        if self.policy.cut == "load" and not np.isnan(arc.loads).any():
            whole = self._read(operator, ring, (hosts[0], *ring.successors(hosts[0], len(ring))))
            return widened(whole, len(hosts), owned, self.policy.gain)
        return None if owned is None else (arc, owned)

    def _cut(self, arc: Arc) -> tuple[int, ...] | None:
        """Partitions of each host of `arc` after a change; None where it would not help."""
        half = halved(arc)
        if np.isnan(arc.loads).any() or not arc.loads.sum() > 0:
            return half
        wanted = (half, evened(arc)) if self.policy.cut == "half" else (evened(arc),)
        return next((owned for owned in wanted if owned is not None and self._lowers(arc, arc.owned, owned)), None)

    def _lowers(self, arc: Arc, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        return float(arc.levels(after).max()) < (1 - self.policy.gain) * float(arc.levels(before).max())

    def _divisible(self, host: str) -> bool:
        """Whether other hosts would lower the level of `host`: one beside it by a part of what it owns, or a quarter more
        of them by a part of its other work. Of that one host more takes less than `gain` where there are ten.

        State partitions that share no core are as quick alone: of what has no more than the host's cores nothing is gained.
        """
        there, width = len(self.observation.usable), self.observation.leases[host].type.width
        for name, ring in self.rings.items():
            arc = self._read(name, ring, (host,), host)
            crowded = arc.loads.size > width
            known = not np.isnan(arc.loads).any()
            fixed = arc.fixed[:1] * there / (there + max(1, there // 4))  # tasks without state are dealt to all hosts
            split = replace(arc, fixed=fixed.repeat(2))
            owned = None if not crowded else evened(split) if known else halved(arc)
            alone = (arc.loads.size, 0)
            if not known and owned is not None:
                return True
            before = float(arc.levels(alone)[0])
            after = float(split.levels(alone if owned is None else owned).max())
            if after < (1 - self.policy.gain) * before:
                return True
        return False

    def _bounded(self) -> bool:
        """Whether the largest partitions alone take all of the time, so that no change would help; says so."""
        largest = self.load.largest
        if not largest >= 1 / (1 + self.policy.gain):
            return False
        known = {name: np.nan_to_num(self.load.loads(name)) for name in self.load.units}
        name = max(known, key=lambda each: float(known[each].max(initial=0.0)))
        self.remarks.append(
            f"{', '.join(self._overloaded)} overloaded, and no host and no change of a ring would help: the largest state "
            f"partition of each stage keeps one core busy for {percent(largest)} of the time at this rate, number "
            f"{int(np.argmax(known[name]))} of {name} the longest; one key, or several in one partition, cannot be "
            "divided: aggregate in part before that key, or use hosts with faster cores"
        )
        return True

    def _cannot(self, host: str) -> None:
        """Say why `host` stays overloaded."""
        if (heaviest := self.load.heaviest(host)) is not None:
            name, number, cores = heaviest
            count = self.observation.context.partitions[name]
            threads = sum(self.observation.leases[each].type.width for each in self.observation.usable)
            more = f"give more than {counted(count, 'state partition')}, " if count <= threads else ""
            self.remarks.append(
                f"{host} is overloaded and no change of its ring would help: state partition {number} of {name} keeps "
                f"{cores:.2g} of its {self.observation.capacities[host]:.3g} cores busy, and one key, or several in one "
                f"partition, cannot be divided: {more}aggregate in part before that key, or use hosts with faster cores"
            )

    def _grown(self, hosts: list[str]) -> list[Action]:
        """Leases for those that are overloaded and found no light one."""
        observation, context = self.observation, self.observation.context
        if not hosts or observation.coming:
            return []
        kind = self._kind(hosts[0])
        levels = [level * observation.capacities[host] for host, level in self.load.levels.items() if level == level]
        need = math.fsum(levels) * self.load.growth(kind.start + self.pace)
        short = need / self.policy.cpu_high - math.fsum(observation.capacities[host] for host in observation.usable)
        wanted = max(1, math.ceil(short / (kind.cores * kind.speed) - ROUNDING))
        if self.load.without_pause:
            enough = self.load.enough(self.policy.gain)
            if math.isinf(enough):
                self.remarks.append(
                    f"{', '.join(hosts)}: records wait for micro-batches that follow one another without a pause, and no "
                    "number of hosts would shorten these enough: the time between tasks does not become less"
                )
                return []
            wanted = math.ceil(enough - len(observation.usable) - ROUNDING)
            if wanted <= 0:
                return []  # what waits becomes less
        why = f"{', '.join(hosts)} overloaded, and no light host would relieve {'it' if len(hosts) == 1 else 'them'}"
        room = context.max_hosts - len(observation.leases)
        # Each that joins takes a part of one host: of many at once most would join behind one another.
        wanted = min(wanted, max(AT_ONCE, len(observation.usable)))
        leases = min(wanted, max(0, room))
        if leases < wanted:
            self.remarks.append(f"{at_most(context.max_hosts)}, and {why}")
        if "LeaseHost" not in context.capabilities:
            leases = 0
        kinds = (kind, *spread(observation, kind, leases - 1))[:leases]
        return [LeaseHost(observation.host_name(n), each.name, each.region, why=why) for n, each in enumerate(kinds)]

    # -- scale-in ------------------------------------------------------------------------------------------------------

    def _shrunk(self) -> list[Action]:
        """The drain of a host that its neighbour can take over for, if any."""
        observation, policy = self.observation, self.policy
        usable, ring = observation.usable, next(iter(self.rings.values()))
        leaving = any(lease.state is HostState.DRAINING for lease in observation.leases.values())
        if len(usable) <= max(1, observation.context.min_hosts) or observation.coming or leaving or self.seen.high:
            return []
        if not all(seconds <= self.queue_low for seconds in self.load.waits.values()):
            return []
        kind = self._kind()
        calm = max(LEAST_CALM, kind.start) if policy.calm is None else policy.calm
        since, growth = observation.time - calm, self.load.growth(kind.start + self.pace)
        for host in sorted((h for h in usable if h in ring), key=lambda host: (self.load.levels[host], host)):
            heir = ring.successors(host, 1)[0]
            if not all(self.seen.low.get(each, math.inf) <= since for each in (host, heir)):
                continue
            cores = math.fsum(self.load.levels[each] * observation.capacities[each] for each in (host, heir))
            level = growth * cores / observation.capacities[heir]
            room = level <= (1 - policy.gain) * policy.cpu_high
            room = room and self.load.keeps_pace(self.load.levels[heir], level, policy.gain)
            if room and due_back(observation.leases[host], observation.time, self.pace):
                why = f"it and {heir} have been light for {calm:.0f} s: {heir} takes over, at {percent(level)} of its cores"
                return [DrainHost(host, why=why)]
        return []

    def _emptied(self) -> list[Action]:
        """Releases of draining hosts without tasks."""
        return [
            ReleaseHost(host, why="it holds no more tasks")
            for host, lease in self.observation.leases.items()
            if lease.state is HostState.DRAINING and not tasks_on(self.observation, host)
        ]

    def _kind(self, beside: str | None = None) -> HostType:
        """The type to lease; beside: of those with the lowest price, one in another fault zone than this host's and its
        neighbour's, if there is one."""
        types = self.observation.context.host_types
        if self.policy.host_type is not None:
            return types[self.policy.host_type]
        price = {kind: kind.price / kind.billing.unit / (kind.cores * kind.speed) for kind in types.values()}
        zones: set[str] = set()
        if beside is not None:
            ring = next(iter(self.rings.values()))
            zones = {self.observation.leases[each].zone for each in (beside, *ring.successors(beside, 1))}
        return min(types.values(), key=lambda kind: (price[kind], kind.zone in zones, kind.cores))
