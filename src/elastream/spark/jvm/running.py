"""Lists a session's running streaming queries with their progress, in one call to the driver."""

from typing import NamedTuple

from pyspark.sql import SparkSession

from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.gateway import java_session

__all__ = ["RunningQuery", "running_queries"]


class RunningQuery(NamedTuple):
    """A running query. batch: the newest ended batch, -1 before the first. idle: no batch is running and no data waits.

    name: empty if it has none.
    """

    id: str
    run_id: str
    batch: int
    idle: bool
    name: str


def running_queries(driver: DriverSide, spark: SparkSession) -> tuple[RunningQuery, ...]:
    """All running queries of `spark`. Raises Py4JError if the session was stopped."""
    rows = driver.ask("queries", java_session(spark).streams())
    return tuple(RunningQuery(query, run, int(batch), idle == "1", name) for query, run, batch, idle, name in rows)
