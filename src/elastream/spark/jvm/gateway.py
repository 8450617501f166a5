"""Typed access to PySpark's JVM objects; py4j resolves their members by name at run time."""

import re
from typing import Any, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.errors import first_line

# An object, a class or a package of the JVM.
Java: TypeAlias = Any


def jvm_of(spark: SparkSession) -> Java:
    """Return the JVM's packages and classes."""
    return spark._jvm


def gateway_of(spark: SparkSession) -> Java:
    """Return py4j's gateway, for arrays, callbacks and connections."""
    return spark.sparkContext._gateway


def java_session(spark: SparkSession) -> Java:
    """Return the JVM's SparkSession."""
    return spark._jsparkSession


def java_context(spark: SparkSession) -> Java:
    """Return the JVM's SparkContext (the Scala object, not JavaSparkContext)."""
    return spark.sparkContext._jsc.sc()


def java_queries(spark: SparkSession) -> Java:
    """Return the JVM's running streaming queries of all sessions of the application, by id; they share its executors."""
    return java_session(spark).sharedState().activeStreamingQueries()


def java_query(query: StreamingQuery) -> Java:
    """Return the JVM's StreamingQuery."""
    return query._jsq


def why_in_java(error: BaseException) -> str:
    """Return the message of a JVM exception in one line, without what py4j and Kubernetes' client add."""
    match = re.search(r"^: [\w.$]+: (.+)$", str(error), re.MULTILINE)
    if match is None:
        return first_line(error)
    message = re.search(r"Message: (.+?)\.? Received status: ", match[1])
    return message[1] if message else match[1]
