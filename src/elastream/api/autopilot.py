"""`Autopilot`: manages existing streaming queries of a session, without changes to them.

It runs a plant on the session, a policy and the control loop on a daemon thread. Its errors are logged and never reach the
user's job; what is unknown or impossible is left unchanged. Output goes to `logging`;
the place of a recording also to stderr.
"""

import logging
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from elastream.api.arguments import check_hosts, check_observers, check_policy
from elastream.api.pilot_log import PilotLog
from elastream.api.result import RunResult
from elastream.api.showing import told_to_cluster
from elastream.clouds.executors import STABILIZATION_DOWN, ExecutorProvider
from elastream.clouds.provider import Cloud, Provider
from elastream.control.journal import Journal
from elastream.control.loop import Loop
from elastream.control.scaling import with_window
from elastream.core.fitting import check_replicas
from elastream.core.hosts import HostType
from elastream.errors import ElastreamError, EnvironmentProblem, InputError, in_one_line
from elastream.observability.events import EventLog
from elastream.observability.metrics import PrometheusObserver
from elastream.policies.by_load import ByLoad
from elastream.recording.directory import PRIVATE, RunDirectory, local_folder
from elastream.recording.lease_log import LeaseLog
from elastream.recording.manifest import Manifest, held, read_manifest, write_manifest
from elastream.recording.observer import Observer, describe_run
from elastream.recording.recorder import Recorder
from elastream.report.tally import kept_for
from elastream.settings import AutopilotSettings, keywords_of
from elastream.spark.attach import AttachedPlant, Leasing, attach, join
from elastream.spark.hosts.hosts import unpriced
from elastream.spark.jvm.capabilities import Capabilities, probe
from elastream.spark.jvm.executors import AllocationClient, Executors
from elastream.spark.jvm.gateway import java_context
from elastream.spark.jvm.pending_reason import pending_reason
from elastream.spark.telemetry.kafka_offsets import committing
from elastream.spark.telemetry.traffic import MapOutputs, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("elastream.autopilot")

ENDING = 30.0
"""Seconds that `stop` waits for its thread."""
MEBIBYTE = 1.048576
"""Megabytes."""
APPLICATION = "the Spark application"
GIVING_BACK = 20.0
"""Part of ENDING, seconds, for moving partitions off the hosts that end with Autopilot."""


class Autopilot:
    """Manages streaming queries of `spark`: `Autopilot(spark, target_latency="2s", max_hosts=8).watch(query)`.

    State partitions are balanced over the executors by load, and moved off executors that are draining. With `max_hosts`,
    executors are requested from Spark as the load requires, between `min_hosts` and `max_hosts`. With `cloud`, hosts are
    leased and released instead: a cloud as for `run(cloud=...)` (`Local`, `Pool`), opened at the start and closed at the
    end, whose hosts join the session's Standalone master; or a running provider, which the caller closes. host_type: type
    to lease, by default the cloud's.

    Queries and settings are not changed. It ends when all watched queries have ended, when the session is stopped, with
    `stop`, or with its `with` block. Raises ElastreamError for invalid arguments; later errors are only logged.
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
        self._scaling = with_window(settings.scaling, self._policy, window)
        self._folder = None if settings.folder is None else local_folder(settings.folder, "the folder of an Autopilot")
        self._chosen: set[str] | None = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._plant: AttachedPlant | None = None
        self._loop: Loop | None = None
        self._stopped = False
        self._staying: ExitStack | None = None
        self.kept: list[str] = []

    def watch(self, *queries: "StreamingQuery") -> "Autopilot":
        """Start to manage `queries`, also after restarts from their checkpoints; without arguments, all of the application.

        Returns at once. May be called again to add queries, until it has ended. Raises InputError for what is no query.
        """
        for query in queries:
            if not hasattr(query, "runId"):
                kind = type(query).__name__
                raise InputError(f"watch: a {kind} is no streaming query; give what writeStream...start() returned")
        with self._lock:
            if self._stopped or (self._thread is not None and not self._thread.is_alive()):
                log.warning("autopilot has ended, and watches nothing more: make another one")
                return self
            if not queries:
                self._chosen = None
            elif self._chosen is not None:
                self._chosen |= {query.id for query in queries}
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="elastream-autopilot", daemon=True)
                self._thread.start()
        return self

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def plant(self) -> AttachedPlant | None:
        """The attached plant, for tests and benchmarks; None before it is attached, or if that is not possible."""
        return self._plant

    @property
    def result(self) -> RunResult:
        """What the recording in `folder` says so far: summary, report, frames; in a notebook its figures.

        Raises InputError without a folder, and before anything was recorded.
        """
        if self._folder is None:
            raise InputError("Autopilot keeps no recording: give it a folder, Autopilot(..., folder='runs/mine')")
        return RunResult.read(self._folder)

    def pause(self) -> None:
        """Go on to plan and to record, and apply nothing, until `unpause`; as `elastream pause` does with the folder."""
        self._paused.set()

    def unpause(self) -> None:
        """Apply again what is planned; `elastream pause` is undone, too."""
        self._paused.clear()
        if self._folder is not None:
            RunDirectory(self._folder).unpause()

    @property
    def paused(self) -> bool:
        """Whether it applies nothing, for now."""
        return self._paused.is_set() or (self._folder is not None and RunDirectory(self._folder).is_paused)

    def stop(self) -> None:
        """Stop Autopilot; the queries continue. May be called twice, and from any thread."""
        with self._lock:
            self._stopped = True
            loop, plant, thread = self._loop, self._plant, self._thread
        if loop is not None and plant is not None:
            loop.stop()
            plant.clock.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(ENDING)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until Autopilot has ended, at most `timeout` seconds; returns whether it has."""
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.running

    def __enter__(self) -> "Autopilot":
        """Return itself; `watch` starts it."""
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _ids(self) -> frozenset[str] | None:
        with self._lock:
            return None if self._chosen is None else frozenset(self._chosen)

    def _run(self) -> None:
        """Run the thread; no exception may reach the user's job."""
        with ExitStack() as stack:
            with ExitStack() as held_here:
                plant = None
                try:
                    can = self._probed()
                    if can.driver is not None:
                        kept = _store(self._folder, str(self._spark.sparkContext.applicationId), held_here)
                        self._folder = kept.folder
                        plant = self._attach(can, stack, kept.leases)
                        self._steer(plant, kept.journal)
                except Exception as error:
                    log.error("autopilot stopped after an error: %s", in_one_line(error), exc_info=True)
                    if plant is not None:
                        self._leave(plant)
            if self.kept:  # whatever ended it: hosts that do all the work stay
                log.info("%s stay until this program ends: queries run, and no other host can take their tasks",
                         ", ".join(self.kept))  # fmt: skip
                self._staying = stack.pop_all()

    def _leave(self, plant: AttachedPlant) -> None:
        try:
            plant.close()
        except Exception as error:
            log.error("autopilot did not leave in order: %s", in_one_line(error), exc_info=True)

    def _probed(self) -> Capabilities:
        """What can be done in the session; what cannot is logged. Asks nothing of a session that has no driver here."""
        can = probe(self._spark, None if self._opens else self._cloud)
        for sentence in can.lacking:
            log.warning("%s", sentence)
        return can

    @property
    def _opens(self) -> bool:
        """Whether its cloud is a description of hosts, which is opened for it, and not a provider that runs."""
        return isinstance(self._cloud, Cloud)

    def _attach(self, can: Capabilities, stack: ExitStack, leases: LeaseLog) -> AttachedPlant:
        cloud = self._cloud if self._opens else None
        asks = can.asks and self._settings.max_hosts is not None and self._cloud is None
        provider = cast(Provider, self._cloud) if can.leases and self._settings.max_hosts is not None else None
        assert can.driver is not None
        client = AllocationClient(self._spark, Executors(can.driver), pending_reason(self._spark))
        if cloud is not None:
            provider = self._joined(cast(Cloud, cloud), stack, client if can.asks else None, can.allowed)
        terms = None if provider is None else provider.terms
        own = self._settings.host_type
        kinds = [own] if own else terms.types if terms else [self._executor(can.slots or 1)]
        leasing = Leasing(
            provider,
            asks,
            kinds,
            self._found(provider, kinds[0]),
            leases,
            alone=cloud is not None,
            gives_back=GIVING_BACK if cloud is not None else 0.0,
            staying=self.kept,
        )
        return attach(self._spark, can, self._settings, leasing, client=client, chosen=self._ids, traffic=self._traffic())

    def _traffic(self) -> Traffic | None:
        """What measures who sends whom how much, for a policy that reads it: it costs a call more a look and query."""
        if not self._policy.wants_traffic:
            return None
        try:
            return Traffic(MapOutputs(self._spark))
        except EnvironmentProblem as problem:
            log.warning("%s; it stays unknown", problem)
            return None

    def _executor(self, slots: int) -> HostType:
        """The host type that represents an executor of the session."""
        memory = float(java_context(self._spark).executorMemory()) * MEBIBYTE
        kind = replace(unpriced(slots), memory=memory, start=15.0)
        return kind if self._settings.prices is None else self._settings.prices.of(kind)

    def _found(self, provider: Provider | None, kind: HostType) -> Callable[[int], HostType]:
        """What an executor of so many slots is taken for that the session has anyway; kind: one that is leased.

        Executors of one session are of one shape. Those beside hosts of another cloud are not that cloud's to price.
        """
        requested = isinstance(provider, ExecutorProvider) or (provider is None and self._settings.host_type is not None)
        return (lambda slots: kind) if requested else self._executor

    def _joined(self, cloud: Cloud, stack: ExitStack, client: AllocationClient | None, allowed: int) -> Provider | None:
        """The provider of `cloud`, opened here and closed with `stack`; None, with a warning, if it cannot be opened."""
        try:
            if self._folder is not None:  # a provider finds there what it kept of hosts that outlived it
                place = RunDirectory(self._folder).cluster
                place.mkdir(exist_ok=True)
            else:
                folder = tempfile.TemporaryDirectory(prefix="elastream-hosts-", ignore_cleanup_errors=True)
                place = Path(stack.enter_context(folder))
            cluster = join(cloud, self._spark, place, client=client, allowed=allowed)
        except (ElastreamError, OSError) as error:
            log.warning("hosts cannot be leased: %s", in_one_line(error))
            return None
        stack.callback(cluster.close)
        return cluster

    def _steer(self, plant: AttachedPlant, journal: Journal) -> None:
        """Run the loop."""
        about: dict[str, Any] = {"spark": self._spark.version, "master": self._spark.sparkContext.master}
        prices = self._settings.prices
        about |= {} if prices is None else {"currency": prices.currency}
        header = describe_run(
            plant.context, policy=self._policy.name, plant="spark", started=plant.clock.epoch, environment=about
        )
        observers = self._observers(plant)  # the last: what they serve ends with the loop
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
            scaling=self._scaling,
            facts=plant.facts,
        )
        with self._lock:
            self._plant, self._loop = plant, loop
            if self._stopped:
                loop.stop()
        self._say("autopilot records to %s")
        with committing(self._spark, self._settings.commits):
            loop.run()
        self._say("autopilot stopped; elastream report %s shows what it did")

    def _say(self, what: str) -> None:
        """Print where the recording lies, if there is one."""
        if self._folder is not None:
            print(what % shlex.quote(str(self._folder)), file=sys.stderr, flush=True)

    def _observers(self, plant: AttachedPlant) -> Sequence[Observer]:
        found: list[Observer] = [PilotLog(plant, self._period, self._settings.observe_only)]
        settings = self._settings
        if settings.registry is not None or settings.metrics_port is not None:
            try:
                found.append(PrometheusObserver(settings.registry, settings.metrics_port))
            except (ImportError, OSError, ValueError) as error:
                log.warning("metrics are not served: %s", in_one_line(error))
        if settings.events is not None:
            try:
                found.append(EventLog(settings.events))
            except ElastreamError as error:
                log.warning("%s", error)
        if self._folder is not None:
            found.append(Recorder(self._folder, keep=kept_for(float(settings.retention))))
        return [*found, *told_to_cluster(self._spark), *settings.observers]


@dataclass(frozen=True, slots=True)
class _Store:
    """folder: None where nothing is kept on disk. journal: of actions. leases: of hosts, by epoch seconds."""

    folder: Path | None
    journal: Journal
    leases: LeaseLog


def _store(folder: Path | None, application: str, stack: ExitStack) -> _Store:
    """Open `folder`, which this Autopilot holds until `stack` is left; a Spark application has the id `application`.

    What another application left undone was about its own hosts, which may have the same names: it is dropped. The leases
    are not: their hosts may outlive it, at the provider.
    """
    if folder is None:
        return _Store(None, Journal(), LeaseLog())
    directory = RunDirectory(folder)
    try:
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        stack.enter_context(held(directory))
        before = read_manifest(directory) if directory.manifest.exists() else None
        journal, leases = Journal(directory.journal), LeaseLog(directory.leases)
        stack.callback(leases.close)
        if before is None or before.identity.get(APPLICATION) != application:
            journal.drop_unconcluded("it was another application's")
            write_manifest(directory, Manifest("queries", time.time(), identity={APPLICATION: application}))
    except (ElastreamError, OSError) as error:
        log.warning("autopilot keeps no recording and no journal: %s", in_one_line(error))
        return _Store(None, Journal(), LeaseLog())
    return _Store(folder, journal, leases)
