"""`elastream check FILE`: validates the dataflow of a program or document without running it."""

import contextlib
import io
import math
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastream.cli.options import NAME_FORM, named_by
from elastream.cli.output import AsJson, print_json
from elastream.cli.program import declared
from elastream.errors import ElastreamError, needed_by

if TYPE_CHECKING:
    from elastream.cli.program import Declaration
    from elastream.core.plant import Policy
    from elastream.dataflow.graph import Graph

# Exit status after a fault of this package, whose stack trace the child has printed.
FAULT_STATUS = 1


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python program or a YAML document.")],
    policy: Annotated[str | None, typer.Option(metavar=NAME_FORM, help="Policy to check it with.")] = None,
    cloud: Annotated[str | None, typer.Option(metavar=NAME_FORM, help="Cloud to check it on.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a dataflow without starting it: errors of `run` and `simulate`, and metrics that its policy lacks.

    A program is executed up to its `run(...)` in a separate process, which also imports the files that a document names.
    The exit status of an error is 2.
    """
    in_child(file, lambda: _check(file, policy, cloud, as_json))


def in_child(file: Path, work: Callable[[], None]) -> None:
    """Call `work`, which loads `file`, in a fork of this process, and print its output.

    If the user's code ends the process, the command reports it.

    Raises:
        ElastreamError: The error of `work`, or its process ended early.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        _work(theirs, work)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if not answer:
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        raise ElastreamError(
            f"{file}: the process that read it {how} before it finished: its code, or a module that it imports, ends it"
        )
    out, err, error = pickle.loads(answer)
    sys.stdout.write(out)
    sys.stderr.write(err)
    if isinstance(error, int):
        raise typer.Exit(error)
    if error is not None:
        raise error


def _work(pipe: int, work: Callable[[], None]) -> None:
    # Ends by `_exit`: handlers at exit are the parent's.
    if sys.stdout.isatty():
        os.environ["COLUMNS"] = str(shutil.get_terminal_size().columns)
    out, err = io.StringIO(), io.StringIO()
    error: ElastreamError | int | None = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            error = _outcome(work)
        with open(pipe, "wb") as file:
            file.write(pickle.dumps((out.getvalue(), err.getvalue(), error)))
    finally:
        os._exit(0)


def _outcome(work: Callable[[], None]) -> ElastreamError | int | None:
    import traceback

    try:
        with needed_by("this command"):
            work()
    except ElastreamError as error:
        failure = ElastreamError(str(error))
        failure.exit_status = error.exit_status
        return failure
    except typer.Exit as ended:
        return ended.exit_code
    except Exception:
        traceback.print_exc()
        return FAULT_STATUS
    return None


def _check(file: Path, policy: str | None, cloud: str | None, as_json: bool) -> None:
    from elastream.dataflow.key_table import selection_of

    declaration = declared(file)
    if policy is not None:
        declaration = declaration.replaced(policy=named_by(policy, "policy", file))
    if cloud is not None:
        declaration = declaration.replaced(cloud=named_by(cloud, "cloud", file))
    replaced = [key for key, text in (("policy", policy), ("cloud", cloud)) if text is not None]
    with declaration.placing(*replaced):
        only_simulated = check_declaration(declaration)
    for each in declaration.settings.tables:
        each.check(selection_of(declaration.graph, each.operator))
    if declaration.settings.guards is not None:
        from elastream.guards.document import load_guards

        load_guards(Path(declaration.settings.guards), declaration.graph)
    sentences = [] if only_simulated is None else [f"it cannot be run: {only_simulated}"]
    sentences += unknown_metrics(declaration.policy, declaration.graph, declaration.settings.latency)
    sentences += missing_settings(declaration, only_simulated is None)
    sentences += overload_warnings(declaration)
    sentences += warnings_of_run(declaration)
    if as_json:
        graph = declaration.graph
        print_json({"file": file, "dataflow": graph.name, "operators": _rows(graph), "warnings": sentences})
    else:
        _show(file, declaration.graph, sentences)


def check_declaration(declaration: "Declaration") -> ElastreamError | None:
    """Raise the error that `run` would raise, or `simulate` for a dataflow that only a simulation supports.

    Returns:
        The reason why only a simulation supports it; None if it runs.
    """
    from elastream.clouds.pool import Pool
    from elastream.core.fitting import check_feasible, check_rules
    from elastream.dataflow.compiling import simulated_only
    from elastream.dataflow.stages import lay_out

    settings, cloud = replace(declaration.settings, policy=declaration.policy), declaration.settings.cloud
    asks = isinstance(cloud, Pool)  # the server knows a pool's types and size
    types = declaration.host_types if asks else declaration.types
    most = 1_000_000 if asks or cloud is None else cloud.max_hosts
    check_rules(settings.scaling, most, types)
    reason = simulated_only(declaration.graph)
    if reason is None:
        from elastream.api.run import admit

        admit(declaration.graph, settings, types=types, max_hosts=most, sleeps=settings.freshness is not None)
        return None
    layout = lay_out(declaration.graph, chained=declaration.fused)
    check_feasible(
        layout,
        types,
        declaration.policy,
        target_latency=settings.latency,
        max_hosts=most,
        scalable=layout.simulated_scalable,
        unchained=not declaration.fused,
    )
    return reason


def missing_settings(declaration: "Declaration", runs: bool) -> "list[str]":
    """Return sentences about options that the file does not declare."""
    from elastream.dataflow.operators import Kind

    sentences, graph = [], declaration.graph
    if runs and declaration.needs_cloud and declaration.settings.cloud is None:
        sentences.append("to run it, give --cloud, such as --cloud in-process")
    bare = [source.name for source in graph.sources if source.load is None]
    endless = [name for name, load in graph.loads.items() if math.isinf(load.seconds)]
    free = [
        operator.name
        for operator in graph.operators
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED) and operator.alternates[0].cost is None
    ]
    options = [
        ("--load", f"source {_declare(bare)} none" if bare else ""),
        ("--limit", f"the load of {names_of(endless)} has no end" if endless else ""),
        ("--calibrate RUN", f"{_declare(free)} no cost" if free else ""),
        ("--prices", "no host type is declared" if not (declaration.host_types or declaration.settings.cloud) else ""),
    ]
    if missing := "; ".join(f"{option} ({why})" for option, why in options if why):
        sentences.append(f"to simulate it, give {missing}")
    return sentences


def _declare(names: "list[str]") -> str:
    return f"{names_of(names)} {'declare' if len(names) > 1 else 'declares'}"


def warnings_of_run(declaration: "Declaration") -> "tuple[str, ...]":
    """Return the warnings that `run` will log."""
    from elastream.clouds.pool import Pool
    from elastream.core.fitting import doubts
    from elastream.dataflow.operators import Kind

    settings, cloud = declaration.settings, declaration.settings.cloud
    keyed = any(each.kind is Kind.KEYED for each in declaration.graph.operators)
    most, types = 0, declaration.host_types
    if cloud is not None and not isinstance(cloud, Pool):  # the server knows a pool's size
        most, types = cloud.max_hosts, declaration.types
    return doubts(settings.replicas, types, settings.state_partitions if keyed else None, most)


def overload_warnings(declaration: "Declaration") -> "list[str]":
    """Return a warning if the declared peak load needs more hosts than the cloud or the state partitions allow."""
    from elastream.clouds.pool import Pool
    from elastream.core.fitting import state_partitions_of
    from elastream.core.wording import hosts_text
    from elastream.dataflow.stages import lay_out
    from elastream.policies.common.provision import TARGET_UTILISATION, declared_cores, provision_for_cores, rates_of
    from elastream.policies.common.reach import beyond_partitions

    settings, cloud = declaration.settings, declaration.settings.cloud
    if cloud is None or isinstance(cloud, Pool) or not declaration.types:
        return []
    layout = lay_out(declaration.graph, chained=declaration.fused)
    try:
        rates = rates_of(declaration.graph, declaration.graph.loads, "peak", window=settings.latency)
        cores = declared_cores(declaration.graph, rates)
        peak = provision_for_cores(layout, declaration.types[0], cores).hosts
    except ElastreamError:  # the load has no end, or an operator no cost
        return []
    default = state_partitions_of(declaration.types, cloud.max_hosts, declaration.policy.partitions_a_host)
    if bound := beyond_partitions(layout, cores, declaration.types[0].slot, settings.state_partitions or default):
        return [f"at the load's peak {bound}; records will be late"]
    if peak <= cloud.max_hosts:
        return []
    filled = f"the load's peak fills {hosts_text(peak)} of type {declaration.types[0].name!r} to {TARGET_UTILISATION:.0%}"
    return [f"{filled}, and the cloud has {cloud.max_hosts} at most (`max_hosts`): records will be late"]


def names_of(names: "Sequence[str]") -> str:
    more = f" and {len(names) - 3} more" if len(names) > 4 else ""
    return ", ".join(map(repr, names if not more else names[:3])) + more


def unknown_metrics(policy: "Policy | None", graph: "Graph", target_latency: float | None) -> "list[str]":
    """Return sentences about metrics that `policy` needs and that `graph` lacks on Spark."""
    from elastream.core.metrics import Rows
    from elastream.core.promises import PlantKind, promised
    from elastream.dataflow.stages import lay_out

    layout, sentences = lay_out(graph), []
    for rows, metric in sorted(policy.needs if policy is not None else ()):
        promises = [
            (each, [rule for rule in each.when if rule.holds(layout, target_latency, operator) is False])
            for operator in (graph.operators if rows is Rows.OPERATOR else (None,))
            for each in promised(metric, rows, PlantKind.DATAFLOW, operator)
        ]
        if all(missing for _, missing in promises):
            conditions = sorted({rule.value for _, missing in promises for rule in missing})
            why = f"it would be with: {'; '.join(conditions)}" if conditions else "no plant on Spark measures it"
            sentences.append(f"policy {policy.name}: {metric} of the {rows} will be unknown; {why}")  # type: ignore[union-attr]
    return sentences


def _role(graph: "Graph", name: str) -> str:
    from elastream.dataflow.endpoints import DomainSignal

    operator = graph.by_name[name]
    if isinstance(operator.writes, DomainSignal):
        return "signal"
    return "nothing" if graph.empty(name) else operator.kind.value


def _rows(graph: "Graph") -> "list[dict[str, Any]]":
    from elastream.dataflow.stages import lay_out

    layout, rows = lay_out(graph), []
    for name in graph.order:
        operator = graph.by_name[name]
        row: dict[str, Any] = {"operator": name, "kind": _role(graph, name), "stage": layout.stage_of[name].name}
        row["from"] = [f"{edge.source} ({edge.choice})" if edge.choice else edge.source for edge in graph.inputs[name]]
        row["alternates"] = [alternate.name for alternate in operator.alternates if len(operator.alternates) > 1]
        rows.append({**row, "level": operator.max_duration})
    return rows


def _show(file: Path, graph: "Graph", sentences: "Sequence[str]") -> None:
    from elastream.core.wording import counted, duration_text
    from elastream.dashboard.console import make_console, plain_table
    from elastream.dataflow.stages import lay_out

    layout, console = lay_out(graph), make_console()
    table = plain_table("operator", "kind", "from", "stage", "alternates", "level")
    for row in _rows(graph):
        sources, alternates = ", ".join(row["from"]), ", ".join(row["alternates"])
        table.add_row(row["operator"], row["kind"], sources, row["stage"], alternates, duration_text(row["level"]))
    console.print(table)
    for sentence in sentences:
        typer.echo(sentence)
    size = (
        f"{counted(len(graph.operators), 'operator')}, {counted(len(layout.stages), 'stage')}, "
        f"{counted(len(layout.segments), 'query', 'queries')}"
    )
    console.print(f"{file}: dataflow {graph.name!r} is valid: {size}", markup=False, highlight=False, soft_wrap=True)
