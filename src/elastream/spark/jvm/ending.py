"""End of queries after the batch that runs, as `Trigger.AvailableNow` ends them. Spark's `stop` cuts a batch off."""

import time
from collections.abc import Callable, Sequence

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.errors import EnvironmentProblem, first_line
from elastream.spark.jvm.driver_side import field_of, jvm_of, module_of

# Seconds between looks at queries that are to end.
LOOK_S = 0.02
# Method in which a query waits for its trigger. In any other method it may still begin a batch.
WAITS = "waitTillTime"


def end_after_batch(spark: SparkSession, queries: Sequence[StreamingQuery], check: Callable[[], None]) -> None:
    """End `queries` once each has committed its batch, or raise what `check` raises meanwhile.

    Raises:
        EnvironmentProblem: This Spark cannot end a query so.
        StreamingQueryException: A query failed.
    """
    jvm, latches, threads = jvm_of(spark), [], []
    try:
        for query in queries:
            execution = query._jsq.streamingQuery()
            # `awaitTermination` checks the state alone, which does not show whether a batch runs.
            latches.append(field_of(execution, "terminationLatch"))
            threads.append(field_of(execution, "queryExecutionThread"))
            state = field_of(execution, "state")
            package = str(state.get().getClass().getName()).rpartition(".")[0]
            state.set(module_of(jvm, f"{package}.TERMINATED$"))
    except (Py4JError, KeyError, TypeError) as error:
        raise EnvironmentProblem(f"this Spark ends no query after a batch: {first_line(error)}") from error
    waiting = dict(zip(queries, threads, strict=True))
    while any(latch.getCount() for latch in latches):
        check()
        time.sleep(LOOK_S)
        for query, thread in list(waiting.items()):
            if any(str(frame.getMethodName()) == WAITS for frame in thread.getStackTrace()):
                del waiting[query]
                query.stop()  # otherwise it would end only at its next trigger
    for query in queries:
        if (failure := query.exception()) is not None:
            raise failure
