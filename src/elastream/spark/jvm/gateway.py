"""Where PySpark gives out what is in its JVM, typed once: py4j finds members by their names when they are used.

All that reaches behind PySpark's own interface begins with one of these; what it then relies on, its module says.
"""

from typing import Any, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Java", "gateway_of", "java_context", "java_query", "java_session", "jvm_of"]

Java: TypeAlias = Any
"""An object, a class or a package of the JVM."""


def jvm_of(spark: SparkSession) -> Java:
    """The JVM's packages and classes, by their names."""
    return spark._jvm


def gateway_of(spark: SparkSession) -> Java:
    """Py4j's gateway: for arrays, for callbacks, and for the connections themselves."""
    return spark.sparkContext._gateway


def java_session(spark: SparkSession) -> Java:
    """Spark's own SparkSession."""
    return spark._jsparkSession


def java_context(spark: SparkSession) -> Java:
    """Spark's own SparkContext, not the wrapper for Java."""
    return spark.sparkContext._jsc.sc()


def java_query(query: StreamingQuery) -> Java:
    """Spark's own StreamingQuery."""
    return query._jsq
