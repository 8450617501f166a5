"""`Autopilot`: steers streaming queries that exist already, in three lines and from beside them.

It wires the attached plant, the policy for it and the one loop together, on a daemon thread of its own. What goes wrong in
here is logged and ends here; what is not known or not possible is left alone. It speaks through `logging`, never prints.
"""

import logging
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from elastream.clouds.provider import Cloud, Provider
from elastream.control.journal import Journal
from elastream.control.loop import Loop
from elastream.model.action import Action, Outcome, Status, describe
from elastream.model.cloud import Billing, HostState, HostType
from elastream.model.decision import Decision
from elastream.model.errors import ElastreamError, in_one_line
from elastream.model.graph import Kind
from elastream.model.observation import Metric, Observation
from elastream.model.plant import Policy
from elastream.model.units import duration, format_duration
from elastream.model.wording import quantities
from elastream.planning.policies.by_load import ByLoad
from elastream.recording.observer import Ending, Header, Observer, describe_run
from elastream.recording.recorder import FILE_NAME, Recorder
from elastream.services.metrics import PrometheusObserver
from elastream.spark.attach import AttachedPlant, attach
from elastream.spark.hosts.joining import join
from elastream.spark.jvm.capabilities import probe

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Autopilot"]

log = logging.getLogger("elastream.autopilot")

ENDING = 30.0
"""Seconds that `stop` waits for its thread."""
GIVING_BACK = 20.0
"""Of these, the seconds for which partitions are moved off hosts that end with it."""


class Autopilot:
    """Steers streaming queries of `spark`: `Autopilot(spark, target_latency="2s", max_hosts=8).watch(query)`.

    State partitions are spread over the executors by what they take, and moved off executors that are about to leave. With
    `max_hosts`, executors are asked for when the load needs more, up to that many, and given back when it needs fewer, but
    never below `min_hosts`. With `cloud`, hosts are leased and released instead: what `run(cloud=...)` takes (`Local`,
    `Pool`), opened when it begins and closed when it ends, whose hosts join the session's Standalone master; or a provider
    that runs already and is somebody else's to close. host_type: what is leased, by default what the cloud has.

    target_latency: seconds, or text such as `"2s"`, that a record may take; it decides how fast backlog must go. period:
    between two observations. observe_only: log what would be done, do nothing. policy: another one than `ByLoad`.
    metrics_port, registry: where Prometheus metrics are served, or put. folder: where a recording and a journal are
    written, for `elastream explain` and `elastream report`.

    It changes no query and no setting. It ends by itself when its queries have ended or the session is stopped, and with
    `stop`, or the `with` block that it is used in. Raises ElastreamError for arguments that make no sense, and nothing
    after that.
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
    ) -> None:
        if min_hosts < 1 or (max_hosts is not None and max_hosts < min_hosts):
            raise ElastreamError(f"min_hosts {min_hosts} and max_hosts {max_hosts}: 1 <= min_hosts <= max_hosts")
        self._spark = spark
        self._target = None if target_latency is None else duration(target_latency)
        self._max_hosts, self._min_hosts = max_hosts, min_hosts
        self._cloud, self._type = cloud, host_type
        self._period = duration(period)
        if not self._period > 0:
            raise ElastreamError("a period of 0 s: it must be above 0")
        self._observe_only = observe_only
        self._policy = policy or ByLoad()
        self._metrics = (registry, metrics_port) if registry is not None or metrics_port is not None else None
        self._folder = None if folder is None else Path(folder)
        self._chosen: set[str] | None = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._plant: AttachedPlant | None = None
        self._loop: Loop | None = None
        self._stopped = False
        self._staying: ExitStack | None = None
        self.kept: list[str] = []

    def watch(self, *queries: "StreamingQuery") -> "Autopilot":
        """Steer `queries`, through restarts from their checkpoints; with none given, all that the session has.

        Returns at once. May be called again for more.
        """
        with self._lock:
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
        """Whether it steers anything."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def plant(self) -> AttachedPlant | None:
        """What it observes and acts on, for tests and benchmarks; None before the start, or where that cannot be."""
        return self._plant

    def stop(self) -> None:
        """Stop; the queries go on as they are. May be called twice, and from any thread."""
        with self._lock:
            self._stopped = True
            loop, plant, thread = self._loop, self._plant, self._thread
        if loop is not None and plant is not None:
            loop.stop()
            plant.clock.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(ENDING)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, at most `timeout` seconds; whether it has."""
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.running

    def __enter__(self) -> "Autopilot":
        """Itself; `watch` starts it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    def _ids(self) -> frozenset[str] | None:
        with self._lock:
            return None if self._chosen is None else frozenset(self._chosen)

    def _run(self) -> None:
        """The thread: nothing that happens in here may reach the user's job."""
        try:
            with ExitStack() as stack:
                plant = self._attach(stack)
                if plant is not None:
                    self._steer(plant)
                    if self.kept:
                        log.info("%s stay until this program ends: queries run, and no other host can take their tasks",
                                 ", ".join(self.kept))  # fmt: skip
                        self._staying = stack.pop_all()
        except Exception as error:
            log.error("autopilot stopped because of a fault: %s", in_one_line(error), exc_info=True)
            if self._plant is not None:
                self._plant.close()

    def _attach(self, stack: ExitStack) -> AttachedPlant | None:
        cloud = self._cloud if callable(getattr(self._cloud, "open", None)) else None
        running = None if cloud is not None else self._cloud
        can = probe(self._spark, running)
        for sentence in can.lacking:
            log.warning("%s", sentence)
        if can.driver is None:
            return None
        asks = can.asks and self._max_hosts is not None and self._cloud is None
        provider = cast(Provider, running) if can.leases and self._max_hosts is not None else None
        if cloud is not None:
            provider = self._joined(cast(Cloud, cloud), stack)
        terms = None if provider is None else provider.terms
        return attach(
            self._spark,
            can.driver,
            can.task_loads,
            chosen=self._ids,
            target_latency=self._target,
            max_hosts=(terms.max_hosts if terms else 0) if self._max_hosts is None else self._max_hosts,
            min_hosts=self._min_hosts,
            asks=asks,
            provider=provider,
            kinds=[self._type] if self._type else terms.types if terms else [_executor(can.slots or 1)],
            gives_back=GIVING_BACK if cloud is not None else 0.0,
            allowed=can.allowed,
            observe_only=self._observe_only,
            kept=self.kept,
        )

    def _joined(self, cloud: Cloud, stack: ExitStack) -> Provider | None:
        """The hosts behind the cloud, opened here and closed with `stack`; None, said once, where they cannot be."""
        folder = tempfile.TemporaryDirectory(prefix="elastream-hosts-", ignore_cleanup_errors=True)
        try:
            cluster = join(cloud, self._spark, Path(stack.enter_context(folder)))
        except (ElastreamError, OSError) as error:
            log.warning("hosts cannot be leased: %s", in_one_line(error))
            return None
        stack.callback(cluster.close)
        return cluster

    def _steer(self, plant: AttachedPlant) -> None:
        journal, observers = Journal(), self._observers(plant)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            journal = Journal(self._folder / "journal.jsonl")
        about: dict[str, Any] = {"spark": self._spark.version, "master": self._spark.sparkContext.master}
        loop = Loop(
            plant,
            self._policy,
            monitor=self._period,
            period=self._period,
            observers=observers,
            journal=journal,
            observe_only=self._observe_only,
            header=describe_run(plant.context, policy=self._policy.name, plant="spark", environment=about),
        )
        with self._lock:
            self._plant, self._loop = plant, loop
            if self._stopped:
                loop.stop()
        loop.run()

    def _observers(self, plant: AttachedPlant) -> Sequence[Observer]:
        found: list[Observer] = [_Spoken(plant, self._period, self._observe_only)]
        if self._metrics is not None:
            try:
                found.append(PrometheusObserver(*self._metrics))
            except (ImportError, OSError, ValueError) as error:
                log.warning("metrics are not served: %s", in_one_line(error))
        if self._folder is not None:
            found.append(Recorder(self._folder / FILE_NAME))
        return found


class _Spoken:
    """Tells the log what is seen, done and refused, each thing once while it lasts."""

    def __init__(self, plant: AttachedPlant, period: float, observe_only: bool) -> None:
        self._plant, self._period, self._observe_only = plant, period, observe_only
        self._watched: tuple[str, ...] | None = None
        self._said: dict[str, str] = {}
        self._told: set[tuple[Action, Status]] = set()

    def started(self, header: Header) -> None:
        log.info("autopilot started: one observation every %s", format_duration(self._period))

    def observed(self, observation: Observation) -> None:
        graph = observation.context.graph
        if graph.operators and graph.order != self._watched:
            self._watched = graph.order
            queries, stages = ([o.name for o in graph.operators if o.kind is kind] for kind in (Kind.SOURCE, Kind.KEYED))
            log.info("autopilot watches %s; stages with state: %s", ", ".join(queries), ", ".join(stages) or "none yet")
        for host, lease in observation.leases.items():
            tasks = observation.hosts.value(host, Metric.TASKS)
            does = "would move" if self._observe_only else "moves"
            leaves = f"autopilot {does} {tasks:.0f} partitions off {self._plant.describe(host)}, which is leaving"
            self._once(host, leaves if lease.state is HostState.DRAINING and tasks > 0 else "", again=False)
        busy = self._plant.look_seconds > self._period
        slow = f"the driver took {self._plant.look_seconds:.1f} s to answer: autopilot observes less often"
        self._once("busy", slow if busy else "")

    def decided(self, decision: Decision) -> None:
        if decision.actual:
            return
        for outcome in decision.outcomes:
            self._tell(outcome)
        self._told = {(outcome.action, outcome.status) for outcome in decision.outcomes}
        would = [p.action for p in decision.proposals if p.refused == "observe only"]
        self._once("would", "; ".join(f"would {describe(action)} ({action.why})" for action in would))
        self._once("note", decision.note)
        log.debug("round %d saw %s", decision.round, quantities(decision.seen))

    def ended(self, ending: Ending) -> None:
        if ending.status == "failed":
            log.error("autopilot stopped: %s", ending.reason)
        else:
            log.info("autopilot stopped: %s", ending.reason or "all watched queries ended")

    def _tell(self, outcome: Outcome) -> None:
        if (outcome.action, outcome.status) in self._told:
            return
        text, host = describe(outcome.action), getattr(outcome.action, "host", "")
        if host and (known := self._plant.describe(host)) != host:
            text = f"{text}, which is {known}"
        if outcome.succeeded:
            log.info("%s (%s)", text, outcome.action.why)
        else:
            log.warning("%s: %s, %s", text, outcome.status, outcome.reason)

    def _once(self, what: str, text: str, *, again: bool = True) -> None:
        """Say `text` unless it is what was said last about `what`; with `again` off, unless anything was."""
        said = self._said.get(what, "")
        if text and (said != text if again else not said):
            log.log(logging.WARNING if what == "busy" else logging.INFO, "%s", text)
        self._said[what] = text


def _executor(slots: int) -> HostType:
    """What an executor of the session's own is taken for."""
    return HostType("executor", cores=slots, slots=slots, price=0.0, billing=Billing(1.0), start=15.0)
