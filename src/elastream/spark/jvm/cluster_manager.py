"""Questions and messages to the cluster manager, each on a thread: a small Java source per manager carries them.

While requests are pending, it asks why executors do not start. It sends Kubernetes Events (`kubectl get events`) about a
run.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.clouds.notices import UNTIMED_S
from elastream.clouds.provider import UNLIMITED, PendingReason
from elastream.core.event import Reason, RunEvent
from elastream.errors import EnvironmentProblem, in_one_line
from elastream.spark.jvm.driver_side import HERE, DriverSide, why_in_java

log = logging.getLogger(__name__)

MIN_ASK_INTERVAL_S = 2.0
# Seconds between two queries for executors that are taken away. A query lists all pods or nodes once.
NOTICE_INTERVAL_S = 5.0
SOURCES: Mapping[str, str] = {
    "spark://": "StandaloneReason.java",
    "yarn": "YarnReason.java",
    "k8s://": "KubernetesReason.java",
}


@dataclass(frozen=True, slots=True)
class SessionLimit:
    """A limit of a session's executors; requests beyond it stay pending for ever."""

    executors: int = UNLIMITED
    name: str = ""


NO_LIMIT = SessionLimit()


class CachedReason:
    """Cached answer of a cluster manager. `ask` receives the number of registered executors and may be slow.

    An executor counts as starting if two answers in a row say so: managers still list one that has just ended.
    """

    def __init__(self, ask: Callable[[int], PendingReason], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._clock = ask, clock
        self._answer, self._starting_before, self._requested = PendingReason(), 0, 0
        self._last_ask, self._asking = -MIN_ASK_INTERVAL_S, False
        self._failed = False
        self._lock = threading.Lock()

    def __call__(self, registered: int) -> PendingReason:
        """Return the newest answer; refresh an old one in the background."""
        with self._lock:
            now = self._clock()
            if now - self._last_ask > 5 * MIN_ASK_INTERVAL_S:
                self._answer, self._starting_before, self._requested = PendingReason(), 0, 0  # about old requests
            if not self._asking and now - self._last_ask >= MIN_ASK_INTERVAL_S:
                self._asking, self._last_ask = True, now
                threading.Thread(target=self._renew, args=(registered,), name="cluster-word", daemon=True).start()
            starting = max(0, min(self._starting_before, self._answer.starting, self._requested - registered))
            return replace(self._answer, starting=starting)

    def _renew(self, registered: int) -> None:
        answer = PendingReason()
        try:
            answer = self._ask(registered)
        except Exception as error:
            if not self._failed:
                log.warning("the cluster manager gives no reasons for missing executors: %s", in_one_line(error))
                log.debug("the cluster manager's answer was not read", exc_info=True)
            self._failed = True
        finally:
            with self._lock:
                self._starting_before, self._requested = self._answer.starting, answer.starting + registered
                self._answer, self._asking = answer, False


def pending_reason(spark: SparkSession) -> Callable[[int], PendingReason]:
    """Return a function that explains missing executors of `spark`; unknown managers give no reason."""
    source = _source_for(spark)
    if source is None:
        return lambda registered: PendingReason()
    ask = _asker(spark, source)
    return CachedReason(lambda registered: parse_reason(ask("reason", registered)))


class ClusterWatch:
    """Executors that the cluster manager takes away, and executors to protect from that.

    Args:
        ask: Calls a method of the manager's Java source; may be slow.
    """

    def __init__(
        self,
        ask: Callable[..., list[list[str]]],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._ask, self._clock, self._wall = ask, clock, wall
        self._notices: Mapping[str, tuple[float, str]] = {}
        self._first_told: dict[str, float] = {}
        self._holders = self._protected = self._tried = ""
        self._last_ask, self._asking, self._failed, self._taints_warned = -NOTICE_INTERVAL_S, False, False, False
        self._renewal: threading.Thread | None = None
        self._lock = threading.Lock()

    def notices(self) -> Mapping[str, tuple[float, str]]:
        """Return by executor when it goes (epoch seconds) and why. Refresh old answers in the background."""
        with self._lock:
            due = self._clock() - self._last_ask >= NOTICE_INTERVAL_S or self._holders != self._tried
            if due and not self._asking:
                self._asking, self._last_ask = True, self._clock()
                self._renewal = threading.Thread(target=self.renew, name="cluster-notices", daemon=True)
                self._renewal.start()
            return self._notices

    def protect(self, executors: Collection[str]) -> None:
        """Mark the pods of these executors, and of no others, as not to be disrupted."""
        self._holders = ",".join(sorted(executors))

    def unprotect(self) -> None:
        self._holders = ""
        if self._renewal is not None:
            self._renewal.join()
        try:
            if self._protected:
                self._ask("protect", "")
        except Exception as error:
            log.warning("executors keep their mark at the cluster manager: %s", in_one_line(error))

    def renew(self) -> None:
        self._tried = holders = self._holders
        try:
            notices, first_told = {}, dict[str, float]()
            for executor, milliseconds, reason in self._ask("notices"):
                if not executor:
                    if not self._taints_warned:
                        log.warning("taints of nodes give no notice: %s; let the account list nodes", reason)
                    self._taints_warned = True
                    continue
                first = first_told[executor] = self._first_told.get(executor, self._wall())
                at = int(milliseconds or 1e3 * UNTIMED_S) / 1e3
                at = at if milliseconds[:1].isdigit() else first + at  # others give the remaining time
                notices[executor] = at, reason
            self._notices, self._first_told = notices, first_told
            if holders != self._protected:
                self._ask("protect", holders)
                self._protected = holders
        except Exception as error:
            if not self._failed:
                log.warning("the cluster manager tells of no executors that it takes away: %s", in_one_line(error))
                log.debug("the cluster manager's notices were not read", exc_info=True)
            self._failed = True
        finally:
            with self._lock:
                self._asking = False


def cluster_watch(spark: SparkSession) -> ClusterWatch | None:
    """Return the watch over executors of `spark`; None on other managers than YARN and Kubernetes."""
    source = _source_for(spark)
    return None if source in (None, SOURCES["spark://"]) else ClusterWatch(_asker(spark, source))


def cluster_limit(spark: SparkSession, slots: int) -> SessionLimit:
    """Return the most executors that the application may have by a quota or by the capacity of its queue.

    Args:
        slots: Cores of an executor; 0 if unknown.
    """
    source = _source_for(spark)
    if source is None:
        return NO_LIMIT
    try:
        return parse_limit(_asker(spark, source)("limit", slots))
    except (EnvironmentProblem, ValueError) as error:
        log.debug("the cluster manager tells no limit: %s", in_one_line(error), exc_info=True)
        return NO_LIMIT


def parse_limit(lines: list[list[str]]) -> SessionLimit:
    """Return the lowest of the limits in lines `NUMBER NAME`."""
    return min((SessionLimit(int(most), name) for most, name in lines), key=lambda each: each.executors, default=NO_LIMIT)


def _asker(spark: SparkSession, source: str) -> Callable[..., list[list[str]]]:
    reader = cache(lambda: DriverSide(spark, HERE / source))

    def ask(method: str, *arguments: object) -> list[list[str]]:
        try:
            return reader().ask(method, reader().context, *arguments)
        except Py4JError as error:
            raise EnvironmentProblem(why_in_java(error)) from error

    return ask


def release_leftovers(spark: SparkSession, application: str) -> None:
    """End what `application`, whose driver is gone, left on the cluster of `spark`. Logs a warning on failure.

    A Standalone master does so itself; on YARN and Kubernetes, pods and application masters would stay.
    """
    source = _source_for(spark)
    if source is None or source == SOURCES["spark://"]:
        return
    try:
        for (leftover,) in _asker(spark, source)("releaseLeftovers", application):
            log.warning("ended %s of application %s, whose driver is gone", leftover, application)
    except EnvironmentProblem as error:
        log.warning("leftovers of application %s on the cluster were not ended: %s", application, in_one_line(error))


def _source_for(spark: SparkSession) -> str | None:
    master = str(spark.sparkContext.master)
    return next((source for scheme, source in SOURCES.items() if master.startswith(scheme)), None)


def parse_reason(lines: list[list[str]]) -> PendingReason:
    """Parse lines `starting N`, `says SENTENCE`, `waits SENTENCE` (refused for now) and `never SENTENCE`."""
    answer = dict(lines)
    never, waits = answer.get("never", ""), answer.get("waits", "")
    reason = never or waits or answer.get("says", "")
    return PendingReason(reason, bool(never or waits), bool(never), int(answer.get("starting") or 0))


# If the API server does not answer, the oldest are dropped.
MAX_PENDING_EVENTS = 100
# Kubernetes' limit of a note.
MAX_MESSAGE_LENGTH = 1024
FLUSH_TIMEOUT_S = 5.0


class ClusterEvents:
    """Event sink that calls `send(event, epoch_seconds)` on a thread, and logs its first failure."""

    def __init__(self, send: Callable[[RunEvent, float], None]) -> None:
        self._send = send
        self._waiting: deque[tuple[RunEvent, float]] = deque(maxlen=MAX_PENDING_EVENTS)
        self._thread: threading.Thread | None = None
        self._failed = False
        self._lock = threading.Lock()

    def __call__(self, event: RunEvent) -> None:
        with self._lock:
            self._waiting.append((event, time.time()))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="cluster-events", daemon=True)
                self._thread.start()
            thread = self._thread
        if event.reason is Reason.RUN_ENDED:
            thread.join(FLUSH_TIMEOUT_S)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                event, at = self._waiting.popleft()
            try:
                self._send(event, at)
            except Exception as error:
                if not self._failed:
                    log.warning("events do not reach the cluster: %s", in_one_line(error))
                    log.debug("an event was not sent", exc_info=True)
                self._failed = True


def event_sink(spark: SparkSession) -> ClusterEvents | None:
    """Return the sink of events for the cluster of `spark`; None unless that is Kubernetes."""
    context = spark.sparkContext
    if not str(context.master).startswith("k8s://"):
        return None
    settings = context.getConf()
    namespace = settings.get("spark.kubernetes.namespace", "default") or "default"
    driver = settings.get("spark.kubernetes.driver.pod.name", "") or ""
    ask = _asker(spark, SOURCES["k8s://"])

    def send(event: RunEvent, at: float) -> None:
        body = kubernetes_event(event, namespace, driver, str(context.applicationId), at)
        if refused := dict(ask("event", json.dumps(body))):
            raise EnvironmentProblem(f"Kubernetes refuses them in namespace {namespace!r}: {refused['refused']}")

    return ClusterEvents(send)


def kubernetes_event(event: RunEvent, namespace: str, driver: str, application: str, now: float) -> Mapping[str, Any]:
    """Return `event` as a core/v1 Event about the pod `driver`, or the namespace if that is empty. now: epoch seconds."""
    message = event.message
    if len(message) > MAX_MESSAGE_LENGTH:
        message = message[: MAX_MESSAGE_LENGTH - 3] + "..."
    about = {"kind": "Pod", "name": driver} if driver else {"kind": "Namespace", "name": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "elastream-", "namespace": namespace, "labels": {"spark-app-selector": application}},
        "involvedObject": {"apiVersion": "v1", "namespace": namespace, **about},
        "type": event.type,
        "reason": event.reason.value,
        "message": message,
        "count": event.count,
        "firstTimestamp": _stamp(now - max(0.0, event.time - event.since)),
        "lastTimestamp": _stamp(now),
        "source": {"component": "elastream"},
    }


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
