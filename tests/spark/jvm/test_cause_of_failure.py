"""Causes of failed queries, from messages as Spark 4 writes them."""

import pytest

from elastream.spark.jvm.failure import cause_of_failure

HEAD = "[STREAM_FAILED] Query [id = 5f6a, runId = 11aa] terminated with exception: "
PYTHON = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/opt/py4j/clientserver.py", line 617, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "job.py", line 9, in each
    raise ValueError("no such table: orders")
ValueError: no such table: orders
 SQLSTATE: XXKST"""
TASK = """Job aborted due to stage failure: Task 1 in stage 9.0 failed 4 times, most recent failure: Lost task 1.3 in \
stage 9.0 (TID 31) (10.0.0.7 executor 2): org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. \
SQLSTATE: 22012
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.divideByZeroError(QueryExecutionErrors.scala:204)"""
WORKER = TASK.replace(
    "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO]",
    'org...PythonException: Traceback (most recent \
call last):\n  File "worker.py", line 3, in main\nmy.module.BadRecord: line 7\n\tat',
)


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (HEAD + PYTHON, "ValueError: no such table: orders"),
        (HEAD + WORKER, "my.module.BadRecord: line 7"),
        (HEAD + TASK, "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero."),
        (HEAD + "Topic t was deleted SQLSTATE: XXKST", "Topic t was deleted"),
        ("", ""),
    ],
)
def test_cause_of_a_failed_query_is_one_line(message, cause):
    assert cause_of_failure(message) == cause
