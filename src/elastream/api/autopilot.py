"""`Autopilot`: manages existing streaming queries of a session, without changes to them.

A daemon thread runs the control loop. Its errors are logged and never reach the user's job.
"""

import atexit
import logging
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from elastream.api.arguments import check_hosts, check_observers, check_policy
from elastream.api.autopilot_log import AutopilotLog, AutopilotStatus, intentions, on_console
from elastream.api.observers import cluster_observers
from elastream.clouds.executors import STABILIZATION_DOWN, ExecutorProvider
from elastream.clouds.provider import Cloud, Provider
from elastream.control.journal import Journal
from elastream.control.loop import Loop
from elastream.control.requests import RequestExtension
from elastream.control.scaling import with_window
from elastream.core.fitting import check_replicas, width_remark
from elastream.core.hosts import HostType
from elastream.errors import ElastreamError, EnvironmentProblem, InputError, in_one_line
from elastream.observability.events import EventLog
from elastream.policies.by_load import ByLoad
from elastream.recording.directory import PRIVATE, RunDirectory, local_folder
from elastream.recording.lease_log import LeaseLog
from elastream.recording.manifest import APPLICATION, Manifest, read_manifest, run_lock, write_manifest
from elastream.recording.observer import Observer, describe_run
from elastream.settings import Address, AutopilotSettings, Seconds, keywords_of
from elastream.spark.attach import AttachedPlant, Leasing, attach, executors_of, join
from elastream.spark.hosts.hosts import unpriced
from elastream.spark.jvm.capabilities import Capabilities, probe
from elastream.spark.jvm.cluster_manager import cluster_watch, pending_reason
from elastream.spark.jvm.driver_side import java_context
from elastream.spark.jvm.executors import AllocationClient
from elastream.spark.jvm.session import session_stopped
from elastream.spark.telemetry.kafka_offsets import committing
from elastream.spark.telemetry.traffic import MapOutputs, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from elastream.api.result import RunResult

log = logging.getLogger("elastream.autopilot")

STOP_TIMEOUT_S = 30.0
# Part of STOP_TIMEOUT_S: partitions move off the hosts that end with Autopilot.
EVACUATION_TIMEOUT_S = 20.0
MB_PER_MIB = 1.048576


class Autopilot:
    """Manages streaming queries of `spark`: `Autopilot(spark, target_latency="2s", max_hosts=8).watch(query)`.

    It balances state partitions over the executors by load, and moves them off executors that drain. With `max_hosts` it
    requests executors from Spark as the load requires. With `cloud` it leases hosts instead, which join the session's
    Standalone master.

    It changes neither queries nor settings. It ends with the watched queries (unless `until="session"`), the session,
    `stop`, or its `with` block.

    Raises:
        ElastreamError: An argument is invalid. Later errors are logged.
    """

    @keywords_of(AutopilotSettings)
    def __init__(self, spark: "SparkSession", settings: AutopilotSettings) -> None:
        self._policy = check_policy(settings.policy) or ByLoad()
        self._cloud = check_hosts(settings.cloud)
        check_observers(settings.observers)
        check_replicas(settings.replicas, settings.replicas + 1 if settings.max_hosts is None else settings.max_hosts)
        self._spark, self._settings = spark, settings
        self._period = float(settings.period)
        self._paused = threading.Event()
        window = STABILIZATION_DOWN
        if self._cloud is not None:
            window = self._cloud.stabilization_down if isinstance(self._cloud, Cloud) else 0.0
        if settings.scaling.approve and settings.folder is None:
            raise InputError("approve: leases are approved on the live page, which needs a folder", ("scaling", "approve"))
        self._scaling = with_window(settings.scaling, self._policy, window)
        self._folder = None if settings.folder is None else local_folder(settings.folder, "the folder of an Autopilot")
        if settings.page and self._folder is None:
            raise InputError(
                "the live page reads a recording: give Autopilot a folder, such as folder='runs/mine'", ("page",)
            )
        self._chosen: set[str] | None = set()
        self._targets: dict[str, float] = {}  # of queries with one of their own, by id
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._works = False  # False before the first query, and after the thread has decided to end
        self._plant: AttachedPlant | None = None
        self._loop: Loop | None = None
        self._log: AutopilotLog | None = None
        self._stopped = ""
        self._open_until_exit: ExitStack | None = None
        self.remaining_hosts: list[str] = []

    def watch(self, *queries: "StreamingQuery", target_latency: float | str | None = None) -> "Autopilot":
        """Start to manage `queries`, also after restarts from their checkpoints; by default, all of the application.

        Returns at once. Further calls add queries, even after Autopilot has ended with earlier queries. After `stop`,
        nothing is watched.

        Args:
            target_latency: Target of these queries in place of Autopilot's: seconds, or text such as `"20s"`.

        Raises:
            InputError: An argument is not a query, or a target comes without queries or without a target of Autopilot.
        """
        for query in queries:
            if not hasattr(query, "runId"):
                kind = type(query).__name__
                raise InputError(f"watch: a {kind} is not a streaming query; give what writeStream...start() returned")
        if target_latency is not None:
            target = Seconds(positive=True).read("target_latency", target_latency)
            if not queries or self._settings.latency is None:
                raise InputError("watch: a target_latency needs queries, and one of Autopilot's for all others")
            self._targets |= {query.id: target for query in queries}
        with self._lock:
            if self._stopped:
                log.warning("autopilot was stopped, and watches nothing more: create another one")
                return self
            if not queries:
                self._chosen = None
            elif self._chosen is not None:
                self._chosen |= {query.id for query in queries}
            if not self._works:
                self._works = True
                self._thread = threading.Thread(target=self._work, name="elastream-autopilot", daemon=True)
                self._thread.start()
        return self

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def plant(self) -> AttachedPlant | None:
        """The attached plant, for tests and benchmarks; None before it is attached, or if it cannot be."""
        return self._plant

    @property
    def result(self) -> "RunResult":
        """The run so far, from the recording in `folder`: summary, report and frames.

        Raises:
            InputError: There is no folder, or nothing is recorded yet.
        """
        from elastream.api.result import (
            RunResult,  # brings the report and pandas, which a job that only watches never needs
        )

        if self._folder is None:
            raise InputError("Autopilot keeps no recording: give it a folder, Autopilot(..., folder='runs/mine')")
        return RunResult.read(self._folder)

    def pause(self) -> None:
        """Apply nothing until `unpause`, but plan and record; `elastream pause` does this by the folder."""
        self._paused.set()

    def unpause(self) -> None:
        """Apply plans again; this also undoes `elastream pause`."""
        self._paused.clear()
        if self._folder is not None:
            RunDirectory(self._folder).unpause()

    @property
    def paused(self) -> bool:
        """True while Autopilot applies nothing."""
        return self._paused.is_set() or (self._folder is not None and RunDirectory(self._folder).is_paused)

    def status(self) -> AutopilotStatus:
        """Return the watched queries with their latest figures and lines on stderr."""
        status = AutopilotStatus(target_latency=self._settings.latency) if self._log is None else self._log.status
        if self._thread is not None and not self.running:
            return replace(status, state="ended", coming=0)
        return replace(status, state="paused") if self.running and self.paused else status

    def __repr__(self) -> str:
        status = self.status()
        watched = f": {', '.join(status.queries)} on {status.hosts} executors" if status.queries else ""
        return f"<Autopilot {status.state}{watched}>"

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    def stop(self, reason: str = "stopped on request") -> None:
        """Stop Autopilot, with `reason` in its last line; the queries continue.

        Any thread may call it, also twice.
        """
        with self._lock:
            self._stopped = self._stopped or reason
            loop, plant, thread = self._loop, self._plant, self._thread
        if loop is not None and plant is not None:
            loop.stop(self._stopped)
            plant.clock.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_TIMEOUT_S)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until Autopilot has ended, at most `timeout` seconds; return True if it has."""
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.running

    def __enter__(self) -> "Autopilot":
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            log.warning("autopilot has managed nothing: call watch() to begin")
        self.stop()

    def _ids(self) -> frozenset[str] | None:
        with self._lock:
            return None if self._chosen is None else frozenset(self._chosen)

    def _work(self) -> None:
        goes_on = True
        while goes_on:
            ended_with_queries = self._run()
            with self._lock:
                self._works = goes_on = ended_with_queries and not self._stopped and self._is_needed()

    def _is_needed(self) -> bool:
        if session_stopped(self._spark):
            return False
        running = {query.id for query in self._spark.streams.active}
        return bool(running if self._chosen is None else running & self._chosen)

    def _run(self) -> bool:
        """Manage the queries; return True if they ended, False after a fault or if nothing can be done."""
        over = False
        with ExitStack() as stack:
            with on_console(self._settings.show), ExitStack() as folder_lock:
                atexit.register(self.stop, "the program ended")
                folder_lock.callback(atexit.unregister, self.stop)
                plant = None
                try:
                    can = self._probe()
                    if can.driver is not None:
                        store = _open_store(self._folder, str(self._spark.sparkContext.applicationId), folder_lock)
                        self._folder = store.folder
                        plant = self._attach(can, stack, store.leases)
                        self._steer(plant, store.journal)
                        over = True
                except Exception as error:
                    log.error("autopilot stopped after an error: %s", in_one_line(error), exc_info=True)
                    if plant is not None:
                        self._leave(plant)
            if self.remaining_hosts:
                log.info("%s stay until this program ends: their work fits nowhere else",
                         ", ".join(self.remaining_hosts))  # fmt: skip
                earlier, self._open_until_exit = self._open_until_exit, stack.pop_all()
                if earlier is not None:
                    self._open_until_exit.push(earlier)
        return over

    def _leave(self, plant: AttachedPlant) -> None:
        try:
            plant.close()
        except Exception as error:
            log.error("autopilot did not end cleanly: %s", in_one_line(error), exc_info=True)

    def _probe(self) -> Capabilities:
        can = probe(self._spark, None if isinstance(self._cloud, Cloud) else self._cloud)
        for sentence in can.lacking:
            log.warning("%s", sentence)
        return can

    def _attach(self, can: Capabilities, stack: ExitStack, leases: LeaseLog) -> AttachedPlant:
        cloud = self._cloud if isinstance(self._cloud, Cloud) else None
        asks = can.asks and self._settings.max_hosts is not None and self._cloud is None
        provider = cast(Provider, self._cloud) if can.leases and self._settings.max_hosts is not None else None
        assert can.driver is not None
        executors = executors_of(can, self._ids)
        client = AllocationClient(self._spark, executors, pending_reason(self._spark), cluster_watch(self._spark))
        if cloud is not None:
            provider = self._open_cloud(cloud, stack, client if can.asks else None, can.allowed)
        terms = None if provider is None else provider.terms
        own_type = self._settings.host_type
        kinds = [own_type] if own_type else terms.types if terms else [self._executor_type(can.slots or 1)]
        leasing = Leasing(
            provider,
            asks,
            kinds,
            self._type_of_executors(provider, kinds[0]),
            leases,
            alone=cloud is not None,
            gives_back=EVACUATION_TIMEOUT_S if cloud is not None else 0.0,
            staying=self.remaining_hosts,
        )
        own, traffic = self._targets, self._traffic()
        plant = attach(
            self._spark,
            can,
            self._settings,
            leasing,
            client=client,
            chosen=self._ids,
            own_targets=own,
            traffic=traffic,
            stateless=self._policy.places_stateless,
        )
        self._log = AutopilotLog(plant, self._settings, intentions(can, self._settings, leases=provider is not None))
        return plant

    def _traffic(self) -> Traffic | None:
        """Return the meter of traffic between tasks if the policy reads it; it costs a call per query and observation."""
        if not self._policy.wants_traffic:
            return None
        try:
            return Traffic(MapOutputs(self._spark))
        except EnvironmentProblem as problem:
            log.warning("%s; it stays unknown", problem)
            return None

    def _executor_type(self, slots: int) -> HostType:
        memory = float(java_context(self._spark).executorMemory()) * MB_PER_MIB
        kind = replace(unpriced(slots), memory=memory, start=15.0)
        return kind if self._settings.prices is None else self._settings.prices.of(kind)

    def _type_of_executors(self, provider: Provider | None, kind: HostType) -> Callable[[int], HostType]:
        # Executors of one session have one shape. Those beside hosts of another cloud have none of its prices.
        requested = isinstance(provider, ExecutorProvider) or (provider is None and self._settings.host_type is not None)
        return (lambda slots: kind) if requested else self._executor_type

    def _open_cloud(self, cloud: Cloud, stack: ExitStack, client: AllocationClient | None, allowed: int) -> Provider | None:
        """Open `cloud` and close it with `stack`; log a warning and return None if it cannot be opened."""
        try:
            if self._folder is not None:  # a provider reads there about hosts that outlived an earlier Autopilot
                path = RunDirectory(self._folder).cluster
                path.mkdir(exist_ok=True)
            else:
                folder = tempfile.TemporaryDirectory(prefix="elastream-hosts-", ignore_cleanup_errors=True)
                path = Path(stack.enter_context(folder))
            cluster = join(cloud, self._spark, path, client=client, allowed=allowed)
        except (ElastreamError, OSError) as error:
            log.warning("hosts cannot be leased: %s", in_one_line(error))
            return None
        stack.callback(cluster.close)
        return cluster

    def _steer(self, plant: AttachedPlant, journal: Journal) -> None:
        environment: dict[str, Any] = {"spark": self._spark.version, "master": self._spark.sparkContext.master}
        context = self._spark.sparkContext
        environment |= {"run": str(context.applicationId), "application": str(context.appName)}
        if self._settings.prices is not None:
            environment["currency"] = self._settings.prices.currency
        header = describe_run(
            plant.context, policy=self._policy.name, plant="spark", started=plant.clock.epoch, environment=environment
        )
        observers = self._observers()  # last, because they serve until the loop ends
        loop = Loop(
            plant,
            self._policy,
            monitor=self._period,
            period=self._period,
            observers=observers,
            journal=journal,
            observe_only=self._settings.observe_only,
            paused=lambda: self.paused,
            header=header,
            extensions=() if self._folder is None else (RequestExtension(RunDirectory(self._folder)),),
            scaling=self._scaling,
            facts=plant.facts,
            remarks=tuple(filter(None, [width_remark(self._partitions(), plant.context)])),
        )
        with self._lock:
            self._plant, self._loop = plant, loop
            if self._stopped:
                loop.stop(self._stopped)
        self._say("autopilot records to %s")
        with committing(self._spark, self._settings.commits), self._page():
            loop.run()
        self._say("autopilot stopped; elastream report %s shows what it did")

    def _partitions(self) -> int:
        text = str(self._spark.conf.get("spark.sql.shuffle.partitions"))
        return int(text) if text.isdecimal() else 0

    def _page(self) -> AbstractContextManager[None]:
        if not self._settings.page or self._folder is None:
            return nullcontext()
        # Only an Autopilot with a page needs what it is served with.
        from elastream.dashboard.page.serving import page_beside

        return page_beside(RunDirectory(self._folder), lambda url: self._say(f"live page of %s: {url}"))

    def _say(self, sentence: str) -> None:
        if self._folder is not None and self._settings.show:
            print(sentence % shlex.quote(str(self._folder)), file=sys.stderr, flush=True)

    def _observers(self) -> Sequence[Observer]:
        observers: list[Observer] = [] if self._log is None else [self._log]
        settings = self._settings
        if settings.registry is not None or (settings.metrics, settings.metrics_port) != (None, None):
            # Its counters exist only where they are served.
            from elastream.observability.metrics import LOOPBACK, PrometheusObserver, metrics_address

            host, port = metrics_address(cast(Address | None, settings.metrics), settings.metrics_port) or (LOOPBACK, None)
            try:
                observers.append(PrometheusObserver(settings.registry, port, host))
            except (ImportError, OSError, ValueError) as error:
                log.warning("metrics are not served: %s", in_one_line(error))
        if settings.events is not None:
            try:
                observers.append(EventLog(settings.events))
            except ElastreamError as error:
                log.warning("%s", error)
        if self._folder is not None:
            # Only an Autopilot with a folder needs what a recording is written and summed up with.
            from elastream.recording.recorder import Recorder
            from elastream.recording.run_state import StopRequests
            from elastream.report.tally import retention_of

            stop_requests = StopRequests(RunDirectory(self._folder))
            stop_requests.stop = self.stop
            observers.append(stop_requests)
            observers.append(Recorder(self._folder, keep=retention_of(float(settings.retention))))
        return [*observers, *cluster_observers(self._spark), *settings.observers]


@dataclass(frozen=True, slots=True)
class _Store:
    folder: Path | None
    journal: Journal
    leases: LeaseLog


def _open_store(folder: Path | None, application: str, stack: ExitStack) -> _Store:
    """Open `folder`, and lock it until `stack` closes. Nothing is kept on disk without a folder that can be opened."""
    if folder is None:
        return _Store(None, Journal(), LeaseLog())
    directory = RunDirectory(folder)
    try:
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        stack.enter_context(run_lock(directory))
        earlier = read_manifest(directory) if directory.manifest.exists() else None
        journal, leases = Journal(directory.journal), LeaseLog(directory.leases)
        stack.callback(leases.close)
        if earlier is None or earlier.identity.get(APPLICATION) != application:
            # Actions were about that application's hosts, whose names may come again. Leases may outlive it, and stay.
            journal.drop_unconcluded("it was another application's")
            write_manifest(directory, Manifest("queries", time.time(), identity={APPLICATION: application}))
    except (ElastreamError, OSError) as error:
        log.warning("autopilot keeps no recording and no journal: %s", in_one_line(error))
        return _Store(None, Journal(), LeaseLog())
    return _Store(folder, journal, leases)
