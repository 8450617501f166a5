"""Random dataflows, loads, prices and start times, on which every policy that sizes anything must act, or say why not.

A policy is tried on a dataflow that nobody wrote for it: a low load, a step to several times what the first hosts can do,
and back. What is held of it is in `Found`. A case is a seed, so that a failure can be replayed; the tests try a few cases,
and `benchmarks/liveness.py` thousands.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from elastream.control.loop import Loop
from elastream.model.action import CancelDrain, LeaseHost, MoveTask, RenewHost, SetParallelism
from elastream.model.cloud import Billing, HostType
from elastream.model.decision import Decision
from elastream.model.errors import CloudError, ElastreamError
from elastream.model.graph import Alternate, Delivery, Edge, Graph, Kind, Operator
from elastream.model.observation import Context, Frame, Metric, Observation
from elastream.model.plant import Policy
from elastream.model.promises import PlantKind, Rows
from elastream.model.qos import offered_rates
from elastream.model.stages import Layout, lay_out
from elastream.planning.policies.btu import Btu, service_levels
from elastream.planning.policies.by_load import ByLoad
from elastream.planning.policies.e2df import E2df
from elastream.planning.policies.queue_threshold import QueueThreshold
from elastream.planning.policies.threshold import Threshold
from elastream.recording.observer import Ending, Header
from elastream.simulation import Settings, SimulatedPlant, Travel, make_plant
from elastream.workload.pattern import Pattern
from elastream.workload.shapes import steps

__all__ = ["POLICIES", "Found", "LivenessCase", "Scenario", "cases", "scenario", "tried"]

POLICIES: Mapping[str, Callable[[float], Policy]] = {
    "threshold": lambda _: Threshold(),
    "btu": lambda period: Btu(period=period),
    "queue_threshold": lambda _: QueueThreshold(),
    "e2df": lambda period: E2df(period=period, infrastructure_period=2 * period),
    "by_load": lambda _: ByLoad(),
}
"""Policies that size anything, with their defaults, for rounds that are so many seconds apart."""
HOSTS_ONLY = frozenset({"by_load"})
"""Policies that change no parallelism, for queries whose sources are as wide as they will ever be: those of Autopilot."""
WIDE = 64
"""Instances that such a source has: more than the hosts of a case have slots."""
BY_QUEUE = frozenset({"btu", "queue_threshold"})
"""Policies that act on what waits and is late, not on how busy anything is."""
CYCLING = frozenset({"btu", "queue_threshold"})
"""Policies that, as published, give up an instance until a queue grows: they have no fixed point under a constant load."""
WAITING = 50.0
"""Records waiting from which VISP's policies act."""
ROUNDS = 3
"""Rounds within which a policy acts, or says what it lacks."""
GROWTH = 0.05
"""Part of the records arriving in a round by which what waits must grow for the round to be one of overload."""
MOST_INSTANCES = 15
"""Instances of one operator that a case needs at most: a policy may add one a round."""
LOST = 40
"""Rounds' records at the high load; with more of them waiting a case has failed, and ends."""
QUIET = 10
"""Rounds at the end of a constant load in which nothing may happen."""


@dataclass(frozen=True, slots=True)
class LivenessCase:
    """A seed, the policy, and whether stages are fused as on Spark."""

    seed: int
    policy: str
    fused: bool

    def __str__(self) -> str:
        return f"{self.policy} {'fused' if self.fused else 'apart'} {self.seed}"


@dataclass(frozen=True)
class Scenario:
    """What a case is. period: seconds between rounds. own: of the policy's slowest rounds. ends: of the three phases."""

    layout: Layout
    types: tuple[HostType, ...]
    hosts: int
    load: Mapping[str, Pattern]
    settings: Settings
    target: float | None
    period: float
    own: float
    ends: tuple[float, float, float]
    max_hosts: int
    rates: tuple[float, float]
    parallelism: Mapping[str, int]

    def plant(self) -> SimulatedPlant:
        """The plant at time 0."""
        return make_plant(
            self.layout,
            host_types=self.types,
            loads=self.load,
            seed=1,
            settings=self.settings,
            hosts=self.hosts,
            parallelism=self.parallelism,
            max_hosts=self.max_hosts,
            target_latency=self.target,
            seconds=self.ends[-1],
        )


@dataclass(frozen=True, slots=True)
class Round:
    """The truth at a planning round, whatever the policy saw. waiting: records. offered: records due so far.

    moving: whether hosts or instances asked for are still to come.
    """

    time: float
    waiting: float
    offered: float
    hosts: int
    usable: int
    moving: bool
    latency: float
    lacking: frozenset[tuple[Rows, Metric, str]]


@dataclass(frozen=True)
class Found:
    """What came of a case. silent: rounds of silence under overload. broken: a sentence for each other property that fails.

    unpromised: metrics that the plant promised and did not yield. refused: why the policy cannot work there, in its words.
    """

    case: LivenessCase
    silent: int = 0
    broken: tuple[str, ...] = ()
    unpromised: tuple[str, ...] = ()
    refused: str = ""

    @property
    def holds(self) -> bool:
        """Whether every property held."""
        return not (self.silent or self.broken or self.unpromised)


def cases(number: int, first: int = 0, policies: Sequence[str] = tuple(POLICIES)) -> list[LivenessCase]:
    """`number` cases from seed `first` on, policies and plants in turn."""
    kinds = [(policy, fused) for policy in policies for fused in (True, False) if fused or policy not in HOSTS_ONLY]
    return [LivenessCase(seed, *kinds[seed % len(kinds)]) for seed in range(first, first + number)]


def scenario(case: LivenessCase) -> Scenario:
    """The scenario of a case; the same for the same seed, whatever the policy."""
    draw = random.Random(case.seed)
    types = _types(draw, case.fused)
    cheapest = min(types, key=lambda kind: kind.price / kind.billing.unit / (kind.cores * kind.speed))
    work = 10 ** draw.uniform(-5, -1.5)
    graph, joins = _graph(draw, work, min(kind.cores for kind in types), fused=case.fused)
    layout = lay_out(graph, fused=case.fused)
    visits = _visits(graph)
    total = math.fsum(visits[o.name] * (o.alternates[0].cost or 0.0) for o in graph.operators if o.alternates)
    period = draw.choice((2.0, 5.0) if case.fused else (5.0, 15.0, 60.0))
    own = max(period, getattr(POLICIES[case.policy](period), "infrastructure_period", 0.0))
    settings = Settings(
        monitor=1.0 if case.fused else period / draw.choice((1, 2, 4)), travel=Travel.COHORTS, joins=joins, history=40
    )
    hosts = _first_hosts(layout, types, settings)
    single = min(
        o.cores / (visits[o.name] * (o.alternates[0].cost or 0.0)) for o in graph.operators if o.alternates
    )  # records/s that one instance of the busiest operator works off, on a core of speed 1
    slowest = min(kind.speed for kind in types)
    there = hosts * types[0].cores * types[0].speed / total
    first = (there if case.fused else min(there, single * slowest)) * (0.7 if case.fused else 1.0)
    low = draw.uniform(0.1, 0.35) * first
    grows = draw.uniform(2.0, 5.0)
    high = max(grows * first, draw.uniform(1.2, 4.0) * cheapest.cores * cheapest.speed / total)
    if case.fused:
        high = max(min(high, 12.0 / total), 1.6 * first)  # a keyed stage has sixteen tasks
    else:
        high = max(min(high, MOST_INSTANCES * single * slowest), 1.6 * first)
    instances = high / single / slowest
    up = max(20 * own, 2 * cheapest.start + 16 * own, (instances + 16) * own)
    unit = max(max(kind.billing.unit, kind.billing.minimum) for kind in types)
    down = max(30 * own, 1.6 * unit + 20 * own, 60.0 + QUIET * own)
    begin = max(6 * own, 20.0)
    target = draw.choice((None, 1.0, 2.0, 6.0))
    floor = 8.0 if case.fused else max(2.0, 4 * sum(_service(o) / slowest for o in graph.operators), 2 * settings.monitor)
    names = [source.name for source in graph.sources]
    shares = [draw.uniform(0.3, 1.0) for _ in names]
    load = {
        name: steps((low * part / sum(shares), begin), (high * part / sum(shares), up), (low * part / sum(shares), down))
        for name, part in zip(names, shares, strict=True)
    }
    return Scenario(
        layout, types, hosts, load, settings, None if target is None else target * floor, period, own,
        (begin, begin + up, begin + up + down), 400, (low, high),
        {stage.name: WIDE for stage in layout.stages if not stage.keyed} if case.policy in HOSTS_ONLY else {},
    )  # fmt: skip


def _service(operator: Operator) -> float:
    return (operator.alternates[0].cost or 0.0) / operator.cores if operator.alternates else 0.0


def _types(draw: random.Random, fused: bool) -> tuple[HostType, ...]:
    billing = draw.choice((Billing(1.0, 60.0), Billing(60.0), Billing(300.0)) + (() if fused else (Billing(3600.0),)))
    start = draw.choice((0.0, 5.0, 20.0, 45.0) if fused else (5.0, 30.0, 60.0, 180.0))
    found = []
    for number in range(draw.randint(1, 3)):
        cores = draw.choice((0.5, 1.0, 2.0, 4.0))
        slots = 10_000 if not fused and draw.random() < 0.5 else 0
        price = cores * draw.uniform(0.7, 1.4)
        speed = draw.choice((1.0, 1.0, 0.6, 1.5))
        memory = draw.choice((2000.0, 4000.0))
        found.append(
            HostType(
                f"t{number}", cores=cores, speed=speed, memory=memory, price=price, billing=billing, slots=slots,
                start=start, stop=draw.choice((0.0, 5.0)),
            )
        )  # fmt: skip
    return tuple(found)


def _graph(draw: random.Random, work: float, most: float, *, fused: bool) -> tuple[Graph, frozenset[str]]:
    """A random dataflow of 1 to 8 operators, about `work` core-seconds a record; no instance needs more than `most`."""
    number = draw.randint(1, 8)
    sources = [f"s{n}" for n in range(2 if draw.random() < 0.25 else 1)]
    operators = [Operator(name, Kind.SOURCE) for name in sources]
    edges: list[Edge] = []
    names = list(sources)
    levels = draw.random()
    for n in range(number):
        name = f"o{n}"
        keyed = draw.random() < 0.3
        inputs = [sources[n]] if n < len(sources) else draw.sample(names, min(len(names), draw.choice((1, 1, 1, 2))))
        durable = "parquet" if fused and not keyed and len(inputs) == 1 and draw.random() < 0.1 else None
        edges += [Edge(each, name, Delivery.KEYED if keyed else Delivery.DUPLICATE, durable=durable) for each in inputs]
        cost = work * draw.choice((0.1, 0.3, 1.0)) / number
        cores = draw.choice([c for c in (0.1, 0.25, 0.5, 1.0) if c <= most])
        level = draw.choice((1.0, 5.0, 20.0)) + 5 * cost / cores if levels < 0.5 else None
        alternate = Alternate(name, cost=cost, selectivity=draw.choice((1.0, 1.0, 0.2, 2.0)))
        operators.append(
            Operator(
                name, Kind.KEYED if keyed else Kind.TRANSFORM, (alternate,), key=("k",) if keyed else (),
                max_duration=level, cores=cores, memory=draw.choice((0.0, 200.0)),
            )
        )  # fmt: skip
        names.append(name)
    for left in [name for name in names if name not in {edge.source for edge in edges}]:
        operators.append(Operator(f"out_{left}", Kind.SINK, cores=0.0))
        edges.append(Edge(left, f"out_{left}"))
    graph = Graph(f"random{number}", tuple(operators), tuple(edges))
    rates = _visits(graph)
    alike = {
        o.name
        for o in graph.operators
        if len(graph.inputs[o.name]) == 2 and len(sources) == 1
        and math.isclose(*(rates[e.source] * _selectivity(graph, e.source) for e in graph.inputs[o.name]))
    }  # fmt: skip
    return graph, frozenset() if fused else frozenset(name for name in sorted(alike) if draw.random() < 0.5)


def _selectivity(graph: Graph, name: str) -> float:
    alternates = graph.by_name[name].alternates
    return (alternates[0].selectivity or 1.0) if alternates else 1.0


def _visits(graph: Graph) -> dict[str, float]:
    """Records at each operator per record of a source, the sources taking equal parts."""
    sources = graph.sources
    given = {source.name: 1 / len(sources) for source in sources}
    return offered_rates(graph, given, {name: _selectivity(graph, name) for name in graph.by_name})


def _first_hosts(layout: Layout, types: Sequence[HostType], settings: Settings) -> int:
    """Hosts of the first type that hold an instance of every operator."""
    loads = {source.name: steps((1.0, 1.0)) for source in layout.graph.sources}
    for hosts in range(1, 20):
        try:
            make_plant(layout, host_types=types, loads=loads, settings=settings, hosts=hosts)
        except CloudError:
            continue
        return hosts
    raise ElastreamError("twenty hosts hold no instance of every operator")


def tried(case: LivenessCase) -> Found:
    """Run a case and hold it to every property."""
    given = scenario(case)
    plant = given.plant()
    rounds: list[Round] = []

    def look(seen: Observation) -> float:
        rounds.append(_truth(plant, given, seen))
        return rounds[-1].waiting

    policy = POLICIES[case.policy](given.period)
    if sentence := getattr(policy, "unfit", lambda _: "")(plant.context):
        return Found(case, refused=sentence)
    plant.advance(given.period)
    watch = _Watch(look, LOST * given.rates[1] * given.own)
    length = given.ends[-1] - given.period
    loop = Loop(
        plant, policy, monitor=given.period, period=given.period, observers=[watch], limit=length, to_the_limit=True
    )
    watch.stop = loop.stop
    loop.run()
    if watch.fault:
        return Found(case, broken=(f"fault: {watch.fault}",))
    kind = PlantKind.FUSED if case.fused else PlantKind.APART
    paired = list(zip(rounds, watch.decisions.values(), strict=False))
    silent = _silent(case, given, paired)
    broken = [*_dishonest(paired)]
    if rounds[-1].waiting > watch.enough:
        broken += [f"{rounds[-1].waiting:,.0f} records wait at {rounds[-1].time:g} s, with {rounds[-1].usable} hosts"]
    else:
        broken += [*_provided(given, paired), *_given_back(given, paired), *_fixed(case, given, paired)]
    return Found(case, silent, tuple(broken), tuple(_withheld(given, kind, paired)))


class _Watch:
    """Keeps decisions and shows observations; stops the run at a fault, or once more than `enough` records wait."""

    def __init__(self, look: Callable[[Observation], float], enough: float) -> None:
        self._look = look
        self.stop: Callable[[], None] = lambda: None
        self.enough = enough
        self.decisions: dict[int, Decision] = {}
        self.fault = ""

    def started(self, header: Header) -> None: ...

    def observed(self, observation: Observation) -> None:
        if self._look(observation) > self.enough:
            self.stop()

    def decided(self, decision: Decision) -> None:
        self.decisions[decision.round] = decision
        if decision.faults:
            self.fault = f"{decision.time:g} s: {decision.faults[0].traceback}"
            self.stop()

    def ended(self, ending: Ending) -> None: ...


def _truth(plant: SimulatedPlant, given: Scenario, seen: Observation) -> Round:
    stations = plant.network.stations
    waiting = math.fsum(station.queued + station.in_service for station in stations)
    starting = any(math.isfinite(free) and free > seen.time for s in stations for free in s.crew.free if s.placed)
    starting = starting and any(
        free > seen.time and not math.isfinite(done)
        for s in stations
        for free, done in zip(s.crew.free.tolist(), s.crew.finish.tolist(), strict=True)
    )
    latency = seen.latency().value
    return Round(
        seen.time,
        waiting,
        math.fsum(pattern.count(seen.time) for pattern in given.load.values()),
        len(seen.leases),
        len(seen.usable),
        bool(seen.coming) or starting,
        math.nan if latency is None else latency,
        frozenset(unknown_in(seen)),
    )


def unknown_in(seen: Observation) -> Iterator[tuple[Rows, Metric, str]]:
    """Every metric that is unknown in an observation, by rows and row; row "" where it is unknown of each."""
    for rows, frame in (
        (Rows.APPLICATION, seen.application),
        (Rows.OPERATOR, seen.operators),
        (Rows.HOST, seen.hosts),
        (Rows.TASK, seen.tasks),
    ):
        yield from _unknown_of(rows, frame)


def _unknown_of(rows: Rows, frame: Frame) -> Iterator[tuple[Rows, Metric, str]]:
    ids = () if rows is Rows.TASK else frame.ids
    for metric in Metric:
        column = frame.column(metric)
        lacking = column != column
        if lacking.all():
            yield rows, metric, ""
        for row, name in enumerate(ids):
            if lacking[row]:
                yield rows, metric, name


Paired = list[tuple[Round, Decision]]


def _silent(case: LivenessCase, given: Scenario, paired: Paired) -> int:
    """Overloaded rounds, the third in a row or later, in which a policy had not acted lately and names nothing it lacks."""
    steps = max(1, math.ceil(given.own / given.period))
    back, silent = ROUNDS * steps, 0
    # Seconds that records may wait by what is promised of them, at all queues together.
    levels = service_levels(Context(given.layout, target_latency=given.target))
    allowed = max(given.target or 0.0, math.fsum(levels.values()))
    for at in range(back, len(paired)):
        window = paired[at - back : at + 1]
        grows = all(
            now.waiting - before.waiting > GROWTH * (now.offered - before.offered) > 0
            for (before, _), (now, _) in pairwise(window)
        )
        now, decision = paired[at]
        rate = (now.offered - paired[at - back][0].offered) / (now.time - paired[at - back][0].time)
        late = now.waiting > max(WAITING, rate * allowed) * 2
        if not grows or now.hosts >= given.max_hosts or (case.policy in BY_QUEUE and not late):
            continue
        acted = any(_grows(decision) for _, decision in window) or any(round.moving for round, _ in window)
        if not acted and not decision.unknown:
            silent += 1
    return silent


def _grows(decision: Decision) -> bool:
    return any(isinstance(o.action, LeaseHost | CancelDrain | SetParallelism | MoveTask) for o in decision.done)


def _dishonest(paired: Paired) -> Iterator[str]:
    for round, decision in paired:
        for each in decision.unknown:
            if (each.rows, each.metric, each.row) not in round.lacking:
                yield f"at {round.time:g} s it says '{each}', which is known"
                return


def _provided(given: Scenario, paired: Paired) -> Iterator[str]:
    """By the end of the high load enough is provided: what waits falls, or is no longer late; and at the end nothing is."""
    for name, end in (("high", given.ends[1]), ("low", given.ends[2])):
        phase = [round for round, _ in paired if round.time <= end]
        tail = phase[-10:]
        rate = (tail[-1].offered - tail[0].offered) / (tail[-1].time - tail[0].time)
        allowed = max(WAITING, rate * (given.target or max(10.0, 2 * given.settings.monitor)))
        if tail[-1].waiting > allowed and tail[-1].waiting > tail[0].waiting * 0.99:
            yield (
                f"at the end of the {name} load {tail[-1].waiting:,.0f} records wait, and no fewer than ten rounds before: "
                f"{tail[-1].usable} hosts"
            )
        latency = tail[-1].latency
        if given.target is not None and latency > given.target and tail[-1].waiting <= rate * given.target / 4:
            yield f"at the end of the {name} load latency is {latency:.1f} s, the target {given.target:.1f} s"


def _given_back(given: Scenario, paired: Paired) -> Iterator[str]:
    """By the end of the low load hosts went back, as far as the work needs few of them."""
    most = max(round.usable for round, _ in paired)
    last = paired[-1][0]
    if most >= given.hosts + 3 and last.hosts >= most:
        yield f"{last.hosts} hosts at the end of the low load, as many as ever; {given.hosts} at the start"


def _fixed(case: LivenessCase, given: Scenario, paired: Paired) -> Iterator[str]:
    """In the last rounds of a constant load nothing happens."""
    if case.policy in CYCLING:
        return
    steps = max(1, math.ceil(given.own / given.period))
    for name, end in (("high", given.ends[1]), ("low", given.ends[2])):
        tail = [(round, d) for round, d in paired if end - QUIET * steps * given.period < round.time <= end]
        acting = [
            (round.time, type(o.action).__name__)
            for round, d in tail
            for o in d.done
            if not isinstance(o.action, RenewHost)
        ]
        if acting and tail[-1][0].waiting < WAITING + given.rates[1] * 2:
            what, when = acting[0][1], acting[0][0]
            yield f"at the end of the {name} load it still acts: {what} at {when:g} s, {len(acting)} actions"


def _withheld(given: Scenario, kind: PlantKind, paired: Paired) -> Iterator[str]:
    """Metrics that the plant promises and leaves unknown for three rounds while records pass."""
    graph = given.layout.graph
    begun: dict[tuple[Rows, Metric, str], int] = {}
    for metric in Metric:
        for operator in graph.operators:
            conditions = [
                [each.holds(given.layout, given.target, operator) for each in promise.given]
                for promise in metric.promised(Rows.OPERATOR, kind, operator)
            ]
            if any(all(held is True for held in one) for one in conditions):
                begun[Rows.OPERATOR, metric, operator.name] = 0
    rounds = [round for round, _ in paired]
    for before, now in pairwise(rounds):
        busy = now.offered > before.offered
        for key in begun:
            begun[key] = begun[key] + 1 if busy and key in now.lacking else 0
            if begun[key] == ROUNDS + 2:
                yield f"{key[1]} of {key[2]!r} is promised and unknown until {now.time:g} s"
