"""End of queries after the batch that runs, as `Trigger.AvailableNow` ends them. Spark's `stop` cuts a batch off."""

import time
from collections.abc import Sequence

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.errors import EnvironmentProblem, first_line
from elastream.spark.jvm.driver_side import field_of, jvm_of, module_of

# Seconds between looks at queries that are to end.
LOOK_S = 0.02


def end_after_batch(spark: SparkSession, queries: Sequence[StreamingQuery], seconds: float) -> bool:
    """End `queries` once each has committed its batch; return False if that takes longer than `seconds`.

    Raises:
        EnvironmentProblem: This Spark cannot end a query so.
        StreamingQueryException: A query failed.
    """
    until, jvm, latches = time.monotonic() + seconds, jvm_of(spark), []
    try:
        for query in queries:
            execution = query._jsq.streamingQuery()
            # `awaitTermination` goes by the state alone, which says nothing of a batch that runs.
            latches.append(field_of(execution, "terminationLatch"))
            state = field_of(execution, "state")
            package = str(state.get().getClass().getName()).rpartition(".")[0]
            state.set(module_of(jvm, f"{package}.TERMINATED$"))
            if not query.status["isTriggerActive"]:
                query.stop()  # else it would wait for its trigger, and then end
    except (Py4JError, KeyError, TypeError) as error:
        raise EnvironmentProblem(f"this Spark ends no query after a batch: {first_line(error)}") from error
    while any(latch.getCount() for latch in latches):
        if time.monotonic() >= until:
            return False
        time.sleep(LOOK_S)
    for query in queries:
        if (failure := query.exception()) is not None:
            raise failure
    return True
