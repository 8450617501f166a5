"""Makes the archive of Java classes from which the clusters of all tests start, while the first of them run.

    python tests/java_classes.py FOLDER

A run makes its own in idle time, of which tests leave none; their JVMs, of which there are dozens, start with half of the
CPU time where there is one. FOLDER takes what the cluster writes whose JVMs tell which classes they load.
"""

import sys
from pathlib import Path

from elastream.clouds.local.archive import RECORDED, archive_for
from elastream.clouds.local.java import find_java
from stranger import one_executor


def main(folder: Path) -> None:
    """Let one host work, and make the archive of what its JVMs have loaded."""
    archive = archive_for(find_java())
    if archive is None or archive.usable():
        return
    with one_executor(folder) as (spark, cluster):
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        counts = rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("value").count()
        query = counts.writeStream.outputMode("update").format("noop").trigger(processingTime="0 seconds")
        running = query.option("checkpointLocation", str(folder / "checkpoint")).start()
        while not running.recentProgress:
            running.awaitTermination(0.2)
        running.stop()
        lists = [*cluster.folder.glob(f"*.{RECORDED}"), *cluster.folder.glob(f"work/*/*/*/{RECORDED}")]
        making = archive.folder.parent / "making-by-tests"
        making.mkdir()
        print(archive._make(making, lists))  # not `make`, whose lock the first process of the tests holds


if __name__ == "__main__":
    main(Path(sys.argv[1]))
