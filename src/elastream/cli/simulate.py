"""`elastream simulate FILE`: policies tried on a load in simulated time, and what each costs and keeps.

With `--calibrate RUN` the simulator takes its constants from a recorded run; without FILE that run itself is replayed, and
how far the simulation is from what was measured is told.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastream.cli.declared import declared
from elastream.cli.experiment import NOT_HELD, Html, Json, print_table, progress_bar, save
from elastream.cli.options import as_seconds, named_by
from elastream.model.errors import CloudError, ElastreamError, InputError

if TYPE_CHECKING:
    from rich.console import Console

    from elastream.experiments.outcome import Outcome
    from elastream.model.cloud import Billing, HostType
    from elastream.model.graph import Graph
    from elastream.model.plant import Policy
    from elastream.recording.recorder import Recording
    from elastream.simulation import Settings

__all__ = ["simulate"]

Program = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A Python program or a YAML document.")]
Calibrate = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="Take costs from a recorded run; without FILE, replay it and tell the drift."),
]
Against = Annotated[
    Path | None, typer.Option(metavar="RUN", help="With --calibrate: replay this run, with the other one's constants.")
]
Load = Annotated[str | None, typer.Option(metavar="LOAD", help="A CSV of counts, a YAML file, or a load such as 50/s.")]
Policies = Annotated[
    list[str] | None,
    typer.Option("--policy", metavar="NAME[:key=value,...]", help="A policy (or file.py:Class) to try; repeat."),
]
Prices = Annotated[Path | None, typer.Option(metavar="CSV", help="A price list; else the host types of FILE.")]
Shapes = Annotated[Path | None, typer.Option(metavar="CSV", help="Cores and memory, where the price list lacks them.")]
Hosts = Annotated[list[str] | None, typer.Option("--host", metavar="TYPE", help="Host types to use; repeat it.")]
Region = Annotated[str | None, typer.Option(metavar="NAME", help="Region of the price list.")]
Unit = Annotated[float, typer.Option(parser=as_seconds, metavar="TIME", help="Billing time unit.")]
Minimum = Annotated[float, typer.Option(parser=as_seconds, metavar="TIME", help="Least time that is billed.")]
Limit = Annotated[float | None, typer.Option(parser=as_seconds, metavar="TIME", help="How much of the load to simulate.")]
Period = Annotated[
    float | None, typer.Option(parser=as_seconds, metavar="TIME", help="Between two plans: 2s with --fused, else 60s.")
]
Fused = Annotated[
    bool | None,
    typer.Option(
        "--fused/--apart", help="Stages in micro-batches as on Spark, as for the cloud of FILE; or each operator."
    ),
]


def simulate(
    file: Program = None,
    calibrate: Calibrate = None,
    against: Against = None,
    load: Load = None,
    policy: Policies = None,
    prices: Prices = None,
    shapes: Shapes = None,
    host: Hosts = None,
    region: Region = None,
    billing: Unit = "1s",  # type: ignore[assignment]
    minimum: Minimum = "60s",  # type: ignore[assignment]
    limit: Limit = None,
    period: Period = None,
    target: Annotated[float, typer.Option(help="Fraction of records that must be in time.")] = 0.95,
    max_hosts: Annotated[int | None, typer.Option(help="Most hosts at once; else as FILE says, or 1000.")] = None,
    fused: Fused = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 1,
    html: Html = None,
    json_file: Json = None,
) -> None:
    """Compare policies on a dataflow and a load; exit status 1 where none meets the target.

    With --calibrate RUN and no FILE: replay a recorded run and tell how far the simulation is from it; exit status 1 where
    that is too far.
    """
    from rich.console import Console

    from elastream.experiments.compare import compare
    from elastream.model.cloud import Billing
    from elastream.workload import load_from

    console = Console()
    if file is None:
        if calibrate is None:
            raise InputError("there is nothing to simulate: give a FILE, or --calibrate RUN to replay a recorded run")
        _finish(_replay(calibrate, against, policy or [], seed, console), html, json_file, console)
        return
    said = declared(file)
    named: dict[str, Policy] = {text: named_by(text, "policy", file) for text in policy or []}
    if not named and said.policy is not None:
        named = {said.policy.name: said.policy}
    if not named:
        raise InputError(f"{file} names no policy: give one or more with --policy")
    own, settings = said.types, None
    if calibrate is not None:
        settings, own = _constants(calibrate, said.graph)
    types = hosts_from(prices, shapes, host or [], region, Billing(billing, minimum), list(own))
    if fused is None:
        fused = calibrate is not None or (prices is None and not said.host_types)
    with progress_bar(console) as tell:
        comparison = compare(
            said.graph,
            named,
            types,
            load=load_from(load) if load is not None else None,
            seconds=limit,
            target=target,
            target_latency=said.target_latency,
            max_hosts=max_hosts or (1000 if said.cloud is None or prices is not None else said.cloud.max_hosts),
            monitor=1.0 if fused else 15.0,
            period=period or (2.0 if fused else 60.0),
            seed=seed,
            fused=fused,
            settings=settings,
            progress=tell,
        )
    print_table(console, comparison.table())
    console.print(comparison.verdict)
    _finish(comparison.outcome(), html, json_file, console)


def _finish(outcome: "Outcome", html: Path | None, json_file: Path | None, console: "Console") -> None:
    save(outcome, html, json_file, console)
    if not outcome.holds:
        raise typer.Exit(NOT_HELD)


def _constants(run: Path, graph: "Graph") -> "tuple[Settings, tuple[HostType, ...]]":
    """Settings and host types that a recorded run gives; raises InputError where it knows an operator of `graph` not."""
    from elastream.experiments.calibrated import calibration_of
    from elastream.model.graph import Kind
    from elastream.recording.recorder import Recording

    found, _ = calibration_of(Recording.read(run), str(run))
    for operator in graph.operators:
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED) and operator.name not in found.settings.services:
            raise InputError(f"{run} is of another dataflow: it has no operator {operator.name!r}")
    return found.settings, found.host_types


def _replay(run: Path, against: Path | None, wanted: list[str], seed: int, console: "Console") -> "Outcome":
    """Replay a recorded run and print how far the simulation is from it; `wanted` policies beside the recorded one."""
    from elastream.experiments.drift import replayed
    from elastream.recording.recorder import Recording

    recording = Recording.read(against or run)
    source = None if against is None else Recording.read(run)
    policies = _recorded_policy(recording) | {text: named_by(text, "policy") for text in wanted}
    with progress_bar(console) as tell:
        found = replayed(recording, policies, source=source, place=str(against or run), seed=seed, progress=tell)
    print_table(console, found.constants())
    print_table(console, found.table())
    print_table(console, found.phases())
    console.print(found.verdict)
    return found.outcome()


def _recorded_policy(recording: "Recording") -> "dict[str, Policy]":
    """The policy of a run with the parameters that it had; none where that is no policy of ours."""
    from elastream.documents.registry import POLICY, made
    from elastream.documents.user_code import References

    name, parameters = recording.header.policy, recording.header.environment.get("policy")
    if name not in POLICY.known or parameters is None:
        return {}
    try:
        return {name: made(POLICY, name, parameters, References(Path()))}
    except ElastreamError as error:
        raise InputError(f"the recorded policy {name} cannot be made again: {error}") from None


def hosts_from(
    prices: Path | None,
    shapes: Path | None,
    wanted: list[str],
    region: str | None,
    billing: "Billing",
    declared: "list[HostType]",
) -> "tuple[HostType, ...]":
    """Host types of the price list, or those that the document declares with its own billing."""
    from elastream.experiments.compare import read_prices

    if prices is not None:
        return read_prices(prices, only=wanted, region=region, billing=billing, shapes=shapes)
    if unknown := set(wanted) - {type.name for type in declared}:
        raise CloudError(f"the dataflow declares no host type {min(unknown)!r}")
    types = tuple(type for type in declared if not wanted or type.name in wanted)
    if not types:
        raise CloudError("neither the dataflow nor --prices says what hosts there are to lease")
    return types
