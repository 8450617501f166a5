"""Where a query is stopped in the middle of a batch, Spark is told so in a few lines, in which it sees the interruption."""

import re
import traceback

import pytest
from py4j.protocol import Py4JJavaError

from elastream.spark.dataflow.channels import short_if_stopped

INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
BY_SPARK = re.compile(
    rf"py4j.protocol.Py4JJavaError: An error occurred while calling((.|\r\n|\r|\n)*)({'|'.join(INTERRUPTIONS)})"
)
"""How Spark recognises one (StreamExecution.PROXY_ERROR)."""
OVERFLOWS = 1250
"""Characters behind `calling` at which that expression overflows the stack of a Java thread (a megabyte)."""
FRAMES = "\n".join(f"\tat org.apache.spark.sql.execution.Some.thing(Some.scala:{line})" for line in range(200))


class Failed(Py4JJavaError):
    """What the gateway raises, with a text of its own."""

    def __init__(self, *causes: str) -> None:
        self.text = f"\n{FRAMES}\n".join(causes)

    def __str__(self) -> str:
        return f"An error occurred while calling o123.save.\n: {self.text}\n{FRAMES}\n"


def as_spark_gets_it(error: Py4JJavaError) -> str:
    try:
        raise short_if_stopped(error) from None
    except Exception:
        return traceback.format_exc()


CANCELLED = "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 7 cancelled part of cancelled job group"


@pytest.mark.parametrize("name", [*INTERRUPTIONS, CANCELLED])
@pytest.mark.parametrize("behind", [0, 1, 5])
def test_that_a_query_was_stopped_is_known_again_in_a_short_text(name, behind):
    others = [f"Caused by: java.lang.IllegalStateException: {'x' * 5000}"] * behind
    text = as_spark_gets_it(Failed(f"org.apache.spark.SparkException: {'y' * 5000}", f"Caused by: {name}: z", *others))
    assert BY_SPARK.search(text)
    assert len(text.partition("calling")[2]) < OVERFLOWS / 2


def test_any_other_failure_stays_as_it_is():
    failed = Failed("org.apache.spark.SparkException: aborted", "Caused by: java.io.IOException: disk full")
    assert short_if_stopped(failed) is failed
