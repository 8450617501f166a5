"""What the cluster manager of a session says of executors that were requested and do not come.

Each manager is read by a small Java source of its own, compiled when it is first needed; where that fails, hosts wait
without a reason. Asking takes a round trip over a network: it is done by a thread, at most every few seconds, and only
while something waits.
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

EVERY = 2.0
"""Seconds between two questions, at least."""


class WordOfCluster:
    """The newest answer of a cluster manager. ask: called with how many executors are registered; may take long.

    What has been granted and has not registered is what two answers in a row say, less what has registered since: a manager
    still counts an executor that has just ended, and an answer may be older than a request.
    """

    def __init__(self, ask: Callable[[int], PendingReason], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._clock = ask, clock
        self._word, self._before, self._granted = PendingReason(), 0, 0  # before: those that started by the answer before
        self._asked, self._asking = -EVERY, False
        self._failed = False
        self._lock = threading.Lock()

    def __call__(self, registered: int) -> PendingReason:
        """The newest answer; asks anew, on a thread of its own, where that is old."""
        with self._lock:
            now = self._clock()
            if now - self._asked > 5 * EVERY:
                self._word, self._before, self._granted = PendingReason(), 0, 0  # of requests of long ago
            if not self._asking and now - self._asked >= EVERY:
                self._asking, self._asked = True, now
                threading.Thread(target=self._renew, args=(registered,), name="cluster-word", daemon=True).start()
            starting = max(0, min(self._before, self._word.starting, self._granted - registered))
            return replace(self._word, starting=starting)

    def _renew(self, registered: int) -> None:
        word = PendingReason()
        try:
            word = self._ask(registered)
        except Exception as error:
            if not self._failed:
                log.warning("why executors do not come cannot be said: %s", in_one_line(error))
                log.debug("the cluster manager's answer was not read", exc_info=True)
            self._failed = True
        finally:
            with self._lock:
                self._before, self._granted = self._word.starting, word.starting + registered
                self._word, self._asking = word, False


def word_of(spark: SparkSession) -> Callable[[int], PendingReason]:
    """What says why executors of `spark` do not come; a manager that is not known says nothing."""
    master = str(spark.sparkContext.master)
    source = next((source for scheme, source in SOURCES.items() if master.startswith(scheme)), None)
    if source is None:
        return lambda registered: PendingReason()
    readers: list[DriverSide] = []

    def ask(registered: int) -> PendingReason:
        if not readers:
            readers.append(DriverSide(spark, HERE / source))
        try:
            return word_in(readers[0].ask("word", readers[0].context, registered))
        except Py4JError as error:
            raise EnvironmentProblem(why_in_java(error)) from error

    return WordOfCluster(ask)


def bury(spark: SparkSession, application: str) -> None:
    """End what `application` has left on the cluster of `spark`; its driver is gone. Where that fails there is a warning.

    A Standalone master does so itself as soon as a driver is gone. YARN waits for an application master that waits for its
    driver. On Kubernetes nobody does where the driver is no pod: pods that are pending are started for nobody.
    """
    source = next((source for scheme, source in BURYING.items() if str(spark.sparkContext.master).startswith(scheme)), None)
    if source is None:
        return
    try:
        reader = DriverSide(spark, HERE / source)
        for (found,) in reader.ask("bury", reader.context, application):
            log.warning("%s of the application %s, whose driver is gone: ended", found, application)
    except (Py4JError, EnvironmentProblem) as error:
        log.warning("what the application %s has left on the cluster was not ended: %s", application, why_in_java(error))


SOURCES: Mapping[str, str] = {"spark://": "StandaloneWord.java", "yarn": "YarnWord.java", "k8s://": "KubernetesWord.java"}
"""The Java source for each kind of master."""
BURYING: Mapping[str, str] = {"yarn": SOURCES["yarn"], "k8s://": SOURCES["k8s://"]}
"""Those of managers that leave something behind of an application whose driver is gone."""


def word_in(lines: list[list[str]]) -> PendingReason:
    """A word from lines `starting N`, `says SENTENCE`, `waits SENTENCE` (refused for now) and `never SENTENCE`."""
    found = dict(lines)
    never, waits = found.get("never", ""), found.get("waits", "")
    reason = never or waits or found.get("says", "")
    return PendingReason(reason, bool(never or waits), bool(never), int(found.get("starting") or 0))
