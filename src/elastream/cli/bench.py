"""`elastream bench nexmark`: a benchmark of streaming queries on hosts of your own."""

import json
from pathlib import Path
from typing import Annotated

import typer

from elastream.cli.experiment import MISSED_STATUS, STDOUT, Html, Json
from elastream.cli.options import as_seconds, as_some_seconds
from elastream.cli.tables import print_table
from elastream.errors import ElastreamError, InputError

bench = typer.Typer(name="bench", no_args_is_help=True, help="Benchmarks of streaming queries on your hosts.")

QUICK_SECONDS, SECONDS = 20.0, 60.0
QUICK_QUERIES = "q0,q5,q8"


@bench.callback()
def _group() -> None:
    """Benchmarks of streaming queries on your hosts."""


def as_rate(text: str) -> float:
    """Parse a rate such as `20k/s`. Raises a usage error for other text."""
    from elastream.units import rate

    try:
        events = rate(text)
    except ElastreamError as error:
        raise typer.BadParameter(str(error)) from None
    if not events > 0:
        raise typer.BadParameter(f"{text!r} is no load: it must be above 0")
    return events


@bench.command()
def nexmark(
    queries: Annotated[
        str | None, typer.Option(metavar="Q,Q,...", help="Queries, such as q0,q5. Default: all 23; with --quick: q0,q5,q8.")
    ] = None,
    rate: Annotated[
        float, typer.Option(parser=as_rate, metavar="RATE", help="Highest rate of events, such as 20k/s.")
    ] = "5k/s",  # type: ignore[assignment]
    load: Annotated[
        str, typer.Option(metavar="SHAPE", help="constant, wave, steps, burst, or a recorded load.")
    ] = "constant",
    lasts: Annotated[
        float | None, typer.Option(parser=as_some_seconds, metavar="TIME", help="Length of the load. Default: 60s.")
    ] = None,
    arms: Annotated[
        str, typer.Option(metavar="ARM,ARM,...", help="Ways to give executors: fixed:N, dra, autopilot, autopilot:POLICY.")
    ] = "fixed:2,autopilot",
    max_hosts: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Most executors of an arm that scales. Default: 2, or N of fixed."),
    ] = None,
    target_latency: Annotated[
        float, typer.Option(parser=as_some_seconds, metavar="TIME", help="Target from an event's time to its commit.")
    ] = "5s",  # type: ignore[assignment]
    disorder: Annotated[
        float, typer.Option(parser=as_seconds, metavar="TIME", help="Disorder of event times, below 4s.")
    ] = "0s",  # type: ignore[assignment]
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the events.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Runs of each query under each arm.")] = 1,
    master: Annotated[
        str, typer.Option(metavar="URL", help="Standalone master, spark://HOST:PORT. Default: local hosts.")
    ] = "",
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder that all executors of the cluster reach by this path.")
    ] = None,
    executor_cores: Annotated[float | None, typer.Option(metavar="N", help="Cores of an executor. Default: 0.5.")] = None,
    executor_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of an executor, such as 4GB. Default: 1GB.")
    ] = None,
    kill: Annotated[int, typer.Option(min=0, metavar="N", help="Local hosts that are killed during each run.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="By default three queries and a load of 20s.")] = False,
    html: Html = None,
    json_file: Json = None,
) -> None:
    """Run Nexmark's queries and compare every row with a batch; exit status 1 if an answer is wrong."""
    from elastream.bench.nexmark import suite as suites
    from elastream.bench.nexmark.arms import Cluster, arm_of
    from elastream.bench.nexmark.events import Events
    from elastream.bench.nexmark.queries import QUERIES
    from elastream.bench.nexmark.runs import Setup, query_of
    from elastream.bench.nexmark.shapes import load_of
    from elastream.clouds.executors import declared_type
    from elastream.clouds.provider import SMALL
    from elastream.dashboard.console import make_console
    from elastream.dashboard.progress import progress_bar
    from elastream.evaluation.page import render
    from elastream.recording.directory import write_text

    names = queries or (QUICK_QUERIES if quick else ",".join(QUERIES))
    chosen = tuple(dict.fromkeys(map(query_of, names.split(","))))
    ways = tuple(dict.fromkeys(map(arm_of, arms.split(","))))
    suites.check_spark(chosen)
    if disorder >= 4:
        raise typer.BadParameter(
            f"a disorder of {disorder:g} s: events behind the watermark, which follows by 4 s, have no answer"
        )
    shape = load_of(load, rate, lasts or (QUICK_SECONDS if quick else SECONDS))
    suites.check_rate(rate)
    host = (
        SMALL
        if (executor_cores, executor_memory) == (None, None)
        else declared_type(None, executor_cores, executor_memory, None)
    )
    most = max_hosts or max(2, *(arm.hosts for arm in ways))
    partitions = host.slots * max(most, *(arm.hosts for arm in ways))
    cluster = Cluster(host, most, partitions, master, folder)
    if kill and master:
        raise InputError("--kill kills local hosts: leave out --master")
    suite = suites.Suite(Setup(Events(seed, shape, disorder), cluster, target_latency, kill), chosen, ways, rounds)
    facts = suites.conditions(suite, load)
    console = make_console(stderr=json_file == STDOUT)
    with progress_bar(console) as progress:
        outcomes = suite.run(progress)
    print_table(console, suites.table_of(outcomes, target_latency))
    if (compared := suites.against(outcomes)) is not None:
        print_table(console, compared)
    for outcome in outcomes:
        if outcome.remark:
            console.print(f"{outcome.query} under {outcome.arm}: {outcome.remark}")
    if json_file is not None:
        text = json.dumps(suites.figures_of(outcomes, facts), indent=1, allow_nan=False) + "\n"
        if json_file == STDOUT:
            typer.echo(text, nl=False)
        else:
            console.print(f"figures: {write_text(json_file, text, 'figures')}")
    if html is not None:
        console.print(f"page: {write_text(html, render(suites.page_of(outcomes, suite, facts)), 'page')}")
    if any(outcome.correct is False for outcome in outcomes):
        raise typer.Exit(MISSED_STATUS)
