"""`elastream simulate FILE`: compares policies in simulated time, or replays a recorded run and prints the drift.

`elastream prices` lists the hosts of a price list.
"""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastream.cli.experiment import MISSED_STATUS, STDOUT, Html, Json, save
from elastream.cli.options import NAME_FORM, as_seconds, as_some_seconds, is_quiet, named_by, options_of
from elastream.cli.output import AsJson, print_json
from elastream.cli.program import declared
from elastream.cli.tables import print_table
from elastream.errors import CloudError, ElastreamError, InputError
from elastream.settings import DataflowSettings, SimulateSettings

if TYPE_CHECKING:
    from rich.console import Console

    from elastream.core.hosts import HostType
    from elastream.core.plant import Policy
    from elastream.evaluation.findings import Findings
    from elastream.recording.recorder import Recording

Program = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A Python program or a YAML document.")]
Against = Annotated[
    Path | None, typer.Option(metavar="RUN", help="With --calibrate: replay this run with the constants of the other.")
]
Policies = Annotated[
    list[str] | None,
    typer.Option("--policy", metavar=NAME_FORM, help="Policy to compare, or file.py:Class. Repeatable."),
]
Prices = Annotated[
    Path | None,
    typer.Option(metavar="CSV", help="Price list, or ec2 for the shipped one. Default: the host types of FILE."),
]
Shapes = Annotated[Path | None, typer.Option(metavar="CSV", help="Cores and memory, if the price list lacks them.")]
Hosts = Annotated[list[str] | None, typer.Option("--host", metavar="TYPE", help="Host type to use. Repeatable.")]
PriceRegion = Annotated[str | None, typer.Option(metavar="NAME", help="Region of the price list.")]
Unit = Annotated[
    float | None,
    typer.Option(parser=as_some_seconds, metavar="TIME", help="Billing time unit of the price list. Default: 1s."),
]
Minimum = Annotated[
    float | None, typer.Option(parser=as_seconds, metavar="TIME", help="Least billed time of the price list. Default: 60s.")
]


@options_of(SimulateSettings)
def simulate(  # noqa: PLR0913
    context: typer.Context,
    file: Program = None,
    against: Against = None,
    policy: Policies = None,
    prices: Prices = None,
    shapes: Shapes = None,
    host: Hosts = None,
    region: PriceRegion = None,
    billing: Unit = None,
    minimum: Minimum = None,
    html: Html = None,
    json_file: Json = None,
    **settings: Any,
) -> None:
    """Compare policies on a dataflow and a load. The exit status is 1 if none meets the target.

    With --calibrate RUN and no FILE: replay a recorded run and print the drift. The exit status is 1 if it is too large.
    """
    from elastream.dashboard.console import make_console
    from elastream.evaluation.simulate import measured
    from elastream.evaluation.simulate import simulate as compared

    console = make_console(stderr=json_file == STDOUT)
    calibrate = settings.get("calibrate")
    if file is None:
        if calibrate is None:
            raise InputError("nothing to simulate: give a FILE, or --calibrate RUN to replay a recorded run")
        if settings.keys() & {"speeds", "links"}:
            raise InputError("a recorded run is replayed on hosts as they were: --speeds and --links need a FILE")
        seed = settings.get("seed", SimulateSettings.seed)
        _finish(console, _replay(calibrate, against, policy or [], seed, console), html, json_file)
        return
    declaration = declared(file)
    named: dict[str, Policy] = {text: named_by(text, "policy", file) for text in policy or []}
    named = named or {declaration.policy.name: declaration.policy}
    own = declaration.types if calibrate is None else measured(calibrate, declaration.graph)[1]
    cloud = None if prices is not None else declaration.settings.cloud
    of_file = {each.name: getattr(declaration.settings, each.name) for each in fields(DataflowSettings)}
    of_hosts = {
        "fused": calibrate is not None or (prices is None and declaration.fused),
        "max_hosts": None if cloud is None else cloud.max_hosts,
        "min_hosts": None if cloud is None else getattr(cloud, "min_hosts", 1),
    }
    scaling = declaration.settings.scaling.with_pairs(settings.pop("scaling", ()))
    replaced = [*settings, *(["policy"] if policy else []), *(["host_types", "cloud"] if prices is not None else [])]
    with declaration.placing(*replaced):
        types = hosts_from(prices, shapes, host or [], region, billing, minimum, list(own))
        comparison = compared(
            declaration.graph,
            named,
            **{**of_file, **of_hosts, **settings, "scaling": scaling, "host_types": types, "show": not is_quiet(context)},
        )
    print_table(console, comparison.table())
    console.print(comparison.verdict, highlight=False, markup=False, soft_wrap=True)
    _finish(console, comparison.outcome(), html, json_file)


def _finish(console: "Console", outcome: "Findings", html: Path | None, json_file: Path | None) -> None:
    save(console, outcome.to_json(), outcome.page, html, json_file)
    if not outcome.holds:
        raise typer.Exit(MISSED_STATUS)


def _replay(run: Path, against: Path | None, policy_texts: list[str], seed: int, console: "Console") -> "Findings":
    from elastream.evaluation.drift import replayed
    from elastream.recording.directory import RunDirectory
    from elastream.recording.guard_log import GuardLog
    from elastream.recording.recorder import Recording

    place = against or run
    recording = Recording.read(place)
    guards = GuardLog(RunDirectory(place).guards).versions if place.is_dir() else ()
    source = None if against is None else Recording.read(run)
    policies = _recorded_policy(recording) | {text: named_by(text, "policy") for text in policy_texts}
    from elastream.dashboard.progress import progress_bar

    with progress_bar(console) as progress:
        replay = replayed(recording, policies, source=source, place=str(place), seed=seed, guards=guards, progress=progress)
    print_table(console, replay.constants())
    print_table(console, replay.table())
    print_table(console, replay.phases())
    console.print(replay.verdict)
    return replay.outcome()


def _recorded_policy(recording: "Recording") -> "dict[str, Policy]":
    """Return the policy that drove the recorded run, by name; an empty dict if it is a class of the user's."""
    from elastream.documents.registry import POLICY, made
    from elastream.documents.user_code import References

    name, parameters = recording.header.policy, recording.header.environment.get("policy")
    if name not in POLICY.known or parameters is None:
        return {}
    try:
        return {name: made(POLICY, name, parameters, References(Path()))}
    except ElastreamError as error:
        raise InputError(f"the recorded policy {name} cannot be built from its recorded parameters: {error}") from None


def hosts_from(
    prices: Path | None,
    shapes: Path | None,
    names: list[str],
    region: str | None,
    unit: float | None,
    minimum: float | None,
    declared: "list[HostType]",
) -> "tuple[HostType, ...]":
    from elastream.core.hosts import Billing
    from elastream.documents.user_code import near
    from elastream.evaluation.prices import read_prices

    options = {"--shapes": shapes, "--region": region, "--billing": unit, "--minimum": minimum}
    if prices is None and (named := [name for name, value in options.items() if value is not None]):
        raise InputError(f"{named[0]} applies to a price list: give one with --prices")
    if prices is not None:
        billing = Billing(1.0 if unit is None else unit, 60.0 if minimum is None else minimum)
        return read_prices(prices, only=names, region=region, billing=billing, shapes=shapes)
    if unknown := sorted(set(names) - {type.name for type in declared}):
        hint = near(unknown[0], {type.name for type in declared})
        raise CloudError(f"--host {unknown[0]}: the dataflow declares no such host type{hint}")
    types = tuple(type for type in declared if not names or type.name in names)
    if not types:
        raise CloudError("no host types: declare them in the dataflow, or give a price list with --prices")
    return types


def prices(
    file: Annotated[Path, typer.Argument(metavar="[CSV]", help="Price list, or ec2 for the shipped one.")] = Path("ec2"),
    as_json: AsJson = False,
) -> None:
    """List the host types of a price list, cheapest first, in USD."""
    from elastream.dashboard.console import make_console
    from elastream.evaluation.page import Table
    from elastream.evaluation.prices import describe, read_prices

    kinds = read_prices(file)
    if as_json:
        print_json(kinds)
        return
    rows = []
    for kind in kinds:
        hour = kind.price_rate * 3600
        core_hour = hour / kind.cores if kind.cores else 0.0
        gib = kind.memory * 1e6 / 2**30
        rows.append((kind.name, f"{kind.cores:g}", f"{gib:g}", f"{hour:.4f}", f"{hour * 730:.2f}", f"{core_hour:.4f}"))
    header = ("type", "cores", "memory, GiB", "per hour", "per month", "per core-hour")
    print_table(make_console(), Table(describe(file), header, tuple(rows)))
