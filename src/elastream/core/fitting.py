"""Checks, before a run, of demands that no number of hosts can meet."""

import math
from collections.abc import Iterable, Mapping, Sequence

from elastream.core.action import KINDS
from elastream.core.hosts import HostType
from elastream.core.observation import Context
from elastream.core.plant import Policy, check_supported
from elastream.core.scaling import ScalingRules
from elastream.core.wording import counted, money
from elastream.dataflow.checks import fail
from elastream.dataflow.endpoints import DomainSignal
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Delivery, Edge, Kind, Operator
from elastream.dataflow.stages import Layout
from elastream.errors import CloudError, DataflowError, InputError
from elastream.units import ROUNDING, format_duration

# Cores of one thread. A chained task takes a slot, which on a host below one core is the whole host.
THREAD_CORES = 1.0
# State partitions per slot of the largest fleet, so that new hosts find partitions to take.
PARTITIONS_PER_SLOT = 2
# Multiple of these from which a number of partitions is too many: each costs a task in every batch.
MANY_PARTITIONS = 4
# A fleet that needs more has no real limit.
MOST_PARTITIONS = 10_000
# Least duration of a micro-batch per stage (seconds). Measured: an Arrow stage on Spark 4.3.0, two shared cores, 49 ms.
STAGE_OVERHEAD_S = 0.05


def check_feasible(
    layout: Layout,
    types: Sequence[HostType],
    policy: Policy | None,
    *,
    target_latency: float | None,
    max_hosts: int,
    scalable: frozenset[str],
    unchained: bool = False,
) -> None:
    """Raise ElastreamError if an operator, a service level or the policy can never work.

    Args:
        types: Empty if unknown.
        scalable: Operators whose parallelism the plant can change.
        unchained: True if instances reserve cores (simulation only).
    """
    check_signal_names(layout.graph)
    if types:
        check_host_types(layout.graph, types, unchained=unchained)
    check_service_levels(layout, types, target_latency)
    kinds = {each.name: each for each in types}
    check_supported(policy, Context(layout, kinds, target_latency, max_hosts, 1, frozenset(KINDS), scalable))


def check_signal_names(graph: Graph) -> None:
    """Raise DataflowError if a signal is named like an application metric."""
    from elastream.core.promises import of_application  # a long table, which a watched job does not need

    for sink in graph.sinks:
        if isinstance(sink.writes, DomainSignal) and sink.writes.name in of_application():
            fail(
                graph,
                f"a signal cannot be called {sink.writes.name!r}: that is a metric of the whole dataflow, which guards "
                f"read by this name; rename it, for example to '{sink.writes.name}_seen'",
                sink.name,
                "signal",
            )


def unchangeable(context: Context, policy: Policy) -> tuple[str, ...]:
    """Return a remark if nothing of the run can change: neither hosts nor the dataflow."""
    graph = context.graph
    dynamic = any(len(operator.alternates) > 1 for operator in graph.operators) or any(edge.choice for edge in graph.edges)
    if "LeaseHost" in context.capabilities or dynamic or context.scalable:
        return ()
    return (f"policy {policy.name} has nothing to change: no hosts are leased here, and no operator has alternates",)


def check_replicas(replicas: int, max_hosts: int, layout: Layout | None = None) -> None:
    """Raise InputError if standby replicas cannot be placed, or there is no state."""
    where = ("replicas",)
    if replicas >= max_hosts:
        raise InputError(
            f"replicas is {replicas}: each copy is on a host of its own beside that of the state, which needs "
            f"{replicas + 1} hosts, and at most {max_hosts} may be leased (max_hosts)",
            where,
        )
    if replicas and layout is not None and not any(stage.keyed for stage in layout.stages):
        raise InputError(
            f"replicas is {replicas}, and dataflow {layout.graph.name!r} keeps no state that could be copied: it has no "
            "keyed operator",
            where,
        )


def check_rules(rules: ScalingRules, max_hosts: int, types: Sequence[HostType], min_hosts: int = 1) -> None:
    """Raise InputError if no allowed number of hosts meets the rules.

    Args:
        types: The first hosts have the first type.
    """
    if rules.min_hosts is not None and rules.min_hosts > max_hosts:
        raise InputError(
            f"min_hosts: {rules.min_hosts} is more than the cloud has, {max_hosts} (max_hosts)", ("scaling", "min_hosts")
        )
    if (terms := rules.budget_terms) is None or not types:
        return
    kind, (amount, period) = types[0], terms
    least = max(min_hosts, rules.min_hosts or 1)
    # What a host costs in a whole period, and what it costs at once: a minimum that is longer is paid all the same.
    each = kind.price * max(math.ceil(period / kind.billing.unit - ROUNDING), kind.billing.units(0.0))
    if least * each > amount * (1 + ROUNDING):
        raise InputError(
            f"budget: {counted(least, 'host')} of type {kind.name!r} for {money(least * each)} in "
            f"{format_duration(period)}, which is more than {rules.budget}",
            ("scaling", "budget"),
        )


def doubts(replicas: int, types: Iterable[HostType], partitions: int | None, max_hosts: int) -> tuple[str, ...]:
    """Return warnings about ineffective standby replicas and state partitions."""
    few = "" if partitions is None else _few_partitions(partitions, max_hosts)
    return tuple(filter(None, (_few_zones(replicas, types), few)))


def _few_zones(replicas: int, types: Iterable[HostType]) -> str:
    zones = sorted({each.zone for each in types})
    if not replicas or not zones or len(zones) > replicas:
        return ""
    return (
        f"{counted(len(zones), 'fault zone')} ({', '.join(zones)}) for state and {counted(replicas, 'copy', 'copies')}: "
        f"where a whole zone fails, state is read from the checkpoint; declare host types in {replicas + 1} zones (`zone`)"
    )


def _few_partitions(partitions: int, max_hosts: int) -> str:
    if partitions >= max_hosts:
        return ""
    return (
        f"{counted(partitions, 'state partition')} for up to {counted(max_hosts, 'host')} (max_hosts): hosts "
        f"beyond {partitions} hold no state; give more state_partitions or fewer hosts"
    )


def check_host_types(graph: Graph, types: Iterable[HostType], *, unchained: bool) -> None:
    """Raise CloudError if an operator's instance fits no host type."""
    offered = tuple(types)
    for operator in graph.operators:
        if operator.kind in (Kind.SOURCE, Kind.SINK):
            continue
        need = operator.cores if unchained or operator.cores > THREAD_CORES else 0.0
        if any(need <= each.cores and operator.memory <= each.memory for each in offered):
            continue
        roomy = max(offered, key=lambda each: each.cores, default=None)
        field = "cores" if roomy is None or need > roomy.cores else "memory"
        have = ", ".join(f"{each.name}: {each.cores:g} cores, {each.memory:g} MB" for each in offered) or "there is none"
        needs = _cores(operator.cores) if field == "cores" else f"{operator.memory:g} MB"
        chained = ", or simulate it --fused, where the tasks of a host share its cores as on Spark" if unchained else ""
        raise CloudError(
            f"operator {operator.name!r} needs {needs} for an instance, and no host type has as much ({have}): declare "
            f"less `{field}` for it, or a larger host type{chained}",
            ("operators", operator.name, field),
        )


def check_service_levels(layout: Layout, types: Iterable[HostType], target_latency: float | None) -> None:
    """Raise DataflowError for a service level missed at declared costs, without waiting, on the fastest host."""
    graph, speed = layout.graph, max((each.speed for each in types), default=1.0)
    for operator in graph.operators:
        least = _least(operator) / speed
        if operator.max_duration is not None and least > operator.max_duration:
            raise DataflowError(
                f"operator {operator.name!r} needs {format_duration(least)} for a record on the fastest host, and may take "
                f"{format_duration(operator.max_duration)} (`max_duration`): no number of hosts can keep that",
                ("operators", operator.name, "max_duration"),
            )
    if target_latency is None:
        return
    paths: dict[str, float] = {}
    for name in reversed(graph.order):
        paths[name] = _least(graph.operator(name)) + _downstream_cost(graph, name, paths)
    for source in graph.sources:
        segment = layout.stage_of[source.name].segment
        stages = sum(stage.segment == segment for stage in layout.stages)
        overhead = 0.0 if layout.unchained else STAGE_OVERHEAD_S * stages
        least = paths[source.name] / speed + overhead
        if least > target_latency:
            batch = f", in micro-batches of {format_duration(overhead)} at least," if overhead else ""
            raise DataflowError(
                f"a record of {source.name!r} takes {format_duration(least)}{batch} even without waiting, and the "
                f"target latency is {format_duration(target_latency)} (`target_latency`): no number of hosts can keep that",
                ("target_latency",),
            )


def _cores(cores: float) -> str:
    return f"{cores:g} core{'' if cores == 1 else 's'}"


def _least(operator: Operator) -> float:
    return min((alternate.cost or 0.0 for alternate in operator.alternates), default=0.0)


def _downstream_cost(graph: Graph, name: str, paths: Mapping[str, float]) -> float:
    operator = graph.operator(name)
    if any(alternate.selectivity is not None and alternate.selectivity < 1 for alternate in operator.alternates):
        return 0.0
    edges = [edge for edge in graph.outputs[name] if edge.durable is None]
    every = [paths[edge.target] for edge in edges if not _is_partial(edge)]
    others = [paths[edge.target] for edge in edges if _is_partial(edge)]
    return max([*every, min(others, default=0.0)])


def _is_partial(edge: Edge) -> bool:
    return edge.choice is not None or edge.delivery is Delivery.ROUND_ROBIN


def state_partitions_of(types: Sequence[HostType], max_hosts: int, a_host: int | None = None) -> int:
    """Return the default number of state partitions; `a_host`: requested by a policy per host."""
    each = a_host or PARTITIONS_PER_SLOT * max(kind.slots for kind in types)
    return max(4, each * max_hosts)


def width_remark(partitions: int, context: Context) -> str:
    """Return advice if queries that begin with `partitions` state partitions do not suit the largest fleet, or ""."""
    if not partitions or context.max_hosts < 1 or not (types := tuple(context.leasable.values())):
        return ""
    wanted, slots = state_partitions_of(types, context.max_hosts), max(kind.width for kind in types) * context.max_hosts
    if wanted > MOST_PARTITIONS or slots <= partitions <= MANY_PARTITIONS * wanted:
        return ""
    bound = "each costs a task in every batch" if partitions > wanted else "no more cores can take state"
    return (
        f"new checkpoints get {counted(partitions, 'state partition')}: {bound}; {wanted} suit up to "
        f"{counted(context.max_hosts, 'host')} (spark.sql.shuffle.partitions, before a query's first batch)"
    )
