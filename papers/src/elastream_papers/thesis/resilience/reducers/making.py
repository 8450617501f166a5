"""Builds a simulated ring of reducers from a dataflow, its keys and its hosts."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from elastream.core.hosts import HostType, by_zones
from elastream.core.observation import Context
from elastream.core.ring import in_zones
from elastream.core.wording import counted
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Kind
from elastream.dataflow.stages import Layout
from elastream.errors import CloudError, DataflowError, InputError
from elastream.simulator.arrivals import Load
from elastream.simulator.pool import SimulatedHosts
from elastream.simulator.settings import HostFailure, Settings
from elastream_papers.thesis.resilience.reducers.cluster import Reducers
from elastream_papers.thesis.resilience.reducers.keys import KeySpace
from elastream_papers.thesis.resilience.reducers.plant import ReducersPlant
from elastream_papers.thesis.resilience.reducers.settings import LinkFailure, Protection, ReducerSettings, ZoneFailure
from elastream_papers.thesis.resilience.reducers.streams import Streams

if TYPE_CHECKING:
    from elastream_papers.thesis.resilience.reducers.plant import ReducersPlant


def make_reducers(  # noqa: PLR0913
    layout: Layout,
    keys: KeySpace,
    *,
    host_types: Sequence[HostType],
    hosts: int | Sequence[str],
    loads: Mapping[str, Load] | None = None,
    seconds: float = math.inf,
    settings: ReducerSettings | None = None,
    seed: int = 0,
    max_hosts: int = 1_000_000,
    min_hosts: int = 1,
    target_latency: float | None = None,
) -> ReducersPlant:
    """Return a ring at time 0: even tokens, neighbours in distinct fault zones if possible.

    layout: sources, mappers, one keyed operator, its sinks. hosts: number of the first type, or types. loads: replace
    declared ones, by source. seconds: their limit. Raises DataflowError for another shape or a source without load or
    keys, CloudError without a host, InputError for other invalid values.
    """
    settings = settings or ReducerSettings(partitions=keys.partitions)
    graph, types = layout.graph, {kind.name: kind for kind in host_types}
    keyed, cost, factors = _shape(graph, settings)
    merged = {**graph.loads, **(loads or {})}
    for source in graph.sources:
        if source.name not in merged:
            raise DataflowError(f"source {source.name!r} has no load; the simulation needs one")
        if source.name not in keys.sources:
            raise DataflowError(f"source {source.name!r} has no keys; they are of {', '.join(keys.sources)}")
    if not types:
        raise CloudError("the simulation has no host type: declare at least one")
    _refuse_ring(hosts if isinstance(hosts, int) else len(hosts), keys, settings)
    if isinstance(hosts, int):
        hosts = [each.name for each in by_zones(host_types, hosts, copies=settings.replicas)]
    order = [keys.sources.index(source.name) for source in graph.sources]
    streams = Streams(
        {source.name: merged[source.name] for source in graph.sources}, keys.shares[order], settings.mappers, seed, seconds,
        [factors[source.name] for source in graph.sources],
    )  # fmt: skip
    capabilities = {"LeaseHost", "RenewHost", "DrainHost", "CancelDrain", "ReleaseHost"}
    if settings.protection is Protection.PEERS:
        capabilities.add("SetTokens")
    context = Context(
        layout, types, target_latency, max_hosts, min_hosts, frozenset(capabilities), frozenset(),
        {keyed: settings.partitions}, settings.replicas,
    )  # fmt: skip
    failures = tuple(fault for fault in settings.faults if isinstance(fault, HostFailure))
    pool = SimulatedHosts(types, 1, Settings(monitor=settings.monitor, faults=failures), seed)
    for number, kind in enumerate(hosts):
        pool.lease(f"h{number + 1}", types[kind], 0.0, running=True)
    reducers = Reducers(streams, keys.of_sources(order), settings, cost, seed)
    plant = ReducersPlant(context, reducers, pool, keyed, factors)
    schedule(plant)
    plant.begin(in_zones({lease.host: lease.zone for lease in pool.leases}))
    return plant


def _refuse_ring(hosts: int, keys: KeySpace, settings: ReducerSettings) -> None:
    if hosts < 1:
        raise CloudError("a ring needs at least one host")
    if settings.partitions != keys.partitions:
        raise InputError(f"keys lie in {keys.partitions} partitions, the ring has {settings.partitions}")
    if settings.replicas >= hosts:
        raise InputError(
            f"replicas: {settings.replicas} with {counted(hosts, 'host')}; at most {hosts - 1}: each copy is on a host of "
            "its own"
        )
    if settings.partitions < hosts:
        raise InputError(f"{settings.partitions} partitions on {hosts} hosts; a host needs at least one")


def _shape(graph: Graph, settings: ReducerSettings) -> tuple[str, float, dict[str, float]]:  # noqa: C901
    """Return (keyed operator, core-seconds per tuple from it on, tuples per record by source), or raise DataflowError."""
    keyed = [each for each in graph.operators if each.kind is Kind.KEYED]
    if len(keyed) != 1:
        raise DataflowError(
            f"dataflow {graph.name!r} has {counted(len(keyed), 'keyed operator')}; a ring of reducers has exactly one"
        )
    made = {source.name: 0.0 for source in graph.sources}
    for source in graph.sources:
        reach = {source.name: 1.0}
        for name in graph.order:
            if name not in reach or name == keyed[0].name:
                continue
            operator = graph.by_name[name]
            out = reach[name] * (1.0 if not operator.alternates else _value_or(operator.alternates[0].selectivity, 1.0))
            for edge in graph.outputs[name]:
                reach[edge.target] = reach.get(edge.target, 0.0) + out
        made[source.name] = reach.get(keyed[0].name, 0.0)
        if not made[source.name] > 0:
            raise DataflowError(f"no record of source {source.name!r} comes to the keyed operator {keyed[0].name!r}")
    cost, reach = 0.0, {keyed[0].name: 1.0}
    for name in graph.order:
        operator = graph.by_name[name]
        if name not in reach or operator.kind is Kind.SINK:
            continue
        own = operator.alternates[0].cost if operator.alternates else None
        if own is None and operator is not keyed[0]:
            raise DataflowError(f"operator {name!r} has no cost, core-seconds per record: declare `cost`")
        cost += reach[name] * _value_or(own, settings.reduce)
        for edge in graph.outputs[name]:
            part = _value_or(operator.alternates[0].selectivity, 1.0)
            reach[edge.target] = reach.get(edge.target, 0.0) + reach[name] * part
    return keyed[0].name, cost, made


def _value_or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


MAPPER = "mapper "


def schedule(plant: "ReducersPlant") -> None:
    """Schedule failures of zones and links. Raises InputError for a link of an unknown mapper."""
    for fault in plant.settings.faults:
        match fault:
            case ZoneFailure(time, zone):
                plant.reducers.agenda.at(time, _zone(plant, zone))
            case LinkFailure(time, source, _) if source.startswith(MAPPER):
                plant.reducers.agenda.at(time, _from_mapper(plant, fault, _number(plant, source)))
            case LinkFailure(time):
                plant.reducers.agenda.at(time, _between_hosts(plant, fault))


def _number(plant: "ReducersPlant", source: str) -> int:
    number, mappers = source.removeprefix(MAPPER), plant.settings.mappers
    if not (number.isdecimal() and int(number) < mappers):
        raise InputError(f"a link from {source!r} fails; mappers are 'mapper 0' to 'mapper {mappers - 1}'")
    return int(number)


def _zone(plant: "ReducersPlant", zone: str) -> Callable[[float], None]:
    def fail(now: float) -> None:
        for node in list(plant.reducers.living):
            if plant.pool.leases[node.row].zone == zone:
                plant.fail(node, now)

    return fail


def _from_mapper(plant: "ReducersPlant", fault: LinkFailure, mapper: int) -> Callable[[float], None]:
    """Fail a mapper's link: the multicast misses an answer and declares the host dead."""

    def fail(now: float) -> None:
        node = plant.reducers.nodes.get(fault.target)
        if node is not None and node.alive:
            node.cut[mapper] = now
            plant.reducers.agenda.at(now + 2 * plant.settings.bound, lambda at: plant.fail(node, at, since=now))

    return fail


def _between_hosts(plant: "ReducersPlant", fault: LinkFailure) -> Callable[[float], None]:
    """Fail checkpoints from `source` to `target`, which declares it dead if it watches it."""

    def fail(now: float) -> None:
        plant.checkpoints.cut[fault.source, fault.target] = now

    return fail
