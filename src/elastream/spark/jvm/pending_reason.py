"""Reasons of a cluster manager for executors that were requested and do not start.

A small Java source per manager asks it, in a thread, every few seconds at most, while requests are pending.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.clouds.provider import PendingReason
from elastream.errors import EnvironmentProblem, in_one_line
from elastream.spark.jvm.driver_side import HERE, DriverSide
from elastream.spark.jvm.gateway import why_in_java

log = logging.getLogger(__name__)

MIN_ASK_INTERVAL_S = 2.0
SOURCES: Mapping[str, str] = {
    "spark://": "StandaloneReason.java",
    "yarn": "YarnReason.java",
    "k8s://": "KubernetesReason.java",
}


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
    readers: list[DriverSide] = []

    def ask(registered: int) -> PendingReason:
        if not readers:
            readers.append(DriverSide(spark, HERE / source))
        try:
            return parse_reason(readers[0].ask("reason", readers[0].context, registered))
        except Py4JError as error:
            raise EnvironmentProblem(why_in_java(error)) from error

    return CachedReason(ask)


def release_leftovers(spark: SparkSession, application: str) -> None:
    """End what `application`, whose driver is gone, left on the cluster of `spark`. Logs a warning on failure.

    A Standalone master does so itself; on YARN and Kubernetes, pods and application masters would stay.
    """
    source = _source_for(spark)
    if source is None or source == SOURCES["spark://"]:
        return
    try:
        reader = DriverSide(spark, HERE / source)
        for (leftover,) in reader.ask("releaseLeftovers", reader.context, application):
            log.warning("ended %s of application %s, whose driver is gone", leftover, application)
    except (Py4JError, EnvironmentProblem) as error:
        log.warning("leftovers of application %s on the cluster were not ended: %s", application, why_in_java(error))


def _source_for(spark: SparkSession) -> str | None:
    master = str(spark.sparkContext.master)
    return next((source for scheme, source in SOURCES.items() if master.startswith(scheme)), None)


def parse_reason(lines: list[list[str]]) -> PendingReason:
    """Parse lines `starting N`, `says SENTENCE`, `waits SENTENCE` (refused for now) and `never SENTENCE`."""
    answer = dict(lines)
    never, waits = answer.get("never", ""), answer.get("waits", "")
    reason = never or waits or answer.get("says", "")
    return PendingReason(reason, bool(never or waits), bool(never), int(answer.get("starting") or 0))
