"""PySpark's daemon with all modules preloaded, so that the workers it forks start in milliseconds.

Of these modules only jemalloc and OpenBLAS start threads, which restart in a child.
"""

import gc
import importlib
import sys

from elastream.clouds.local.forks import run_in_fork
from elastream.clouds.local.processes import SECRET, wipe
from elastream.spark.worker import probe

# Modules that workers load for Arrow stages and sources; a test compares.
PRELOADED = (
    "pandas",
    "pyarrow.compute",
    "pyspark.worker",
    "pyspark.sql.conversion",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.pandas.types",
    "elastream.spark.worker.walk",
)


def preload() -> None:
    """Import them and freeze the garbage collector, so that workers share memory."""
    # Executors prefer PySpark's archives, which each process compiles for half a second. Prefer the installed package.
    sys.path.sort(key=lambda entry: entry.endswith(".zip"))
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def run() -> None:
    """Run the daemon, with the speed probe beside it, until the executor ends."""
    from pyspark.daemon import manager

    probe.begin()
    manager()


if __name__ == "__main__":
    wipe(SECRET)  # the executor's secret must not reach user code
    probe.name_executor()  # before another daemon's fork may take over
    if not run_in_fork("elastream.spark.worker.daemon"):
        preload()
        run()
