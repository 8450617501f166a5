"""What no number of hosts can give: an operator that fits no host type, a duration shorter than one record's own work.

Known from the dataflow and the host types alone, so that it is said before anything starts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from elastream.core.action import KINDS
from elastream.core.hosts import HostType
from elastream.core.metrics import of_application
from elastream.core.observation import Context
from elastream.core.plant import Policy, refuse_unsupported
from elastream.core.scaling import ScalingRules
from elastream.core.wording import counted, money
from elastream.dataflow.checks import fail
from elastream.dataflow.endpoints import DomainSignal
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Delivery, Edge, Kind, Operator
from elastream.dataflow.stages import Layout
from elastream.errors import CloudError, DataflowError, InputError
from elastream.units import ROUNDING, format_duration

WHOLE = 1.0
"""Cores of one thread: fused, a task has a slot, which on a host of less than a core is all of that host."""
PARTITIONS_PER_SLOT = 2
"""State partitions per slot of the largest fleet: hosts that come find partitions to take."""
BATCH_OVERHEAD = 0.05
"""Seconds a micro-batch and stage, at least. Measured: a fused Arrow stage on Spark 4.3.0, two shared cores, 49 ms."""


def refuse_unworkable(
    layout: Layout,
    types: Sequence[HostType],
    policy: Policy | None,
    *,
    target_latency: float | None,
    max_hosts: int,
    scalable: frozenset[str],
    apart: bool = False,
) -> None:
    """Raise ElastreamError for what can never work: an operator, a service level, or the policy on this dataflow.

    types: empty where they are not known yet. scalable: operators whose parallelism the plant can change.
    """
    check_signal_names(layout.graph)
    if types:
        refuse_misfit(layout.graph, types, apart=apart)
    refuse_unreachable(layout, types, target_latency)
    kinds = {each.name: each for each in types}
    refuse_unsupported(policy, Context(layout, kinds, target_latency, max_hosts, 1, frozenset(KINDS), scalable))


def check_signal_names(graph: Graph) -> None:
    """Raise DataflowError if a signal has the name of a metric of the application, which guards read by that name."""
    for sink in graph.sinks:
        if isinstance(sink.writes, DomainSignal) and sink.writes.name in of_application():
            fail(
                graph,
                f"a signal cannot be called {sink.writes.name!r}: that is a metric of the whole dataflow, which guards "
                f"read by this name; call it otherwise, such as '{sink.writes.name}_seen'",
                sink.name,
                "signal",
            )


def refuse_replicas(replicas: int, max_hosts: int, layout: Layout | None = None) -> None:
    """Raise InputError for copies of state that cannot be kept: more than other hosts, or no state to copy.

    Args:
        layout: None if it is not known yet, as of queries that come and go.
    """
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


def refuse_rules(rules: ScalingRules, max_hosts: int, types: Sequence[HostType], min_hosts: int = 1) -> None:
    """Raise InputError for rules that no number of hosts between `min_hosts` and `max_hosts` of the cloud keeps.

    types: host types, the first that of the first hosts; empty where they are not known.
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
    """What a run is warned of, a sentence each: copies and state partitions that do less than they seem to.

    partitions: state partitions of each keyed operator; None where there is none, or they are as many as is the default.
    """
    few = "" if partitions is None else _few_partitions(partitions, max_hosts)
    return tuple(filter(None, (_few_zones(replicas, types), few)))


def _few_zones(replicas: int, types: Iterable[HostType]) -> str:
    """What `replicas` copies cannot outlast where hosts are in too few fault zones; one sentence, empty where they can."""
    zones = sorted({each.zone for each in types})
    if not replicas or not zones or len(zones) > replicas:
        return ""
    return (
        f"{counted(len(zones), 'fault zone')} ({', '.join(zones)}) for state and {counted(replicas, 'copy', 'copies')}: "
        f"where a whole zone fails, state is read from the checkpoint; declare host types in {replicas + 1} zones (`zone`)"
    )


def _few_partitions(partitions: int, max_hosts: int) -> str:
    """What is idle where state is in fewer partitions than there may be hosts; one sentence, empty where it is not."""
    if partitions >= max_hosts:
        return ""
    return (
        f"{counted(partitions, 'state partition')} for up to {counted(max_hosts, 'host')} (max_hosts): beyond "
        f"{counted(partitions, 'host')} others hold no state; give more state_partitions or fewer hosts"
    )


def refuse_misfit(graph: Graph, types: Iterable[HostType], *, apart: bool = False) -> None:
    """Raise CloudError for an operator of which no host of `types` can hold an instance.

    apart: instances reserve their cores (simulation only); else an instance is a task, and up to one core fits any host.
    """
    known = tuple(types)
    for operator in graph.operators:
        if operator.kind in (Kind.SOURCE, Kind.SINK):
            continue
        need = operator.cores if apart or operator.cores > WHOLE else 0.0
        if any(need <= each.cores and operator.memory <= each.memory for each in known):
            continue
        roomy = max(known, key=lambda each: each.cores, default=None)
        field = "cores" if roomy is None or need > roomy.cores else "memory"
        have = ", ".join(f"{each.name}: {each.cores:g} cores, {each.memory:g} MB" for each in known) or "there is none"
        needs = _cores(operator.cores) if field == "cores" else f"{operator.memory:g} MB"
        fused = ", or simulate it --fused, where the tasks of a host share its cores as on Spark" if apart else ""
        raise CloudError(
            f"operator {operator.name!r} needs {needs} for an instance, and no host type has as much ({have}): declare "
            f"less `{field}` for it, or a larger host type{fused}",
            ("operators", operator.name, field),
        )


def refuse_unreachable(layout: Layout, types: Iterable[HostType], target_latency: float | None) -> None:
    """Raise DataflowError for a service level that no number of hosts of `types` can meet.

    It is one that a record misses though it waits for nothing: by the costs that operators declare, on the fastest host.
    """
    graph, speed = layout.graph, max((each.speed for each in types), default=1.0)
    for operator in graph.operators:
        least = _least(operator) / speed
        if operator.max_duration is not None and least > operator.max_duration:
            raise DataflowError(
                f"operator {operator.name!r} works {format_duration(least)} on a record, on the fastest host, and may take "
                f"{format_duration(operator.max_duration)} (`max_duration`): no number of hosts can keep that",
                ("operators", operator.name, "max_duration"),
            )
    if target_latency is None:
        return
    paths: dict[str, float] = {}
    for name in reversed(graph.order):
        paths[name] = _least(graph.operator(name)) + _onward(graph, name, paths)
    for source in graph.sources:
        segment = layout.stage_of[source.name].segment
        stages = sum(stage.segment == segment for stage in layout.stages)
        overhead = 0.0 if layout.apart else BATCH_OVERHEAD * stages
        least = paths[source.name] / speed + overhead
        if least > target_latency:
            batch = f", in micro-batches of {format_duration(overhead)} at least," if overhead else ""
            raise DataflowError(
                f"a record of {source.name!r} takes {format_duration(least)}{batch} though it waits for nothing, and the "
                f"target latency is {format_duration(target_latency)} (`target_latency`): no number of hosts can keep that",
                ("target_latency",),
            )


def _cores(cores: float) -> str:
    return f"{cores:g} core{'' if cores == 1 else 's'}"


def _least(operator: Operator) -> float:
    """Core-seconds that a record takes at least: those of the cheapest alternate, 0 where none is declared."""
    return min((alternate.cost or 0.0 for alternate in operator.alternates), default=0.0)


def _onward(graph: Graph, name: str, paths: Mapping[str, float]) -> float:
    """Least work that follows for every record of `name` in its query; 0 where some records end there."""
    operator = graph.operator(name)
    if any(alternate.selectivity is not None and alternate.selectivity < 1 for alternate in operator.alternates):
        return 0.0
    edges = [edge for edge in graph.outputs[name] if edge.durable is None]
    every = [paths[edge.target] for edge in edges if not _some(edge)]
    others = [paths[edge.target] for edge in edges if _some(edge)]
    return max([*every, min(others, default=0.0)])


def _some(edge: Edge) -> bool:
    """Whether only some of the records travel over `edge`."""
    return edge.choice is not None or edge.delivery is Delivery.ROUND_ROBIN


def state_partitions_of(types: Sequence[HostType], max_hosts: int, a_host: int | None = None) -> int:
    """Return the default number of state partitions on at most `max_hosts` hosts.

    Args:
        a_host: Partitions that a policy wants on each host (`Policy.partitions_a_host`).
    """
    each = a_host or PARTITIONS_PER_SLOT * max(kind.slots for kind in types)
    return max(4, each * max_hosts)
