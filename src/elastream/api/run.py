"""`run(...)`: runs a dataflow under a policy, shows the run, and ends it in order."""

import contextlib
import logging
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from elastream.api.arguments import check_cloud, check_observers, check_policy, check_type
from elastream.api.folder import RunFolder, on_this_machine, opened, resumable
from elastream.api.freshness import check_resident, check_sleeps, keep_dataflow_fresh, report_caught_up, watched
from elastream.api.observers import cluster_observers
from elastream.api.repartitioning import RepartitionExtension, RunCheckpoints, check_repartitions
from elastream.api.result import RunResult
from elastream.control.extension import CodeExtension, KeyTableExtension
from elastream.control.guarding import GuardExtension
from elastream.control.journal import Journal
from elastream.control.loop import Loop
from elastream.control.requests import RequestExtension
from elastream.control.scaling import with_window
from elastream.core.composition import check_consistency, consistency_of
from elastream.core.fitting import check_feasible, check_replicas, check_rules, state_partitions_of, unchangeable
from elastream.core.hosts import HostType
from elastream.core.observation import Composition, Context
from elastream.core.plant import Policy
from elastream.dashboard.live import RunView
from elastream.dashboard.page.serving import page_beside
from elastream.dashboard.showing import shown
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.compiling import plan_queries
from elastream.dataflow.endpoints import Collected, Files, KafkaTopic, TextFiles
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import selection_of, selections_of
from elastream.dataflow.operators import NATIVE
from elastream.dataflow.stages import lay_out
from elastream.documents.registry import parameters_of
from elastream.errors import ElastreamError, InputError, about, in_one_line
from elastream.freshness.wakes import RunReporter, WakeOrder
from elastream.guards.document import GuardDocument, load_guards
from elastream.guards.pollers import Pollers, pollable
from elastream.policies.horizon.policy import Horizon
from elastream.policies.static import Static
from elastream.recording.code_log import CodeLog
from elastream.recording.directory import RunDirectory
from elastream.recording.file_systems import FILES_REACHED_BY, reached_by
from elastream.recording.guard_log import GuardLog
from elastream.recording.key_table_log import KeyTableLog
from elastream.recording.manifest import directory_of
from elastream.recording.observer import Ending, Observer, describe_run
from elastream.recording.paths import path_of
from elastream.recording.recorder import Recorder
from elastream.recording.run_state import StopRequests
from elastream.report.tally import retention_of
from elastream.settings import CommandSettings, RunSettings, keywords_of
from elastream.spark.dataflow.shipping import pickled
from elastream.spark.dataflow.sinks import check_sink, replace_results, tables_collected
from elastream.spark.dataflow.sources import check_source
from elastream.spark.queries.compiled import CompiledQueries
from elastream.spark.queries.segments import scalable_operators
from elastream.spark.queries.updating import begin_code, with_first_code, with_newest_code
from elastream.spark.start import cloud_of, pace_of, start_plant
from elastream.spark.telemetry.kafka_offsets import committing
from elastream.spark.worker.composition import CompositionCodec
from elastream.systems import check_system
from elastream.units import format_duration

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Tracebacks of a fault in each round would fill a disk in weeks.
LOG_BYTES, LOG_BACKUPS = 10_000_000, 3


@keywords_of(RunSettings)
def run(flow: Dataflow | Graph, settings: RunSettings) -> RunResult:
    """Run `flow` until its load ends; without a load, until it is stopped.

    It runs on hosts of `cloud`; without a cloud, in this process, in the open Spark session or a new one. Ctrl-C and
    SIGTERM end the run cleanly.

    Raises:
        ElastreamError: An error that the user can correct; nothing is left running.
    """
    policy = check_policy(settings.policy)
    cloud = None if settings.cloud is None else check_cloud(settings.cloud)  # a command may replace it
    check_observers(settings.observers)
    check_type("flow", flow, Dataflow, Graph, description="a Dataflow")
    return launcher()(flow.graph if isinstance(flow, Dataflow) else flow, replace(settings, policy=policy, cloud=cloud))


# Function that carries out calls of `run`. A command installs one while it executes a program.
Launcher: TypeAlias = Callable[[Graph, RunSettings], RunResult]

_launchers: list[Launcher] = []


def launcher() -> Launcher:
    """Return the launcher in force, by default one that runs the dataflow with the settings of the call."""
    return _launchers[-1] if _launchers else Command()


@contextmanager
def launching(by: Launcher) -> Iterator[None]:
    """Let `by` carry out the calls of `run` inside the context, of all threads."""
    _launchers.append(by)
    try:
        yield
    finally:
        _launchers.remove(by)


@dataclass(eq=False)
class Command:
    """A launcher that runs a dataflow with a command's settings in place of the program's.

    Attributes:
        settings: Settings of `CommandSettings` by name.
        rules: Scaling rules, `KEY=VALUE` each, which replace single rules of the program.
        program: Description of how to execute the program again, for the run's folder.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    rules: Sequence[str] = ()
    observers: Sequence[Observer] = ()
    program: Mapping[str, Any] = field(default_factory=dict)
    calls: int = 0

    def __call__(self, graph: Graph, settings: RunSettings) -> RunResult:
        return _carry_out(graph, self.applied(settings), self.program)

    def applied(self, settings: RunSettings) -> CommandSettings:
        self.calls += 1
        whole = CommandSettings(**{each.name: getattr(settings, each.name) for each in fields(settings)})
        scaling, observers = whole.scaling.with_pairs(self.rules), [*self.observers, *whole.observers]
        changes = dict(self.settings)
        if "settings" in changes:
            changes["settings"] = {**(whole.settings or {}), **changes["settings"]}
        return replace(whole, **changes, scaling=scaling, observers=observers)


@contextmanager
def commanded(**settings: Any) -> Iterator[None]:
    """Run dataflows inside the context with `settings` of `CommandSettings` in place of the program's."""
    with launching(Command(settings)):
        yield


def _carry_out(
    graph: Graph, settings: CommandSettings, program: Mapping[str, Any], order: WakeOrder | None = None
) -> RunResult:
    check_system("run(...)", also=("darwin",))
    policy = Static(hosts=1) if settings.freshness is not None else check_policy(settings.policy) or Horizon()
    if settings.cloud is not None:
        settings = replace(settings, cloud=check_cloud(settings.cloud))
    cloud = cloud_of(settings)
    graph = _with_input(graph, settings.input)
    os.environ[FILES_REACHED_BY] = reached_by(settings.settings or {})
    earlier = None if settings.resume is None else on_this_machine(settings.resume)
    if earlier is not None:
        graph = with_first_code(graph, RunDirectory(earlier))
    settings = replace(
        settings,
        cloud=cloud,
        policy=policy,
        scaling=with_window(settings.scaling, policy, cloud.stabilization_down),
        batch=pace_of(settings.latency, lay_out(graph)) if settings.batch is None else settings.batch,
    )
    admit(
        graph,
        settings,
        types=cloud.types,
        max_hosts=cloud.max_hosts,
        run=None if settings.fresh else "" if earlier is None else resumable(RunDirectory(earlier)).id,
        sleeps=settings.freshness is not None or order is not None,
    )
    check_rules(settings.scaling, cloud.max_hosts, cloud.types, cloud.min_hosts)
    if settings.freshness is not None:
        check_resident(settings)
    newest = graph if earlier is None else with_newest_code(graph, RunDirectory(earlier))
    document = None if settings.guards is None else pollable(load_guards(Path(settings.guards), newest))
    for table in settings.tables:
        table.check(selection_of(newest, table.operator))
    if settings.freshness is not None and earlier is not None:  # a run of an earlier controller may hold the folder's lock
        return _run_fresh(graph, directory_of(earlier.resolve()), settings, program)
    with opened(graph, path_of(settings.runs), earlier) as folder:
        default = state_partitions_of(cloud.types, cloud.max_hosts, policy.partitions_a_host)
        folder = folder.begin(graph, settings, default, program)
        if settings.fresh:
            replace_results(operator.writes for operator in graph.sinks)
        if settings.freshness is None:
            return _run_in(folder, graph, settings, policy, document, order)
    return _run_fresh(graph, folder.directory, settings, program)


def _run_fresh(graph: Graph, directory: RunDirectory, settings: CommandSettings, program: Mapping[str, Any]) -> RunResult:
    keep_dataflow_fresh(directory, settings, lambda own, order: _carry_out(graph, own, program, order))
    return RunResult.read(directory.root)


def _run_in(
    folder: RunFolder,
    graph: Graph,
    settings: CommandSettings,
    policy: Policy,
    document: GuardDocument | None,
    order: WakeOrder | None,
) -> RunResult:
    directory, resumed = folder.directory, folder.resumed
    selections = selections_of(with_newest_code(graph, directory))
    checkpoints, own_repartitions = RunCheckpoints.of(directory, settings), list[RepartitionExtension]()
    if checkpoints.rule is not None:
        own_repartitions.append(RepartitionExtension(checkpoints, policy.partitions_a_host))
    keep = retention_of(float(settings.retention))
    copies = [] if settings.record is None else [Recorder(settings.record, keep=keep)]
    recorders = [Recorder(directory.recording, resumed=resumed is not None, keep=keep), *copies]
    versions = GuardLog(directory.guards)
    # A resumed run may have a later version of the guards in force.
    if document is not None and document.text not in {version.text for version in versions.versions}:
        versions.append(document.text, document.path, "run")
    begin_code(graph, directory)
    table_log = KeyTableLog(directory, selections)
    for table in settings.tables:
        if not table_log.has(table):
            table_log.append(table, "run")
    environment: dict[str, Any] = {
        "machine": platform.platform(),
        "python": platform.python_version(),
        "directory": str(directory.root),
        "cores": os.cpu_count(),
        "period": settings.period,
        "batch seconds": settings.batch,
        "consistency": settings.consistency,
        "replicas": settings.replicas,
        "retention": format_duration(float(settings.retention)),
        "policy": parameters_of(policy),
        "scaling": dict(settings.scaling.set),
        "currency": settings.currency,
    }
    with (
        _logged(directory.log),
        page_beside(directory, _show_page) if settings.page else contextlib.nullcontext(),
        shown(graph, directory, settings) as views,
        _ending_in_order() as stop,
    ):
        started = folder.manifest.started
        with (
            _recorded_if_it_fails(recorders, graph, policy, settings.latency, environment, started),
            _interrupts_unlogged(),
        ):
            plant = start_plant(
                graph,
                directory,
                replace(settings, state_partitions=folder.partitions),
                resumed=resumed,
                progress=partial(_show_start, views, graph.name),
                bounded=None if order is None else order.hosts,
                checkpoints=checkpoints if order is None else None,
                stateless=policy.places_stateless,
            )
        try:
            if order is not None:
                RunReporter(directory, order).started()
            environment |= {"spark": plant.spark.version, "hosts": plant.confinement}
            header = describe_run(
                plant.context,
                policy=policy.name,
                plant="spark",
                started=plant.clock.epoch,
                environment=environment,
                resumed=folder.record_start(plant.hosts.taken_over, plant.clock.epoch),
            )
            topics = [each.reads for each in graph.sources if isinstance(each.reads, KafkaTopic)]
            stop_requests = StopRequests(directory)
            with closing(Pollers(plant.clock.now)) as pollers, committing(plant.spark, topics):
                loop = Loop(
                    plant,
                    policy,
                    monitor=float(settings.monitor),
                    period=float(settings.period),
                    observers=[*recorders, *views, stop_requests, *settings.observers, *cluster_observers(plant.spark)],
                    journal=Journal(directory.journal),
                    observe_only=settings.observe_only,
                    paused=lambda: directory.is_paused,
                    limit=None if settings.limit is None else float(settings.limit),
                    facts=plant.facts,
                    header=header,
                    extensions=(
                        GuardExtension(versions, pollers),
                        KeyTableExtension(table_log),
                        CodeExtension(CodeLog(directory)),
                        RequestExtension(directory),
                        *own_repartitions,
                    ),
                    scaling=settings.scaling,
                    remarks=unchangeable(plant.context, policy),
                )
                if order is not None:
                    plant.queries.caught_up = partial(_end_caught_up, RunReporter(directory, order), loop)
                stop.then(loop.stop, plant.clock.wake)
                stop_requests.stop = loop.stop
                folder.if_lost(lambda: loop.stop("another driver continues the run"))
                folder.if_lost(plant.clock.wake)
                ending = loop.run()
        finally:
            plant.close()
        if ending.status == "failed":
            raise ElastreamError(ending.reason)
    rows = tables_collected(
        [operator.writes.name for operator in graph.operators if isinstance(operator.writes, Collected)]
    )
    return RunResult(directory.root, settings.report or directory.report, rows, plant.queries.committed_records())


def _end_caught_up(reporter: RunReporter, loop: Loop, queries: CompiledQueries) -> None:
    report_caught_up(reporter, watched(queries))
    loop.stop("all records that waited at its start are committed")


def _show_page(url: str) -> None:
    print(f"live page: {url}", file=sys.stderr, flush=True)


def _show_start(views: Sequence[RunView], flow: str, text: str) -> None:
    for view in views:
        view.awaited(flow, text)


@contextmanager
def _recorded_if_it_fails(
    recorders: Sequence[Recorder],
    graph: Graph,
    policy: Policy,
    target: float | None,
    environment: Mapping[str, Any],
    started: float,
) -> Iterator[None]:
    """Record a run that cannot be started, so that its folder has its settings and the error."""
    try:
        yield
    except BaseException as error:
        # The cloud may be the cause, so that nothing is read from it.
        header = describe_run(
            Context(lay_out(graph), {}, target), policy=policy.name, plant="spark", started=started, environment=environment
        )
        interrupted = isinstance(error, KeyboardInterrupt)
        reason = "interrupted before the first host was ready" if interrupted else in_one_line(error)
        ending = Ending("stopped" if interrupted else "failed", time.time() - started, reason)
        for recorder in recorders:
            with contextlib.suppress(ElastreamError):  # a full disk must not hide the error of the run
                recorder.started(header)
                recorder.ended(ending)
        raise


@contextmanager
def _interrupts_unlogged() -> Iterator[None]:
    def is_no_interrupt(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))

    root, handler = logging.getLogger(), logging.NullHandler()
    root.addFilter(is_no_interrupt)
    if not root.handlers:
        root.addHandler(handler)  # logging would otherwise print the records of run.log on standard error
    try:
        yield
    finally:
        root.removeFilter(is_no_interrupt)
        root.removeHandler(handler)


class _RunLog(RotatingFileHandler):
    """The log file of a run. It drops records if the disk is full."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Write the package's log to a file, because it would disturb the live view."""
    logger, handler = (
        logging.getLogger("elastream"),
        _RunLog(path, maxBytes=LOG_BYTES, backupCount=LOG_BACKUPS, encoding="utf-8", delay=True),
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


class _Stop:
    """A signal handler that ends the loop. It interrupts before the loop exists, and at the second signal."""

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        self._signals = signals
        self._requested = False
        self.then()

    def then(self, *actions: Callable[[], object]) -> None:
        self._actions = actions
        for number in self._signals:  # again with the loop: PySpark replaces the handler when it opens its session
            signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._requested or not self._actions:
            raise KeyboardInterrupt
        self._requested = True
        for action in self._actions:
            action()


@contextmanager
def _ending_in_order() -> Iterator[_Stop]:
    """Install handlers by which SIGINT and SIGTERM end the run cleanly; do nothing outside the main thread."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (SIGNALS if main else ())}
    try:
        yield _Stop(before)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _with_input(graph: Graph, path: str | None) -> Graph:
    if path is None:
        return graph
    readers = {o.name: replace(o.reads, path=path) for o in graph.sources if isinstance(o.reads, TextFiles | Files)}
    if len(readers) != 1:
        raise InputError(f"--input {path}: dataflow {graph.name!r} has {len(readers)} sources that read files, not one")
    operators = tuple(replace(o, reads=readers.get(o.name, o.reads)) for o in graph.operators)
    return Graph(graph.name, operators, graph.edges)


def admit(
    graph: Graph,
    settings: RunSettings,
    *,
    types: Sequence[HostType] = (),
    max_hosts: int = 1_000_000,
    run: str | None = "",
    sleeps: bool = False,
) -> None:
    """Check that `graph` can run on Spark with `settings`, without a session or a JVM.

    Host types begin with that of the first hosts, and are empty if unknown. Existing results of a sink must come from the
    resumed `run`; with None they are replaced. Folders of sources may be empty if the run `sleeps`.

    Raises:
        ElastreamError: The first problem, with the field at fault.
    """
    layout = lay_out(graph)
    plans = plan_queries(layout)
    check_consistency(layout, consistency_of(settings.consistency))
    check_replicas(settings.replicas, max_hosts, layout)
    CompositionCodec(graph).encode(Composition.default(graph))
    for operator in graph.operators:
        # Native code stays on the driver, and may hold Columns and DataFrames.
        if functions := [alternate.function for alternate in operator.alternates if alternate.form not in NATIVE]:
            pickled(functions, f"operator {operator.name!r}")
    for source in graph.sources:
        with about("operators", source.name, "source"):
            check_source(source, empty=sleeps)
    for segment in layout.segments:
        changes = plans[segment.name].updates != ()
        for name in segment.operators:
            with about("operators", name, "sink"):
                writes = graph.operator(name).writes
                check_sink(writes, changes=changes, run=run)
                if (refuse := getattr(writes, "refuse", None)) is not None:
                    refuse(graph)
    if settings.repartition is not None:
        check_repartitions(settings, keyed=any(stage.keyed for stage in layout.stages), sleeps=sleeps)
    if sleeps:
        check_sleeps(graph)
    check_feasible(
        layout,
        types,
        check_policy(settings.policy),
        target_latency=settings.latency,
        max_hosts=max_hosts,
        scalable=scalable_operators(layout),
    )
