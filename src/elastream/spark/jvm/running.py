"""Which streaming queries a session runs and how far each is: one call to the driver, however many there are."""

from typing import NamedTuple

from pyspark.sql import SparkSession

from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.gateway import java_session

__all__ = ["RunningQuery", "running_queries"]


class RunningQuery(NamedTuple):
    """A query that runs. batch: the newest that ended, -1 before the first. idle: none is under way and no data waits.

    name: empty where it was given none.
    """

    id: str
    run_id: str
    batch: int
    idle: bool
    name: str


def running_queries(driver: DriverSide, spark: SparkSession) -> tuple[RunningQuery, ...]:
    """All queries that `spark` runs now. Raises Py4JError where the session was stopped."""
    rows = driver.ask("queries", java_session(spark).streams())
    return tuple(RunningQuery(query, run, int(batch), idle == "1", name) for query, run, batch, idle, name in rows)
