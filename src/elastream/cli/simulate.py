"""`elastream simulate FILE`: policies tried on a load in simulated time, and what each costs and keeps.

With `--calibrate RUN` the simulator takes its constants from a recorded run; without FILE that run itself is replayed, and
how far the simulation is from what was measured is told.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastream.cli.experiment import NOT_HELD, Html, Json, print_table, progress_bar, save
from elastream.cli.options import as_seconds
from elastream.model.errors import CloudError, InputError

if TYPE_CHECKING:
    from elastream.model.cloud import Billing, HostType
    from elastream.model.plant import Policy

__all__ = ["simulate"]

Program = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A Python program or a YAML document.")]
Calibrate = Annotated[
    Path | None, typer.Option(metavar="RUN", help="Take costs from a recorded run; without FILE, replay it and tell the drift.")
]
Load = Annotated[str | None, typer.Option(metavar="LOAD", help="A CSV of counts, a YAML file, or a load such as 50/s.")]
Policies = Annotated[
    list[str] | None, typer.Option("--policy", metavar="NAME[:key=value,...]", help="A policy to try; repeat it.")
]
Prices = Annotated[Path | None, typer.Option(metavar="CSV", help="A price list; else the host types of FILE.")]
Shapes = Annotated[Path | None, typer.Option(metavar="CSV", help="Cores and memory, where the price list lacks them.")]
Hosts = Annotated[list[str] | None, typer.Option("--host", metavar="TYPE", help="Host types to use; repeat it.")]
Region = Annotated[str | None, typer.Option(metavar="NAME", help="Region of the price list.")]
Unit = Annotated[float, typer.Option(parser=as_seconds, metavar="TIME", help="Billing time unit.")]
Minimum = Annotated[float, typer.Option(parser=as_seconds, metavar="TIME", help="Least time that is billed.")]
Limit = Annotated[float | None, typer.Option(parser=as_seconds, metavar="TIME", help="How much of the load to simulate.")]
Period = Annotated[float, typer.Option(parser=as_seconds, metavar="TIME", help="Between two plans.")]


def simulate(
    file: Program = None,
    calibrate: Calibrate = None,
    load: Load = None,
    policy: Policies = None,
    prices: Prices = None,
    shapes: Shapes = None,
    host: Hosts = None,
    region: Region = None,
    billing: Unit = "1s",  # type: ignore[assignment]
    minimum: Minimum = "60s",  # type: ignore[assignment]
    limit: Limit = None,
    period: Period = "60s",  # type: ignore[assignment]
    target: Annotated[float, typer.Option(help="Fraction of records that must be in time.")] = 0.95,
    max_hosts: Annotated[int | None, typer.Option(help="Most hosts at once; else as FILE says, or 1000.")] = None,
    fused: Annotated[bool, typer.Option(help="Scale stages as Spark does, or every operator by itself.")] = False,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 1,
    html: Html = None,
    json_file: Json = None,
) -> None:
    """Compare policies on a dataflow and a load; exit status 1 where none meets the target.

    With --calibrate RUN and no FILE: replay a recorded run, and tell how far the simulation is from it.
    """
    from rich.console import Console

    console = Console()
    if file is None:
        if calibrate is None:
            raise typer.BadParameter("give a FILE to simulate, or --calibrate RUN to replay a recorded run")
        outcome = _replayed(calibrate, policy or [], seed, console)
    else:
        ...
    save(outcome, html, json_file, console)
    if not outcome.holds:
        raise typer.Exit(NOT_HELD)


def policy_from(text: str) -> "Policy":
    """The policy that `btu` or `static:hosts=3` names; a usage error where there is none such."""
    from elastream.api.document import POLICIES

    name, _, given = text.partition(":")
    if name not in POLICIES:
        raise typer.BadParameter(f"there is no policy {name!r} (there are: {', '.join(POLICIES)})")
    module, _, attribute = POLICIES[name].partition(":")
    parameters: dict[str, Any] = {}
    for part in filter(None, given.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise typer.BadParameter(f"{part!r} in {text!r} is not key=value")
        parameters[key.strip()] = _number(value.strip())
    try:
        policy: Policy = getattr(importlib.import_module(module), attribute)(**parameters)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(f"policy {text!r}: {error}") from None
    return policy


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


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
