"""Converts a `KafkaTopic` to options of Spark's Kafka connector, which Spark downloads at start."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from elastream.dataflow.endpoints import KafkaTopic
from elastream.errors import InputError
from elastream.spark.jvm.driver_side import Java, jvm_of

SCALA = "2.13"
# Prefix of options for the Kafka client itself.
CLIENT_PREFIX = "kafka."
PACKAGES = "spark.jars.packages"


def kafka_package(version: str = pyspark.__version__) -> str:
    """Return the Maven coordinate of Spark's Kafka connector: `group:artifact:version`."""
    return f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}:{version}"


def kafka_settings() -> Mapping[str, str]:
    """Return session settings for Kafka, with jars cached for the user."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {PACKAGES: kafka_package(), "spark.jars.ivy": str(cache / "elastream" / "ivy")}


def with_connector(own: Mapping[str, str]) -> Mapping[str, str]:
    """Return the Spark settings `own` with those for Kafka, and packages joined; `own` if they name the connector."""
    if any("spark-sql-kafka" in own.get(name, "") for name in (PACKAGES, "spark.jars")):
        return own
    connector = kafka_settings()
    packages = ",".join(filter(None, (connector[PACKAGES], own.get(PACKAGES, ""))))
    return {**connector, **own, PACKAGES: packages}


def source_options(topic: KafkaTopic) -> Mapping[str, str]:
    return {
        "kafka.bootstrap.servers": topic.servers,
        "subscribe": topic.topic,
        "startingOffsets": "earliest",
        **topic.options,
    }


def sink_options(topic: KafkaTopic) -> Mapping[str, str]:
    return {"kafka.bootstrap.servers": topic.servers, "topic": topic.topic, **topic.options}


def check_topic(topic: KafkaTopic) -> None:
    """Raise InputError for a topic without a name or valid `host:port` servers."""
    if not topic.topic:
        raise InputError(f"a Kafka topic at {topic.servers} has no name")
    check_servers(topic.servers, f"Kafka topic {topic.topic!r}")


def check_servers(servers: str, where: str) -> None:
    """Raise InputError for a server that is not host:port."""
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise InputError(f"{where}: {server!r} is not host:port")


@contextmanager
def kafka_admin(spark: SparkSession, topic: KafkaTopic, defaults: Mapping[str, str] | None = None) -> Iterator[Java]:
    """Open Kafka's admin client in the JVM, with the topic's client options over `defaults`. Raises Py4JError."""
    jvm = jvm_of(spark)
    properties = jvm.java.util.Properties()
    own = {
        name.removeprefix(CLIENT_PREFIX): value for name, value in topic.options.items() if name.startswith(CLIENT_PREFIX)
    }
    for name, value in {**(defaults or {}), **own, "bootstrap.servers": topic.servers}.items():
        properties.put(name, value)
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
    try:
        yield admin
    finally:
        admin.close()
