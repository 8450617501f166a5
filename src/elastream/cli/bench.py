"""`elastream bench`: benchmarks of streaming queries on executors of your own."""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from elastream.cli.experiment import MISSED_STATUS, STDOUT, Html, Json, save
from elastream.cli.options import as_seconds, as_some_seconds, parsed
from elastream.cli.tables import print_table
from elastream.errors import InputError
from elastream.settings import SparkSettings

if TYPE_CHECKING:
    from elastream.bench.arms import Arm, Cluster
    from elastream.bench.runs import Outcome
    from elastream.bench.suite import Suite
    from elastream.bench.workload import Workload
    from elastream.evaluation.page import Table
    from elastream.loads.pattern import Pattern

bench = typer.Typer(name="bench", no_args_is_help=True, help="Benchmarks of streaming queries on your hosts.")

RATE, SECONDS, ARMS = 5_000.0, 60.0, "fixed:2,autopilot"
QUICK_RATE, QUICK_SECONDS, QUICK_ARMS = 1_000.0, 5.0, "fixed:2"
QUICK_TOGETHER = 4  # queries of a quick run that run at once


def as_rate(text: str) -> float:
    from elastream.units import rate

    if not (events := parsed(rate, text)) > 0:
        raise typer.BadParameter(f"{text!r} is not a load above 0")
    return events


def as_bytes(text: str) -> int:
    from elastream.units import memory

    return round(parsed(memory, text) * 1e6)


@dataclass(frozen=True)
class LoadOptions:
    rate: Annotated[
        float | None,
        typer.Option(parser=as_rate, metavar="RATE", help="Highest rate of events, such as 20k/s. Default: 5k/s."),
    ] = None
    load: Annotated[str, typer.Option(metavar="SHAPE", help="constant, wave, steps, burst, or a recorded load.")] = (
        "constant"
    )
    lasts: Annotated[
        float | None, typer.Option(parser=as_some_seconds, metavar="TIME", help="Length of the load. Default: 60s.")
    ] = None
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the events.")] = 1

    def pattern(self, rate: float = RATE, seconds: float = SECONDS) -> "Pattern":
        """Return the load, by default with this highest rate (events/s) and length."""
        from elastream.bench.shapes import load_of

        return load_of(self.load, self.rate or rate, self.lasts or seconds)


@dataclass(frozen=True)
class Conditions(LoadOptions):
    target_latency: Annotated[
        float, typer.Option(parser=as_some_seconds, metavar="TIME", help="Target from an event's time to its commit.")
    ] = "5s"  # type: ignore[assignment]
    master: Annotated[
        str, typer.Option(metavar="URL", help="spark://HOST:PORT, yarn or k8s://https://HOST:PORT. Default: local hosts.")
    ] = ""
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            resolve_path=True,
            help="Folder that all executors of the cluster reach by this path.",
        ),
    ] = None
    kafka: Annotated[str, typer.Option(metavar="HOST:PORT", help="Kafka broker that carries the events.")] = ""
    executor_cores: Annotated[float | None, typer.Option(metavar="N", help="Cores of an executor. Default: 0.5.")] = None
    executor_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of an executor, such as 4GB. Default: 1GB.")
    ] = None
    setting: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Setting of Spark, such as spark.jars. Repeatable.")
    ] = None
    html: Html = None
    json_file: Json = None

    def cluster(self, executors: int, most: int) -> "Cluster":
        from elastream.bench.arms import Cluster
        from elastream.clouds.executors import declared_type
        from elastream.clouds.provider import SMALL

        shaped = (self.executor_cores, self.executor_memory) != (None, None)
        host = declared_type(None, self.executor_cores, self.executor_memory, None) if shaped else SMALL
        settings = SparkSettings().read("setting", self.setting or [])
        return Cluster(host, most, host.slots * max(executors, most), self.master, self.folder, settings)


@dataclass(frozen=True)
class Arms(Conditions):
    arms: Annotated[
        str | None,
        typer.Option(
            metavar="ARM,ARM,...",
            help="Ways to give executors: fixed:N, watched:N, dra, autopilot, autopilot:POLICY. "
            "Default: fixed:2,autopilot; with --quick: fixed:2.",
        ),
    ] = None
    max_hosts: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Most executors of an arm that scales. Default: 2, or N of fixed."),
    ] = None
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Runs of each workload under each arm.")] = 1
    kill: Annotated[int, typer.Option(min=0, metavar="N", help="Local hosts that are killed during each run.")] = 0
    scale: Annotated[
        bool, typer.Option("--scale", help="Under Autopilot, add a host during each run and give it back.")
    ] = False

    def suite(self, workloads: "Sequence[Workload]", together: int = 0, arms: str = ARMS) -> "Suite":
        """Return the suite of `workloads`, each in a session of its own, or all `together` in one."""
        from elastream.bench.arms import arm_of
        from elastream.bench.runs import Setup
        from elastream.bench.suite import Suite, check

        chosen: tuple[Arm, ...] = tuple(dict.fromkeys(map(arm_of, (arms if self.arms is None else self.arms).split(","))))
        check(workloads, self.kafka)
        if self.kill and self.master:
            raise InputError("--kill kills local hosts: leave out --master")
        if self.scale and not all(arm.piloted and not arm.hosts for arm in chosen):
            raise InputError("--scale lets Autopilot scale: choose --arms autopilot")
        fixed = max(arm.hosts for arm in chosen)
        cluster = self.cluster(fixed, self.max_hosts or max(2, fixed))
        setup = Setup(cluster, self.target_latency, self.kill, self.kafka, self.scale)
        size = together or 1
        groups = [workloads[at : at + size] for at in range(0, len(workloads), size)]
        return Suite(setup, [groups] if together else [[each] for each in groups], chosen, self.rounds, self.seed)


def with_options(declaring: type[LoadOptions]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of `declaring`, as its argument `options`."""
    hints = get_type_hints(declaring, include_extras=True)
    defaults = {each.name: each.default for each in fields(declaring)}
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        for name, default in defaults.items()
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [each for name, each in inspect.signature(command).parameters.items() if name != "options"]
        own_hints = get_type_hints(command, include_extras=True)

        @wraps(command)
        def call(**arguments: Any) -> None:
            shared = declaring(**{name: arguments.pop(name) for name in defaults})
            command(options=shared, **arguments)

        parameters = [*(each.replace(annotation=own_hints[each.name]) for each in own), *options]
        vars(call)["__signature__"] = inspect.Signature(parameters)
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        return call

    return decorate


@bench.command()
@with_options(Arms)
def nexmark(
    options: Arms,
    queries: Annotated[
        str | None,
        typer.Option(
            metavar="Q,Q,...", help="Queries, such as q0,q5, or q5@20s with a target of its own. Default: all 23."
        ),
    ] = None,
    together: Annotated[bool, typer.Option("--together", help="Run the queries at once, in one application.")] = False,
    disorder: Annotated[
        float, typer.Option(parser=as_seconds, metavar="TIME", help="Disorder of event times, below 4s.")
    ] = "0s",  # type: ignore[assignment]
    quick: Annotated[
        bool, typer.Option("--quick", help="Check answers: four queries at a time in one application, 1k/s for 5s.")
    ] = False,
) -> None:
    """Run Nexmark's queries and compare every row with a batch; exit status 1 if an answer is wrong."""
    from elastream.bench.nexmark.events import Events
    from elastream.bench.nexmark.queries import QUERIES
    from elastream.bench.nexmark.workload import Nexmark, queries_of

    chosen = queries_of(",".join(QUERIES) if queries is None else queries)
    load = options.pattern(QUICK_RATE, QUICK_SECONDS) if quick else options.pattern()
    events = Events(options.seed, load, disorder)
    workloads = [Nexmark(query, events, target) for query, target in chosen.items()]
    size = len(workloads) if together else QUICK_TOGETHER if quick else 0
    suite = options.suite(workloads, size, QUICK_ARMS if quick else ARMS)
    _run("Nexmark on Spark", suite, options, {"disorder, s": disorder})


@bench.command()
@with_options(Arms)
def shuffle(
    options: Arms,
    state: Annotated[
        int, typer.Option(parser=as_bytes, metavar="SIZE", help="State of all consumers, such as 1GB.")
    ] = "1MB",  # type: ignore[assignment]
    consumers: Annotated[int, typer.Option(min=1, metavar="N", help="Number of consumers, each with a state.")] = 1000,
    record: Annotated[int, typer.Option(parser=as_bytes, metavar="SIZE", help="Size of a record.")] = "1KB",  # type: ignore[assignment]
    selectivity: Annotated[float, typer.Option(metavar="SHARE", help="Share of records that have a consumer.")] = 0.2,
    every: Annotated[int, typer.Option(min=1, metavar="N", help="Records after which a consumer emits an event.")] = 10,
) -> None:
    """Run ShuffleBench's task: consumers with state take the records that match; exit status 1 if a result is wrong."""
    from elastream.bench.shuffle import Records, Shuffle

    records = Records(options.pattern(), record, options.seed)
    workload = Shuffle(records, consumers, selectivity, state, every)
    suite = options.suite([workload])
    facts = {"state, bytes": state, "consumers": consumers, "record, bytes": record, "selectivity": selectivity}
    _run("ShuffleBench on Spark", suite, options, facts)


@bench.command()
@with_options(Conditions)
def demand(
    options: Conditions,
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help="nexmark:QUERY or shuffle.")],
    up_to: Annotated[int, typer.Option(min=1, metavar="N", help="Most executors.")] = 4,
    loads: Annotated[int, typer.Option(min=1, metavar="N", help="Loads, in equal steps up to the rate.")] = 3,
    repetitions: Annotated[int, typer.Option(min=1, metavar="N", help="Searches at each load.")] = 1,
    autopilot: Annotated[bool, typer.Option("--autopilot", help="Run each load under Autopilot, too.")] = False,
) -> None:
    """Search for the fewest executors that hold the target latency, by load."""
    from elastream.bench import demand as demands
    from elastream.bench.runs import Setup
    from elastream.bench.suite import Suite, check, conditions
    from elastream.dashboard.console import make_console
    from elastream.dashboard.progress import progress_bar

    highest = options.rate or RATE
    at = [(highest * part, _workload(workload, options, part)) for part in [(n + 1) / loads for n in range(loads)]]
    check([workload for _, workload in at], options.kafka)
    setup = Setup(options.cluster(up_to, up_to), options.target_latency, kafka=options.kafka)
    highest_first = [[[workload]] for _, workload in reversed(at)]
    facts = conditions(Suite(setup, highest_first, (), repetitions, options.seed), options.load, {"loads": loads})
    console = make_console(stderr=options.json_file == STDOUT)
    with progress_bar(console) as progress:
        results = demands.demand(at, setup, up_to, repetitions, progress, autopilot=autopilot)
    fewest = demands.table_of(results, setup.cluster.host.cores, options.target_latency, up_to)
    elastic = demands.elastic_table(results, options.target_latency)
    tables = [fewest, *([] if elastic is None else [elastic]), demands.runs_table(results, options.target_latency)]
    outcomes = [run for each in results for run in each.all_runs]
    _show(console, tables, outcomes)
    page = demands.page_of(workload, results, tables, setup.cluster.host.cores, facts)
    save(console, demands.figures_of(workload, results, facts), page, options.html, options.json_file)
    if any(outcome.correct is False for outcome in outcomes):
        raise typer.Exit(MISSED_STATUS)


@bench.command()
@with_options(LoadOptions)
def events(
    options: LoadOptions,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Empty or new folder.")],
    disorder: Annotated[float, typer.Option(parser=as_seconds, metavar="TIME", help="Disorder of event times.")] = "0s",  # type: ignore[assignment]
    late: Annotated[float, typer.Option(metavar="SHARE", help="Share of events with a further delay.")] = 0.0,
    late_by: Annotated[float, typer.Option(parser=as_seconds, metavar="TIME", help="Their further delay.")] = "60s",  # type: ignore[assignment]
) -> None:
    """Write Nexmark's events as Parquet files: persons, auctions and bids."""
    from elastream.bench.nexmark.events import Events
    from elastream.bench.nexmark.files import write_events
    from elastream.dashboard.console import make_console
    from elastream.dashboard.progress import progress_bar

    with progress_bar(make_console()) as progress:
        write_events(Events(options.seed, options.pattern(), disorder, late, late_by), folder, progress)


def _workload(text: str, options: Conditions, scale: float) -> "Workload":
    load = options.pattern().scaled(scale)
    kind, _, name = text.partition(":")
    if kind == "nexmark" and name:
        from elastream.bench.nexmark.events import Events
        from elastream.bench.nexmark.workload import Nexmark, query_of

        return Nexmark(query_of(name), Events(options.seed, load))
    if text == "shuffle":
        from elastream.bench.shuffle import Records, Shuffle

        return Shuffle(Records(load, seed=options.seed))
    raise InputError(f"there is no workload {text!r} (there are: nexmark:q0 to nexmark:q22, shuffle)")


def _run(title: str, suite: "Suite", options: Arms, more: Mapping[str, object]) -> None:
    from elastream.bench import suite as suites
    from elastream.dashboard.console import make_console
    from elastream.dashboard.progress import progress_bar

    # Autopilot warns that it cannot size while the load is held; an error of its own is another matter.
    errors, package = logging.StreamHandler(), logging.getLogger("elastream")
    errors.setLevel(logging.ERROR)
    facts = suites.conditions(suite, options.load, more)
    console = make_console(stderr=options.json_file == STDOUT)
    package.addHandler(errors)
    try:
        with progress_bar(console) as progress:
            outcomes = suite.run(progress)
    finally:
        package.removeHandler(errors)
    compared = suites.against(outcomes)
    tables = [suites.table_of(outcomes, options.target_latency), *([] if compared is None else [compared])]
    _show(console, tables, outcomes)
    page = suites.page_of(title, outcomes, suite, facts)
    save(console, suites.figures_of(outcomes, facts), page, options.html, options.json_file)
    if any(outcome.correct is False for outcome in outcomes):
        raise typer.Exit(MISSED_STATUS)


def _show(console: Any, tables: "Sequence[Table]", outcomes: "Sequence[Outcome]") -> None:
    for table in tables:
        print_table(console, table)
    for outcome in outcomes:
        if outcome.remark:
            console.print(f"{outcome.workload} under {outcome.arm}: {outcome.remark}")
