"""`Autopilot`: manages existing streaming queries of a session, without changes to them.

It runs a plant on the session, a policy and the control loop on a daemon thread. Its errors are logged and never reach the
user's job; what is unknown or impossible is left unchanged. Output goes to `logging`;
the place of a recording also to stderr.
"""

import logging
import math
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from elastream.api.arguments import refuse_others, refuse_unobserving, refuse_unplanning, refuse_unreal, seconds
from elastream.api.keeping import keeping
from elastream.api.pilot_log import PilotLog
from elastream.api.result import RunResult
from elastream.api.showing import told_to_cluster
from elastream.clouds.executors import STABILIZATION_DOWN, GrantedExecutors
from elastream.clouds.provider import Cloud, Provider
from elastream.control.journal import Journal
from elastream.control.loop import Loop
from elastream.control.scaling import with_window
from elastream.core.fitting import refuse_replicas
from elastream.core.hosts import HostType, PriceList
from elastream.core.plant import Policy
from elastream.core.scaling import NO_RULES, ScalingRules
from elastream.dataflow.endpoints import KafkaTopic
from elastream.errors import ElastreamError, EnvironmentProblem, InputError, in_one_line
from elastream.observability.events import EventLog
from elastream.observability.metrics import PrometheusObserver
from elastream.policies.by_load import ByLoad
from elastream.recording.directory import RunDirectory, local_folder
from elastream.recording.lease_log import LeaseLog
from elastream.recording.observer import Observer, describe_run
from elastream.recording.parts import RETENTION
from elastream.recording.recorder import Recorder
from elastream.report.tally import kept_for
from elastream.spark.attach import AttachedPlant, attach, join
from elastream.spark.hosts.hosts import unpriced
from elastream.spark.jvm.capabilities import Capabilities, probe
from elastream.spark.jvm.cluster_word import word_of
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.executors import AllocationClient, Executors
from elastream.spark.jvm.gateway import java_context
from elastream.spark.telemetry.kafka_offsets import committing
from elastream.spark.telemetry.traffic import MapOutputs, Traffic
from elastream.units import pause

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("elastream.autopilot")

ENDING = 30.0
"""Seconds that `stop` waits for its thread."""
MEBIBYTE = 1.048576
"""Megabytes."""
PORTS = 65535
"""The last port there is."""
GIVING_BACK = 20.0
"""Part of ENDING, seconds, for moving partitions off the hosts that end with Autopilot."""


class Autopilot:
    """Manages streaming queries of `spark`: `Autopilot(spark, target_latency="2s", max_hosts=8).watch(query)`.

    State partitions are balanced over the executors by load, and moved off executors that are draining. With `max_hosts`,
    executors are requested from Spark as the load requires, between `min_hosts` and `max_hosts`. With `cloud`, hosts are
    leased and released instead: a cloud as for `run(cloud=...)` (`Local`, `Pool`), opened at the start and closed at the
    end, whose hosts join the session's Standalone master; or a running provider, which the caller closes. host_type: type
    to lease, by default the cloud's.

    target_latency: seconds, or text such as `"2s"`; it determines how fast backlog must be processed. period: seconds
    between observations. observe_only: log actions without applying them. policy: default `ByLoad`. metrics_port, registry:
    where Prometheus metrics are served or registered. folder: where a recording and a journal are written, for `result`,
    `elastream explain` and `elastream report`; a line on stderr says so at the start and at the end. replicas: executors
    that keep a copy of each state partition up to date, in sessions whose executors can. retention: how long the
    recording keeps observations and decisions; figures of the whole stay. scaling: rules for the number of executors.
    events: file to which events are appended as JSON lines; `"-"`: standard error. restore: what becomes of the number of
    executors when Autopilot ends: they stay as they are, or those beyond the original number are given back, and missing
    ones requested. prices: what executors cost by the core and the gigabyte; hosts of a `cloud` have their own price.
    commits: Kafka topics with a group, `kafka("orders", "broker:9092", group="orders-app")`: how far the queries of the
    application have read them is committed to it, for tools that watch lag. observers: see every observation and decision,
    as those of `run`.

    Queries and settings are not changed. It ends when all watched queries have ended, when the session is stopped, with
    `stop`, or with its `with` block. Raises ElastreamError for invalid arguments; later errors are only logged.
    """

    def __init__(
        self,
        spark: "SparkSession",
        *,
        target_latency: float | str | None = None,
        max_hosts: int | None = None,
        min_hosts: int = 1,
        cloud: Cloud | Provider | None = None,
        host_type: HostType | None = None,
        period: float | str = "5s",
        observe_only: bool = False,
        policy: Policy | None = None,
        metrics_port: int | None = None,
        registry: "CollectorRegistry | None" = None,
        folder: Path | str | None = None,
        replicas: int = 0,
        retention: float | str = RETENTION,
        scaling: ScalingRules = NO_RULES,
        events: Path | str | None = None,
        restore: Literal["leave", "original"] = "leave",
        prices: PriceList | None = None,
        commits: Sequence[KafkaTopic] = (),
        observers: Sequence[Observer] = (),
    ) -> None:
        none = type(None)
        refuse_others("replicas", replicas, int, wanted="a whole number")
        refuse_others("max_hosts", max_hosts, int, none, wanted="a whole number, or None")
        refuse_others("min_hosts", min_hosts, int, wanted="a whole number")
        if min_hosts < 1 or (max_hosts is not None and max_hosts < min_hosts):
            raise ElastreamError(f"min_hosts {min_hosts} and max_hosts {max_hosts}: 1 <= min_hosts <= max_hosts")
        refuse_unplanning(policy)
        refuse_unreal(cloud, provider=True)
        refuse_unobserving(observers)
        refuse_others("host_type", host_type, HostType, none, wanted="a HostType, or None")
        refuse_others("scaling", scaling, ScalingRules, wanted="ScalingRules")
        refuse_others("prices", prices, PriceList, none, wanted="a PriceList, or None")
        refuse_others("observe_only", observe_only, bool, wanted="True or False")
        refuse_others("commits", commits, list, tuple, wanted="a list of Kafka topics, kafka(...)")
        for topic in commits:
            refuse_others("commits", topic, KafkaTopic, wanted="a list of Kafka topics, kafka(...)")
        for name, place in (("folder", folder), ("events", events)):
            refuse_others(name, place, str, Path, none, wanted="a path, or None")
        if registry is not None and not callable(getattr(registry, "register", None)):
            raise InputError(
                f"registry is {registry!r}; it must be a registry of prometheus_client, or None", ("registry",)
            )
        refuse_others("metrics_port", metrics_port, int, none, wanted="the number of a port, or None")
        if metrics_port is not None and not 0 <= metrics_port <= PORTS:
            raise InputError(f"metrics_port is {metrics_port}; it must be a port, 0 to {PORTS}", ("metrics_port",))
        refuse_replicas(replicas, replicas + 1 if max_hosts is None else max_hosts)
        self._spark = spark
        self._target = None if target_latency is None else seconds("target_latency", target_latency)
        if self._target is not None and not 0 < self._target < math.inf:
            raise InputError(f"target_latency is {target_latency!r}; it must be more than 0", ("target_latency",))
        self._max_hosts, self._min_hosts = max_hosts, min_hosts
        self._cloud, self._type = cloud, host_type
        self._period = seconds("period", period, lambda value: pause(value, "observation"))
        self._observe_only, self._replicas = observe_only, replicas
        if restore not in ("leave", "original"):
            raise InputError(f"restore is {restore!r}; it is 'leave' or 'original'")
        self._events, self._restore, self._prices = events, restore, prices
        if nameless := [topic.topic for topic in commits if not topic.group]:
            raise InputError(f"commits: the topic {nameless[0]!r} has no group to commit its offsets to")
        self._commits, self._others = tuple(commits), tuple(observers)
        self._paused = threading.Event()
        self._retention = seconds("retention", retention)
        self._policy = policy or ByLoad()
        window = STABILIZATION_DOWN if cloud is None else getattr(cloud, "stabilization_down", 0.0)
        self._scaling = with_window(scaling, self._policy, window)
        self._metrics = (registry, metrics_port) if registry is not None or metrics_port is not None else None
        self._folder = None if folder is None else local_folder(folder, "the folder of an Autopilot")
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
                        kept = keeping(self._folder, str(self._spark.sparkContext.applicationId), held_here)
                        self._folder = kept.folder
                        plant = self._attach(can, can.driver, stack, kept.leases)
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
        return callable(getattr(self._cloud, "open", None))

    def _attach(self, can: Capabilities, driver: DriverSide, stack: ExitStack, leases: LeaseLog) -> AttachedPlant:
        cloud = self._cloud if self._opens else None
        asks = can.asks and self._max_hosts is not None and self._cloud is None
        provider = cast(Provider, self._cloud) if can.leases and self._max_hosts is not None else None
        client = AllocationClient(self._spark, Executors(driver), word_of(self._spark))
        if cloud is not None:
            provider = self._joined(cast(Cloud, cloud), stack, client if can.asks else None, can.allowed)
        terms = None if provider is None else provider.terms
        kinds = [self._type] if self._type else terms.types if terms else [self._executor(can.slots or 1)]
        return attach(
            self._spark,
            driver,
            can.task_loads,
            can.recovery,
            client=client,
            chosen=self._ids,
            target_latency=self._target,
            max_hosts=(terms.max_hosts if terms else 0) if self._max_hosts is None else self._max_hosts,
            min_hosts=self._min_hosts,
            asks=asks,
            provider=provider,
            kinds=kinds,
            found=self._found(provider, kinds[0]),
            gives_back=GIVING_BACK if cloud is not None else 0.0,
            allowed=can.allowed,
            observe_only=self._observe_only,
            kept=self.kept,
            traffic=self._traffic(),
            replicas=self._replicas,
            leases=leases,
            alone=cloud is not None,
            restore=self._restore == "original",
        )

    def _traffic(self) -> Traffic | None:
        """What measures who sends whom how much, for a policy that reads it: it costs a call more a look and query."""
        if not getattr(self._policy, "exchanges", False):
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
        return kind if self._prices is None else self._prices.of(kind)

    def _found(self, provider: Provider | None, kind: HostType) -> Callable[[int], HostType]:
        """What an executor of so many slots is taken for that the session has anyway; kind: one that is leased.

        Executors of one session are of one shape. Those beside hosts of another cloud are not that cloud's to price.
        """
        requested = isinstance(provider, GrantedExecutors) or (provider is None and self._type is not None)
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
        about |= {} if self._prices is None else {"currency": self._prices.currency}
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
            observe_only=self._observe_only,
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
        with committing(self._spark, self._commits):
            loop.run()
        self._say("autopilot stopped; elastream report %s shows what it did")

    def _say(self, what: str) -> None:
        """Print where the recording lies, if there is one."""
        if self._folder is not None:
            print(what % shlex.quote(str(self._folder)), file=sys.stderr, flush=True)

    def _observers(self, plant: AttachedPlant) -> Sequence[Observer]:
        found: list[Observer] = [PilotLog(plant, self._period, self._observe_only)]
        if self._metrics is not None:
            try:
                found.append(PrometheusObserver(*self._metrics))
            except (ImportError, OSError, ValueError) as error:
                log.warning("metrics are not served: %s", in_one_line(error))
        if self._events is not None:
            try:
                found.append(EventLog(self._events))
            except ElastreamError as error:
                log.warning("%s", error)
        if self._folder is not None:
            found.append(Recorder(self._folder, keep=kept_for(self._retention)))
        return [*found, *told_to_cluster(self._spark), *self._others]
