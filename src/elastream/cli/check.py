"""`elastream check FILE`: validates the dataflow of a program or document without running it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastream.cli.options import named_by
from elastream.cli.program import declared

if TYPE_CHECKING:
    from elastream.cli.program import Declared
    from elastream.core.plant import Policy
    from elastream.dataflow.graph import Graph
    from elastream.errors import ElastreamError

NAMED = "NAME[:key=value,...]"


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python program or a YAML document.")],
    policy: Annotated[str | None, typer.Option(metavar=NAMED, help="Check it with this policy, as `run` takes it.")] = None,
    cloud: Annotated[str | None, typer.Option(metavar=NAMED, help="Check it on this cloud, as `run` takes it.")] = None,
) -> None:
    """Check a dataflow, starting nothing: whether `run` and `simulate` would refuse it, and what its policy will not know.

    A program is executed up to its `run(...)`, and files that a document names are imported, in a process of their own.
    Exit status 2, with one sentence, for what they would refuse.
    """
    from elastream.cli.child import in_child

    in_child(file, lambda: _check(file, policy, cloud))


def _check(file: Path, policy: str | None, cloud: str | None) -> None:
    from elastream.dataflow.key_table import selection_of

    given = declared(file)
    if policy is not None:
        given = given.replaced(policy=named_by(policy, "policy", file))
    if cloud is not None:
        given = given.replaced(cloud=named_by(cloud, "cloud", file))
    replaced = [key for key, text in (("policy", policy), ("cloud", cloud)) if text is not None]
    with given.placing(*replaced):
        only_simulated = refuse(given)
    for each in given.settings.tables:
        each.check(selection_of(given.graph, each.operator))
    if given.settings.guards is not None:
        from elastream.guards.document import load_guards

        load_guards(Path(given.settings.guards), given.graph)
    said = [*unknown_to(given.policy, given.graph, given.settings.latency), *needed(given, only_simulated is None)]
    said += beyond(given)
    said += doubted(given)
    if only_simulated is not None:
        said.insert(0, f"it cannot be run: {only_simulated}")
    _show(file, given.graph, said)


def refuse(given: "Declared") -> "ElastreamError | None":
    """Raise ElastreamError for what `run` would refuse, or `simulate` where it cannot run; returns why it cannot."""
    from elastream.clouds.pool import Pool
    from elastream.core.fitting import check_feasible, check_rules
    from elastream.dataflow.compiling import simulated_only
    from elastream.dataflow.stages import lay_out

    settings, cloud = replace(given.settings, policy=given.policy), given.settings.cloud
    asks = isinstance(cloud, Pool)  # a pool knows its types and its size only where it runs
    types = given.host_types if asks else given.types
    most = 1_000_000 if asks or cloud is None else cloud.max_hosts
    check_rules(settings.scaling, most, types)
    reason = simulated_only(given.graph)
    if reason is None:
        from elastream.api.admission import admit

        admit(given.graph, settings, types=types, max_hosts=most)
        return None
    layout = lay_out(given.graph, chained=given.fused)
    check_feasible(
        layout,
        types,
        given.policy,
        target_latency=settings.latency,
        max_hosts=most,
        scalable=layout.simulated_scalable,
        unchained=not given.fused,
    )
    return reason


def needed(given: "Declared", runs: bool) -> "list[str]":
    """What `run` and `simulate` need that the file does not say; a sentence each."""
    from elastream.dataflow.operators import Kind

    found, graph = [], given.graph
    if runs and given.settings.cloud is None:
        found.append("to run it, give --cloud")
    bare = [source.name for source in graph.sources if source.load is None]
    endless = [name for name, load in graph.loads.items() if math.isinf(load.seconds)]
    free = [
        operator.name
        for operator in graph.operators
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED) and operator.alternates[0].cost is None
    ]
    wants = [
        ("--load", f"source {_declare(bare)} none" if bare else ""),
        ("--limit", f"the load of {names_of(endless)} has no end" if endless else ""),
        ("--calibrate RUN", f"{_declare(free)} no cost" if free else ""),
        ("--prices", "no host type is declared" if not given.host_types and given.settings.cloud is None else ""),
    ]
    if missing := "; ".join(f"{option} ({why})" for option, why in wants if why):
        found.append(f"to simulate it, give {missing}")
    return found


def _declare(names: "list[str]") -> str:
    return f"{names_of(names)} {'declare' if len(names) > 1 else 'declares'}"


def doubted(given: "Declared") -> "tuple[str, ...]":
    """What `run` will warn of; a sentence each. How many hosts a pool has is known only where it runs."""
    from elastream.clouds.pool import Pool
    from elastream.core.fitting import doubts
    from elastream.dataflow.operators import Kind

    settings, cloud = given.settings, given.settings.cloud
    sized = cloud is not None and not isinstance(cloud, Pool)
    keyed = any(each.kind is Kind.KEYED for each in given.graph.operators)
    most = cloud.max_hosts if sized else 0
    return doubts(settings.replicas, given.types, settings.state_partitions if keyed else None, most)


def beyond(given: "Declared") -> "list[str]":
    """What is missing where the load's peak, by declared costs, fills more hosts than there may be, or than partitions of
    state can use."""
    from elastream.clouds.pool import Pool
    from elastream.core.fitting import state_partitions_of
    from elastream.core.wording import hosts_text
    from elastream.dataflow.stages import lay_out
    from elastream.errors import ElastreamError
    from elastream.policies.common.provision import TARGET_UTILISATION, declared_cores, for_cores, rates_of
    from elastream.policies.common.reach import beyond_partitions

    settings, cloud = given.settings, given.settings.cloud
    if cloud is None or isinstance(cloud, Pool) or not given.types:
        return []
    layout = lay_out(given.graph, chained=given.fused)
    try:
        cores = declared_cores(given.graph, rates_of(given.graph, given.graph.loads, "peak", window=settings.latency))
        peak = for_cores(layout, given.types[0], cores).hosts
    except ElastreamError:  # a load without end, an operator without a cost: what it fills is not known here
        return []
    default = state_partitions_of(given.types, cloud.max_hosts, given.policy.partitions_a_host)
    if bound := beyond_partitions(layout, cores, given.types[0].slot, settings.state_partitions or default):
        return [f"at the load's peak {bound}; records will be late"]
    if peak <= cloud.max_hosts:
        return []
    filled = f"the load's peak fills {hosts_text(peak)} of type {given.types[0].name!r} to {TARGET_UTILISATION:.0%}"
    return [f"{filled}, and the cloud has {cloud.max_hosts} at most (`max_hosts`): records will be late"]


def names_of(names: "Sequence[str]") -> str:
    """Names in quotes, the first three of many."""
    more = f" and {len(names) - 3} more" if len(names) > 4 else ""
    return ", ".join(map(repr, names if not more else names[:3])) + more


def unknown_to(policy: "Policy | None", graph: "Graph", target_latency: float | None) -> "list[str]":
    """Metrics that `policy` needs and that `graph` will not have on Spark; a sentence each, with what is missing."""
    from elastream.core.metrics import Rows
    from elastream.core.promises import PlantKind, promised
    from elastream.dataflow.stages import lay_out

    layout, found = lay_out(graph), []
    for rows, metric in sorted(policy.needs if policy is not None else ()):
        promises = [
            (each, [need for need in each.when if need.holds(layout, target_latency, operator) is False])
            for operator in (graph.operators if rows is Rows.OPERATOR else (None,))
            for each in promised(metric, rows, PlantKind.DATAFLOW, operator)
        ]
        if all(missing for _, missing in promises):
            conditions = sorted({need.value for _, missing in promises for need in missing})
            why = f"it would be with: {'; '.join(conditions)}" if conditions else "no plant on Spark measures it"
            found.append(f"policy {policy.name}: {metric} of the {rows} will be unknown; {why}")  # type: ignore[union-attr]
    return found


def _role(graph: "Graph", name: str) -> str:
    """What an operator is, for the table: its kind, or which sink it is where it writes no results."""
    from elastream.dataflow.endpoints import DomainSignal

    operator = graph.by_name[name]
    if isinstance(operator.writes, DomainSignal):
        return "signal"
    return "nothing" if graph.empty(name) else operator.kind.value


def _show(file: Path, graph: "Graph", said: "Sequence[str]") -> None:
    from rich.console import Console
    from rich.table import Table

    from elastream.core.wording import counted, duration_text
    from elastream.dataflow.stages import lay_out

    layout, console = lay_out(graph), Console()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in ("operator", "kind", "from", "stage", "alternates", "level"):
        table.add_column(column, overflow="fold")
    for name in graph.order:
        operator = graph.by_name[name]
        alternates = ", ".join(alternate.name for alternate in operator.alternates if len(operator.alternates) > 1)
        sources = ", ".join(f"{edge.source} ({edge.choice})" if edge.choice else edge.source for edge in graph.inputs[name])
        stage = layout.stage_of[name].name
        table.add_row(name, _role(graph, name), sources, stage, alternates, duration_text(operator.max_duration))
    console.print(table)
    for sentence in said:
        typer.echo(sentence)
    size = (
        f"{counted(len(graph.operators), 'operator')}, {counted(len(layout.stages), 'stage')}, "
        f"{counted(len(layout.segments), 'query', 'queries')}"
    )
    console.print(f"{file}: dataflow {graph.name!r} is valid: {size}", markup=False, highlight=False, soft_wrap=True)
