"""Typed access to PySpark's JVM objects; py4j resolves their members by name at run time.

All code that uses internals behind PySpark's interface starts with one of these functions.
"""

import re
from typing import Any, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.errors import first_line

Java: TypeAlias = Any
"""An object, a class or a package of the JVM."""


def jvm_of(spark: SparkSession) -> Java:
    """The JVM's packages and classes."""
    return spark._jvm


def gateway_of(spark: SparkSession) -> Java:
    """Py4j's gateway, for arrays, callbacks and connections."""
    return spark.sparkContext._gateway


def java_session(spark: SparkSession) -> Java:
    """The JVM's SparkSession."""
    return spark._jsparkSession


def java_context(spark: SparkSession) -> Java:
    """The JVM's SparkContext (the Scala object, not JavaSparkContext)."""
    return spark.sparkContext._jsc.sc()


def java_queries(spark: SparkSession) -> Java:
    """The JVM's streaming queries that run, a map by their ids: those of all sessions of the application.

    They share its executors. A session lists its own alone: not those of a notebook beside it, nor of Connect's clients.
    """
    return java_session(spark).sharedState().activeStreamingQueries()


def java_query(query: StreamingQuery) -> Java:
    """The JVM's StreamingQuery."""
    return query._jsq


def why_in_java(error: BaseException) -> str:
    """What an exception of the JVM said, in one line; its first line where it said nothing.

    The gateway puts a line of its own before it, and Kubernetes' client the request and the whole answer around it.
    """
    said = re.search(r"^: [\w.$]+: (.+)$", str(error), re.MULTILINE)
    if said is None:
        return first_line(error)
    answered = re.search(r"Message: (.+?)\.? Received status: ", said[1])
    return answered[1] if answered else said[1]
