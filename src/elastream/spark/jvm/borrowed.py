"""The Spark session that a process has, borrowed for a run."""

# States of the session of an in-process run (`start` makes the transitions):
#
#   state     event                           next      action
#   none      the run begins, none is open    owned     open one on this machine
#   none      the run begins, one is open     borrowed  clone it: own settings and queries; tables and executors in common
#   owned     the run ends, however it does   none      stop the queries, stop the session
#   borrowed  the run ends, however it does   none      stop the run's queries, restore the workers' environment, remove
#                                                       the clone's listener; the session and its other queries go on
#   any       somebody stops the session      none      fail the run; there is nothing left to stop

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from elastream.errors import EnvironmentProblem
from elastream.spark.jvm.capabilities import NEEDS_CLASSIC_SESSION
from elastream.spark.jvm.driver_side import java_context, java_session, jvm_of

# A session on a Connect server sets it in the process.
CONNECT_VARIABLE = "SPARK_CONNECT_MODE_ENABLED"


def open_in_process() -> SparkSession | None:
    """Return the session that this process has; None if there is none.

    Raises:
        EnvironmentProblem: It is a session of Spark Connect, which has no driver here.
    """
    if SparkContext._active_spark_context is not None:
        return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    if os.environ.get(CONNECT_VARIABLE):
        raise EnvironmentProblem(f"a dataflow cannot run in the open session: {NEEDS_CLASSIC_SESSION}")
    return None


def slots_of(spark: SparkSession) -> int:
    """Return the number of tasks that the executors of `spark` run at a time, by its own default."""
    return max(1, int(spark.sparkContext.defaultParallelism))


@contextmanager
def borrowed(
    spark: SparkSession, settings: Mapping[str, str], required: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[SparkSession]:
    """Yield a clone of `spark` with settings of its own; remove every trace of it at the end.

    Raises:
        EnvironmentProblem: The session has another value of a required setting that cannot be changed.
    """
    clone = SparkSession(spark.sparkContext, java_session(spark).cloneSession())
    for name, value in settings.items():
        if clone.conf.isModifiable(name):
            clone.conf.set(name, value)
    for name, value in required.items():
        if clone.conf.isModifiable(name):
            clone.conf.set(name, value)
        elif (present := spark.sparkContext.getConf().get(name)) != value:
            raise EnvironmentProblem(
                f"{name} cannot be changed in a session that is open, where it is {present or 'not set'}: set it to "
                f"{value!r} where the session is made, or stop the session before run(...)"
            )
    of_workers = spark.sparkContext.environment
    before, active = dict(of_workers), SparkSession.getActiveSession()
    of_workers.update(environment)
    try:
        yield clone
    finally:
        of_workers.clear()
        of_workers.update(before)
        # The session may have been stopped meanwhile.
        with contextlib.suppress(Py4JError, PySparkException, OSError, AttributeError):
            _remove_listener(clone)
            if active is not None:
                _activate(active)


def in_session(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """Return `frame` in the session `spark`, with whose settings its query then runs."""
    if frame.sparkSession._jsparkSession.equals(java_session(spark)):
        return frame
    datasets = jvm_of(spark).org.apache.spark.sql.classic.Dataset
    return DataFrame(datasets.ofRows(java_session(spark), frame._jdf.queryExecution().analyzed()), spark)


def _remove_listener(clone: SparkSession) -> None:
    """Remove the bus of the clone's queries from the application's, which would keep it for good."""
    java_context(clone).listenerBus().removeListener(java_session(clone).streams().listenerBus())


def _activate(spark: SparkSession) -> None:
    """Make `spark` this thread's session, as which any frame of the clone may have made the clone."""
    SparkSession._activeSession = spark
    java_session(spark).setActiveSession(java_session(spark))


def has_class(spark: SparkSession, name: str) -> bool:
    try:
        jvm_of(spark).org.apache.spark.util.Utils.classForName(name, False, True)
    except Py4JError:
        return False
    return True
