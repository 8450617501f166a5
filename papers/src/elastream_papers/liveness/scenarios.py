"""Random dataflows, loads (low, a step to several times of it, low), prices and latencies.

A scenario follows from its seed, so that a failure can be replayed.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from elastream.core.hosts import Billing, HostType
from elastream.core.plant import Policy, Prospect
from elastream.core.qos import offered_rates
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Delivery, Edge, Kind, Operator
from elastream.dataflow.stages import Layout, lay_out
from elastream.errors import CloudError, ElastreamError
from elastream.loads.pattern import Pattern, steps
from elastream.policies.btu import Btu
from elastream.policies.by_load import ByLoad
from elastream.policies.e2df.policy import E2df
from elastream.policies.elastic_allocator.policy import ElasticAllocator
from elastream.policies.horizon.policy import Horizon
from elastream.policies.otd import Otd
from elastream.policies.queue_threshold import QueueThreshold
from elastream.policies.static import Static
from elastream.policies.threshold import Threshold
from elastream.simulator import Settings, SimulatedPlant, Travel, make_plant

TRIALS = 20_000  # limit of the allocation search, to save time
# policies with their defaults, by seconds between rounds
POLICIES: Mapping[str, Callable[[float], Policy]] = {
    "threshold": lambda _: Threshold(),
    "btu": lambda period: Btu(period=period),
    "queue_threshold": lambda _: QueueThreshold(),
    "e2df": lambda period: E2df(period=period, infrastructure_period=2 * period),
    "by_load": lambda _: ByLoad(),
    "static": lambda _: Static(hosts="peak"),
    "otd": lambda period: Otd(period=period, hosts=4),
    "elastic_allocator": lambda period: ElasticAllocator(period=period, hosts=4, trials=TRIALS),
    "horizon": lambda _: Horizon(),
}
FIXED = frozenset({"static", "otd", "elastic_allocator"})  # policies that keep a number of hosts whatever the load
# change no parallelism, for sources of maximal width (Autopilot); they run chained only
HOSTS_ONLY = frozenset({"by_load"})
WIDE = 512  # instances of such a source: more than a case has slots
MOST_INSTANCES = 15  # most instances of an operator: a policy may add one per round
HALVINGS = 6  # times that hosts halve or double between loads
QUIET = 10  # rounds at the end of a constant load without changes


@dataclass(frozen=True, slots=True)
class LivenessCase:
    """A seed, the policy, and chained or unchained stages."""

    seed: int
    policy: str
    fused: bool

    def __str__(self) -> str:
        return f"{self.policy} {'fused' if self.fused else 'apart'} {self.seed}"


@dataclass(frozen=True)
class Scenario:
    """Content of a case.

    period: seconds between rounds. own: of the policy's slowest rounds. ends: of the three phases.
    """

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

    def policy(self, name: str) -> Policy:
        """Return a policy for this scenario; `static` has the hosts that the peak needs by declared costs."""
        return POLICIES[name](self.period).prepared(Prospect(self.layout, self.types, self.load, self.ends[-1]))


def cases(number: int, first: int = 0, policies: Sequence[str] = tuple(POLICIES)) -> list[LivenessCase]:
    """Return `number` cases from seed `first` on, policies and plants in turn."""
    kinds = [(policy, fused) for policy in policies for fused in (True, False) if fused or policy not in HOSTS_ONLY]
    return [LivenessCase(seed, *kinds[seed % len(kinds)]) for seed in range(first, first + number)]


def scenario(case: LivenessCase, patience: float = 1.0) -> Scenario:
    """Return the scenario of a case, equal for equal seeds. patience: factor on the length of loads."""
    draw = random.Random(case.seed)
    types = _types(draw, case.fused)
    cheapest = min(types, key=lambda kind: kind.price_rate / (kind.cores * kind.speed))
    work = 10 ** draw.uniform(-5, -1.5)
    graph, joins = _graph(draw, work, min(kind.cores for kind in types), fused=case.fused)
    layout = lay_out(graph, chained=case.fused)
    visits = _visits(graph)
    total = math.fsum(visits[o.name] * (o.alternates[0].cost or 0.0) for o in graph.operators if o.alternates)
    # Rounds are not much shorter than the minimum paid time; otherwise a case would have thousands.
    unit = max(max(kind.billing.unit, kind.billing.minimum) for kind in types)
    periods = (2.0, 5.0) if case.fused else (5.0, 15.0, 60.0)
    period = draw.choice([each for each in periods if unit <= 100 * each] or periods[-1:])
    policy = POLICIES[case.policy](period)
    own = max(period, policy.infrastructure_period if isinstance(policy, E2df) else 0.0)
    settings = Settings(
        monitor=period if case.fused else period / draw.choice((1, 2, 4)), travel=Travel.COHORTS, joins=joins, history=40
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
        slot = min(kind.cores * kind.speed / kind.width for kind in types)
        high = min(max(min(high, 12.0 * slot / total), 1.6 * first), 14.0 * slot / total)  # a keyed stage has sixteen tasks
    else:
        high = max(min(high, MOST_INSTANCES * single * slowest), 1.6 * first)
    instances = high / single / slowest
    # If hosts do not suffice although their work seems to fit, their number doubles at most; at most half are released.
    sizing = policy.hosts if isinstance(policy, ByLoad) else policy
    settle = (sizing.settle if isinstance(sizing, Threshold) else None) or 0.0
    doubling = HALVINGS * (cheapest.start + settle) if settle else 0.0
    up = patience * max(20 * own, 2 * cheapest.start + 16 * own, (instances + 16) * own, doubling)
    down = patience * max(30 * own, 1.6 * unit + 20 * own, 60.0 + QUIET * own, HALVINGS * settle)
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
    """Return a random dataflow of 1 to 8 operators, about `work` core-seconds per record."""
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
    graph = _separating(Graph(f"random{number}", tuple(operators), tuple(edges)))
    rates = _visits(graph)
    alike = {
        o.name
        for o in graph.operators
        if len(graph.inputs[o.name]) == 2 and len(sources) == 1
        and math.isclose(*(rates[e.source] * _selectivity(graph, e.source) for e in graph.inputs[o.name]))
    }  # fmt: skip
    return graph, frozenset() if fused else frozenset(name for name in sorted(alike) if draw.random() < 0.5)


def _separating(graph: Graph) -> Graph:
    """Return `graph` with edges durable that lead to another query, but for cycles."""
    layout = lay_out(graph)

    def within(edge: Edge) -> bool:
        return layout.circular or layout.stage_of[edge.source].segment == layout.stage_of[edge.target].segment

    return replace(graph, edges=tuple(replace(edge, durable=None) if within(edge) else edge for edge in graph.edges))


def _selectivity(graph: Graph, name: str) -> float:
    alternates = graph.by_name[name].alternates
    return (alternates[0].selectivity or 1.0) if alternates else 1.0


def _visits(graph: Graph) -> dict[str, float]:
    """Return records at each operator per record of a source, all sources being equal."""
    sources = graph.sources
    weights = {source.name: 1 / len(sources) for source in sources}
    return offered_rates(graph, weights, {name: _selectivity(graph, name) for name in graph.by_name})


def _first_hosts(layout: Layout, types: Sequence[HostType], settings: Settings) -> int:
    loads = {source.name: steps((1.0, 1.0)) for source in layout.graph.sources}
    for hosts in range(1, 20):
        try:
            make_plant(layout, host_types=types, loads=loads, settings=settings, hosts=hosts)
        except CloudError:
            continue
        return hosts
    raise ElastreamError("twenty hosts hold no instance of every operator")
