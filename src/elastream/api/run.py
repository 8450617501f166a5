"""`run(...)`: starts a plant and the control loop for a dataflow and a policy, shows the run, and ends it in order."""

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
from dataclasses import replace
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType
from typing import Any

from elastream.api.admission import admit
from elastream.api.arguments import refuse_others, refuse_unobserving, refuse_unplanning, refuse_unreal, seconds
from elastream.api.folder import on_this_machine, opened, resumable
from elastream.api.options import current_options
from elastream.api.result import RunResult
from elastream.api.showing import shown, told_to_cluster
from elastream.clouds.provider import Cloud
from elastream.control.guarding import Guarding
from elastream.control.journal import Journal
from elastream.control.key_tables import KeyTabling
from elastream.control.loop import Loop
from elastream.control.scaling import with_window
from elastream.core.composition import consistency_of
from elastream.core.fitting import refuse_rules, state_partitions_of
from elastream.core.observation import Context
from elastream.core.plant import Policy
from elastream.core.scaling import NO_RULES, ScalingRules
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import Collected, Files, KafkaTopic, TextFiles
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable, selection_of, selections_of
from elastream.dataflow.stages import lay_out
from elastream.documents.registry import parameters_of
from elastream.errors import ElastreamError, InputError, in_one_line
from elastream.guards.document import load_guards
from elastream.guards.pollers import Pollers, pollable
from elastream.policies.threshold import Threshold
from elastream.recording.directory import RunDirectory
from elastream.recording.file_systems import FILES_REACHED_BY, reached_by
from elastream.recording.guard_log import GuardLog
from elastream.recording.key_tables import KeyTableLog
from elastream.recording.observer import Ending, Observer, describe_run
from elastream.recording.parts import RETENTION
from elastream.recording.places import place_of
from elastream.recording.recorder import Recorder
from elastream.report.tally import kept_for
from elastream.spark.dataflow.sinks import replace_results, tables_collected
from elastream.spark.jvm.session import StateStore
from elastream.spark.start import pace_of, start_plant
from elastream.spark.telemetry.kafka_offsets import committing
from elastream.units import format_duration, pause

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOG_BYTES, LOGS = 10_000_000, 3
"""Of the log of a run, and how many earlier ones are kept: tracebacks of a fault in every round fill a disk in weeks."""


def run(
    flow: Dataflow | Graph,
    *,
    cloud: Cloud,
    policy: Policy | None = None,
    target_latency: float | str | None = None,
    state_partitions: int | None = None,
    state_store: StateStore = "memory",
    batch: float | str | None = None,
    monitor: float | str = "1s",
    period: float | str = "2s",
    warm_up: bool = True,
    observers: Sequence[Observer] = (),
    ports: range | None = None,
    settings: Mapping[str, str] | None = None,
    guards: Path | str | None = None,
    tables: Sequence[KeyTable] = (),
    consistency: str = "batch",
    replicas: int = 0,
    retention: float | str = RETENTION,
    scaling: ScalingRules = NO_RULES,
    currency: str = "",
    runs: Path | str = "runs",
    resume: Path | str | None = None,
    fresh: bool = False,
    show: bool = True,
) -> RunResult:
    """Run `flow` on hosts of `cloud` with `policy` (by default `Threshold()`) until its load ends, or without end if it
    has none.

    While it runs it is shown: a live view on a terminal, an output that is updated in a notebook, elsewhere a line every
    ten seconds and one whenever something happens; at its end the summary is printed. show: False prints nothing.

    target_latency: service level, from a record being due to its result being committed by the first query that takes it.
    state_partitions: key groups of each keyed operator, fixed for the life of a checkpoint (default: two per slot of the
    largest cluster, under policy `ring` ten per host). state_store: `"memory"`, in the executors' heap, or `"disk"` for
    more state than fits there. batch: target duration of a micro-batch. monitor, period: seconds between observations,
    and between plans. warm_up: whether new executors are warmed up before they get tasks. ports: the first two are those
    of the master and its web page. settings: further Spark settings. guards: a file of guards, which say which alternates
    and branches may run; others can be given while it runs (`elastream guards set`). tables: key tables, which say which
    alternate runs for which key; others can be given, too (`elastream tables set`, `key_tables`). consistency: what
    records meet that are between two queries while the composition changes: `"batch"`, `"wave"` or `"drain"`
    (`elastream.core.composition.Consistency`). replicas: hosts that keep a copy of each state partition up to date, so
    that a lost host costs a pause of the length of a batch and not the loading of its state. retention: how long details
    are kept on disk: observations, decisions, changes of updated results, which `latest` reads all the same; figures of
    the whole run stay. scaling: rules for the number of hosts, which hold for any policy. currency: of all prices, such as
    `"EUR"`. runs: folder in which the run's own is made; or an address (`hdfs://...`), where executors then read and write,
    while the driver's own files are below `runs` here and copied there. resume: folder, or address, of a run that was
    stopped, failed or killed, and now goes on: with its state, offsets, composition, results and leases. fresh: whether
    results of an earlier run, where sinks write, are replaced; otherwise they are a reason to refuse.

    Raises ElastreamError for errors that a user can correct, with nothing left running; Ctrl-C and SIGTERM end the run in
    order.
    """
    options = current_options()
    policy = options.policy or policy or Threshold()
    cloud, guards = options.cloud or cloud, options.guards or guards
    refuse_unplanning(policy)
    if cloud is not None:
        refuse_unreal(cloud)
    refuse_unobserving(observers)
    refuse_others("flow", flow, Dataflow, Graph, wanted="a Dataflow")
    refuse_others("scaling", scaling, ScalingRules, wanted="ScalingRules")
    refuse_others("guards", guards, str, Path, type(None), wanted="a path, or None")
    consistency = options.consistency or consistency
    replicas = replicas if options.replicas is None else options.replicas
    kept = seconds("retention", retention) if options.retention is None else options.retention
    state_partitions = options.state_partitions or state_partitions
    scaling = options.scaled(scaling)
    graph = _with_input(flow.graph if isinstance(flow, Dataflow) else flow, options.input)
    os.environ[FILES_REACHED_BY] = reached_by(settings or {})
    earlier, fresh = _what_becomes_of_earlier(options.resume or resume, options.fresh or fresh)
    target = None if target_latency is None else seconds("target_latency", target_latency)
    if options.before is not None:
        options.before(graph, policy, cloud, target, guards, consistency, tables, replicas, state_partitions, scaling)
    refuse_unreal(cloud)  # what is checked or simulated did without
    scaling = with_window(scaling, policy, getattr(cloud, "stabilization_down", 0.0))
    mode = consistency_of(consistency)
    admit(
        graph,
        types=cloud.types,
        policy=policy,
        target_latency=target,
        max_hosts=cloud.max_hosts,
        consistency=mode,
        run=None if fresh else "" if earlier is None else resumable(RunDirectory(earlier)).id,
        replicas=replicas,
        state_partitions=state_partitions,
    )
    refuse_rules(scaling, cloud.max_hosts, cloud.types, getattr(cloud, "min_hosts", 1))
    document = None if guards is None else pollable(load_guards(Path(guards), graph))
    selections = selections_of(graph)
    for table in tables:
        table.check(selection_of(graph, table.operator))
    pace = pace_of(target, lay_out(graph)) if batch is None else seconds("batch", batch)
    look = seconds("monitor", monitor, lambda value: pause(value, "observation"))
    between = seconds("period", period, lambda value: pause(value, "plan"))
    with opened(graph, options, place_of(runs), earlier) as folder:
        folder = folder.begins(
            graph,
            partitions=state_partitions,
            default=state_partitions_of(cloud.types, cloud.max_hosts, policy),
            store=state_store,
            program=options.program,
        )
        directory, resumed = folder.directory, folder.resumed
        if fresh:
            replace_results(operator.writes for operator in graph.sinks)
        keep = kept_for(kept)
        copies = [] if options.record is None else [Recorder(options.record, keep=keep)]
        recorders = [Recorder(directory.recording, resumed=resumed is not None, keep=keep), *copies]
        versions = GuardLog(directory.guards)
        # Of a run that goes on, what it was given once is not given again: a later version may be in force.
        if document is not None and document.text not in {version.text for version in versions.versions}:
            versions.append(document.text, document.path, "run")
        table_log = KeyTableLog(directory, selections)
        for table in tables:
            if not table_log.has(table):
                table_log.append(table, "run")
        environment: dict[str, Any] = {
            "machine": platform.platform(),
            "python": platform.python_version(),
            "directory": str(directory.root),
            "cores": os.cpu_count(),
            "period": between,
            "batch seconds": pace,
            "consistency": str(mode),
            "replicas": replicas,
            "retention": format_duration(kept),
            "policy": parameters_of(policy),
            "scaling": dict(scaling.set),
            "currency": currency,
        }
        with _logged(directory.log), shown(graph, directory, options, show) as views, _ending_in_order() as stop:
            started = folder.manifest.started
            with _recorded_if_it_fails(recorders, graph, policy, target, environment, started), _interrupts_unlogged():
                plant = start_plant(
                    graph,
                    cloud,
                    directory,
                    target_latency=target,
                    state_partitions=folder.partitions,
                    state_store=state_store,
                    batch_seconds=pace,
                    warm=warm_up,
                    ports=ports,
                    settings=settings,
                    consistency=mode,
                    replicas=replicas,
                    retention=kept,
                    resumed=resumed,
                )
            try:
                environment |= {"spark": plant.spark.version, "hosts": plant.confinement}
                header = describe_run(
                    plant.context,
                    policy=policy.name,
                    plant="spark",
                    started=plant.clock.epoch,
                    environment=environment,
                    resumed=folder.went_on(plant.hosts.taken_over, plant.clock.epoch),
                )
                topics = [each.reads for each in graph.sources if isinstance(each.reads, KafkaTopic)]
                with closing(Pollers(plant.clock.now)) as pollers, committing(plant.spark, topics):
                    loop = Loop(
                        plant,
                        policy,
                        monitor=look,
                        period=between,
                        observers=[*recorders, *views, *options.observers, *observers, *told_to_cluster(plant.spark)],
                        journal=Journal(directory.journal),
                        observe_only=options.observe_only,
                        paused=lambda: directory.is_paused,
                        limit=options.limit,
                        facts=plant.facts,
                        header=header,
                        guarding=Guarding(versions, pollers),
                        tabling=KeyTabling(table_log),
                        scaling=scaling,
                    )
                    stop.then(loop.stop, plant.clock.wake)
                    folder.if_lost(lambda: loop.stop("another driver goes on with the run"))
                    folder.if_lost(plant.clock.wake)
                    ending = loop.run()
            finally:
                plant.close()
            if ending.status == "failed":
                raise ElastreamError(ending.reason)
        rows = tables_collected(
            [operator.writes.name for operator in graph.operators if isinstance(operator.writes, Collected)]
        )
        return RunResult(directory.root, options.report or directory.report, rows, plant.queries.taken())


def _what_becomes_of_earlier(resume: Path | str | None, fresh: bool) -> tuple[Path | None, bool]:
    if resume is not None and fresh:
        raise InputError("a run that goes on (resume) keeps its results, so that it cannot begin afresh (fresh)")
    return (None if resume is None else on_this_machine(resume)), fresh


@contextmanager
def _recorded_if_it_fails(
    recorders: Sequence[Recorder],
    graph: Graph,
    policy: Policy,
    target: float | None,
    environment: Mapping[str, Any],
    started: float,
) -> Iterator[None]:
    """Record a run that cannot be started, so that its folder says what it was to be and why it failed."""
    try:
        yield
    except BaseException as error:
        # Of the cloud nothing is described: it may be what failed, and asking it again takes time.
        header = describe_run(
            Context(lay_out(graph), {}, target), policy=policy.name, plant="spark", started=started, environment=environment
        )
        interrupted = isinstance(error, KeyboardInterrupt)
        reason = "interrupted before the first host was ready" if interrupted else in_one_line(error)
        ending = Ending("stopped" if interrupted else "failed", time.time() - started, reason)
        for recorder in recorders:
            with contextlib.suppress(ElastreamError):  # a full disk: what ended the run is what its caller is told
                recorder.started(header)
                recorder.ended(ending)
        raise


@contextmanager
def _interrupts_unlogged() -> Iterator[None]:
    """Keep py4j from printing a traceback where a signal comes while Spark answers: the run's record says how it ended."""

    def told(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))

    root, handler = logging.getLogger(), logging.NullHandler()
    root.addFilter(told)
    if not root.handlers:
        root.addHandler(handler)  # else logging would configure itself, and repeat on standard error what run.log has
    try:
        yield
    finally:
        root.removeFilter(told)
        root.removeHandler(handler)


class _RunLog(RotatingFileHandler):
    """On a full disk, what cannot be written is left out: what ends the run is what its caller is told."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Write what the package logs, tracebacks included, to a file of the run, and not over the live view."""
    logger, handler = (
        logging.getLogger("elastream"),
        _RunLog(path, maxBytes=LOG_BYTES, backupCount=LOGS, encoding="utf-8", delay=True),
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


class _Stop:
    """Signal handler: interrupts before the loop exists, later requests the loop to end; a second signal interrupts."""

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        self._signals = signals
        self._requested = False
        self.then()

    def then(self, *actions: Callable[[], object]) -> None:
        self._actions = actions
        for number in self._signals:  # again with the loop: PySpark replaced our handler when its session was opened
            signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._requested or not self._actions:
            raise KeyboardInterrupt
        self._requested = True
        for action in self._actions:
            action()


@contextmanager
def _ending_in_order() -> Iterator[_Stop]:
    """Install handlers so that SIGINT and SIGTERM end the run in order; no effect outside the main thread."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (SIGNALS if main else ())}
    try:
        yield _Stop(before)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _with_input(graph: Graph, path: str | None) -> Graph:
    """`graph` with its only file source reading `path`; itself for None. Raises InputError for several file sources."""
    if path is None:
        return graph
    readers = {o.name: replace(o.reads, path=path) for o in graph.sources if isinstance(o.reads, TextFiles | Files)}
    if len(readers) != 1:
        raise InputError(f"--input {path}: dataflow {graph.name!r} has {len(readers)} sources that read files, not one")
    operators = tuple(replace(o, reads=readers.get(o.name, o.reads)) for o in graph.operators)
    return Graph(graph.name, operators, graph.edges)
