"""PySpark's daemon, which forks the Python workers of an executor, with everything loaded that each of them would load.

A worker costs a third of a second of CPU until its first record, and a task of the stream has two of them; forked from a
daemon that has pandas, pyarrow and this package loaded, it costs a few milliseconds. PySpark's own daemon loads nothing,
because modules may start threads, which a fork does not take along. Of those loaded here only jemalloc and OpenBLAS start
any, and both begin anew in a child by themselves. Where several hosts are on one machine, the daemons themselves are forks.
"""

import gc
import importlib
import sys

from elastream.clouds.local.forks import taken_over
from elastream.clouds.local.processes import SECRET, wipe
from elastream.spark.worker import probe

PRELOADED = (
    "pandas",
    "pyarrow.compute",
    "pyspark.worker",
    "pyspark.sql.conversion",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.pandas.types",
    "elastream.spark.worker.fused",
)
"""What workers load for Arrow stages and sources; a test compares."""


def preload() -> None:
    """Load it, and keep it out of the collector's sight: pages that nobody writes to stay shared by all workers."""
    # Executors look for PySpark in the archives that come with it first. There each process compiles it from source, which
    # takes half a second; the installed package is the same, compiled.
    sys.path.sort(key=lambda entry: entry.endswith(".zip"))
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def run() -> None:
    """Be the daemon, until the executor ends, with the process beside it that measures how fast the host is."""
    from pyspark.daemon import manager

    probe.begin()
    manager()


if __name__ == "__main__":
    wipe(SECRET)  # it is the executor's; what its workers execute has no use for it
    probe.name_executor()  # before a fork of another process goes on in this one's place
    if not taken_over("elastream.spark.worker.daemon"):
        preload()
        run()
