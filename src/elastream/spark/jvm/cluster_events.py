"""Tells the cluster manager of a session what happens to its run: on Kubernetes as Events (`kubectl get events`).

An event is a request over a network: a thread sends what has come, and nobody waits for it but the end of a run.
"""

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
from elastream.spark.jvm.cluster_word import SOURCES
from elastream.spark.jvm.driver_side import HERE, DriverSide
from elastream.spark.jvm.gateway import why_in_java

log = logging.getLogger(__name__)

MOST = 100
"""Events that wait to be sent, at most: where the API server does not answer, the oldest are dropped."""
LONGEST = 1024
"""Characters of a message: what Kubernetes keeps of a note."""
PATIENCE = 5.0
"""Seconds that the end of a run waits for what is still to be sent."""


class ClusterEvents:
    """A sink of events. send: sends one that came at an epoch second, may take long, and raises where that fails: the first
    failure is a warning."""

    def __init__(self, send: Callable[[RunEvent, float], None]) -> None:
        self._send = send
        self._waiting: deque[tuple[RunEvent, float]] = deque(maxlen=MOST)
        self._thread: threading.Thread | None = None
        self._failed = False
        self._lock = threading.Lock()

    def __call__(self, event: RunEvent) -> None:
        """Have `event` sent; only the last one of a run is waited for."""
        with self._lock:
            self._waiting.append((event, time.time()))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="cluster-events", daemon=True)
                self._thread.start()
            thread = self._thread
        if event.reason is Reason.RUN_ENDED:
            thread.join(PATIENCE)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                event, came = self._waiting.popleft()
            try:
                self._send(event, came)
            except Exception as error:
                if not self._failed:
                    log.warning("events are not told to the cluster: %s", in_one_line(error))
                    log.debug("an event was not sent", exc_info=True)
                self._failed = True


def event_sink(spark: SparkSession) -> ClusterEvents | None:
    """What tells the cluster manager of `spark` of events; None where it has none, as all but Kubernetes."""
    context = spark.sparkContext
    if not str(context.master).startswith("k8s://"):
        return None
    settings = context.getConf()
    namespace = settings.get("spark.kubernetes.namespace", "default") or "default"
    driver = settings.get("spark.kubernetes.driver.pod.name", "") or ""
    senders: list[DriverSide] = []

    def send(event: RunEvent, came: float) -> None:
        if not senders:
            senders.append(DriverSide(spark, HERE / SOURCES["k8s://"]))
        told = kubernetes_event(event, namespace, driver, str(context.applicationId), came)
        try:
            refused = dict(senders[0].ask("event", senders[0].context, json.dumps(told)))
        except Py4JError as error:
            raise EnvironmentProblem(why_in_java(error)) from error
        if refused:
            raise EnvironmentProblem(f"Kubernetes refuses them in namespace {namespace!r}: {refused['refused']}")

    return ClusterEvents(send)


def kubernetes_event(event: RunEvent, namespace: str, driver: str, application: str, now: float) -> Mapping[str, Any]:
    """`event` as a core/v1 Event, JSON-ready. driver: name of the driver's pod; empty where it is none, and the event is
    then about the namespace. now: seconds since 1970 at which it happened."""
    about = {"kind": "Pod", "name": driver} if driver else {"kind": "Namespace", "name": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "elastream-", "namespace": namespace, "labels": {"spark-app-selector": application}},
        "involvedObject": {"apiVersion": "v1", "namespace": namespace, **about},
        "type": event.type,
        "reason": event.reason.value,
        "message": event.message if len(event.message) <= LONGEST else event.message[: LONGEST - 3] + "...",
        "count": event.count,
        "firstTimestamp": _stamp(now - max(0.0, event.time - event.since)),
        "lastTimestamp": _stamp(now),
        "source": {"component": "elastream"},
    }


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
