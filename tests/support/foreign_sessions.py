"""Sessions of somebody else's, for tests of what looks after queries that it did not start."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from elastream import HostType, Local
from elastream.clouds.local.cluster import LocalCluster
from elastream.clouds.local.java import DRIVER_OPTIONS
from elastream.spark.jvm.session import open_session, settings_for
from support.shared_session import archived, forget_jvm

TINY = HostType("tiny", cores=0.8, slots=1, memory=1000.0)


def two_executors(root: Path, memory: int, **settings: str) -> AbstractContextManager[SparkSession]:
    """A session with two executors of `memory` MiB, with Spark's own settings but for `settings` (of spark.sql)."""
    return local_cluster(root, memory, {f"spark.sql.{name.replace('_', '.')}": value for name, value in settings.items()})


@contextmanager
def local_cluster(
    root: Path, memory: int, settings: Mapping[str, str], *, executors: int = 2, cores: int = 1
) -> Iterator[SparkSession]:
    """A session with `executors` of `memory` MiB and `cores`, with Spark's own settings but for `settings`."""
    forget_jvm()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    quiet = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": f"{memory}m",
        DRIVER_OPTIONS: archived(),
        "spark.executor.extraJavaOptions": archived(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.warehouse.dir": str(root / "warehouse"),
        "spark.local.dir": str(root / "scratch"),
        **settings,
    }
    builder = SparkSession.builder.master(f"local-cluster[{executors},{cores},{memory + 100}]").appName("stranger")
    for key, value in quiet.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        forget_jvm()


@contextmanager
def one_executor(root: Path, max_hosts: int = 1, state_partitions: int = 2) -> Iterator[tuple[SparkSession, LocalCluster]]:
    """A session on a Standalone cluster of its own, with an executor on a host that is just there."""
    with LocalCluster(Local(TINY, max_hosts=max_hosts), root) as cluster:
        cluster.spawn("stranger")
        forget_jvm()
        settings = settings_for(
            driver_address=cluster.driver_address,
            executor_memory=cluster.executor_memory_mb,
            executor_cores=1,
            state_partitions=state_partitions,
        )
        session = open_session(
            cluster.url,
            "stranger",
            cluster.folder,
            {**settings, **cluster.secrets.session_settings},
            cluster.secrets.shared,
        )
        yield session, cluster
    session.stop()
    forget_jvm()
