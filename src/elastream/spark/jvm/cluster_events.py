"""Kubernetes Events (`kubectl get events`) about what happens to a run, sent by a background thread."""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.core.event import Reason, RunEvent
from elastream.errors import EnvironmentProblem, in_one_line
from elastream.spark.jvm.driver_side import HERE, DriverSide
from elastream.spark.jvm.gateway import why_in_java
from elastream.spark.jvm.pending_reason import SOURCES

log = logging.getLogger(__name__)

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
        """Queue `event`; wait for delivery only if it is the last of a run."""
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
    senders: list[DriverSide] = []

    def send(event: RunEvent, at: float) -> None:
        if not senders:
            senders.append(DriverSide(spark, HERE / SOURCES["k8s://"]))
        body = kubernetes_event(event, namespace, driver, str(context.applicationId), at)
        try:
            refused = dict(senders[0].ask("event", senders[0].context, json.dumps(body)))
        except Py4JError as error:
            raise EnvironmentProblem(why_in_java(error)) from error
        if refused:
            raise EnvironmentProblem(f"Kubernetes refuses them in namespace {namespace!r}: {refused['refused']}")

    return ClusterEvents(send)


def kubernetes_event(event: RunEvent, namespace: str, driver: str, application: str, now: float) -> Mapping[str, Any]:
    """Return `event` as a core/v1 Event about the pod `driver`, or else the namespace; `now` is in epoch seconds."""
    about = {"kind": "Pod", "name": driver} if driver else {"kind": "Namespace", "name": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "elastream-", "namespace": namespace, "labels": {"spark-app-selector": application}},
        "involvedObject": {"apiVersion": "v1", "namespace": namespace, **about},
        "type": event.type,
        "reason": event.reason.value,
        "message": event.message
        if len(event.message) <= MAX_MESSAGE_LENGTH
        else event.message[: MAX_MESSAGE_LENGTH - 3] + "...",
        "count": event.count,
        "firstTimestamp": _stamp(now - max(0.0, event.time - event.since)),
        "lastTimestamp": _stamp(now),
        "source": {"component": "elastream"},
    }


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
