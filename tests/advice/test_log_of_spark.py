"""An event log and a web page that the installed Spark writes."""

import pytest

from elastream.advice.sources import read_source
from support.foreign_sessions import local_cluster
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def number(query):
    return (query.lastProgress or {"batchId": -1})["batchId"]


def test_log_that_this_spark_writes_is_read(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    settings = {"enabled": "true", "dir": logs.as_uri(), "rolling.enabled": "true"}
    page = {"spark.ui.enabled": "true", "spark.ui.port": "0"}
    with local_cluster(tmp_path, 700, {f"spark.eventLog.{name}": each for name, each in settings.items()} | page) as spark:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        rows = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
        counts = rows.groupBy((rows.value % 5).alias("key")).count()
        query = counts.writeStream.format("noop").outputMode("update").queryName("counts").start()
        wait_until(lambda: number(query) >= 6, progress=lambda: number(query))
        (shown,) = read_source(spark.sparkContext.uiWebUrl).queries.values()
        query.stop()
    (log,) = logs.iterdir()
    application = read_source(str(log))
    (logged,) = application.queries.values()
    assert (logged.name, application.cores_each, application.unreadable) == ("counts", 1.0, 0)
    batch = logged.batches[-1]
    assert [(stage.times.shuffled, stage.times.python) for stage in batch.stages] == [(False, False), (True, False)]
    assert batch.stages[1].times.tasks == 2
    assert batch.state == 5
    assert 0 < batch.run < 2 * batch.seconds
    same = {each.number: each for each in logged.batches}
    assert shown.name == "counts"
    for each in list(shown.batches)[1:-1]:
        twin = same[each.number]
        assert (each.rows, each.state, each.durations["addBatch"]) == (twin.rows, twin.state, twin.durations["addBatch"])
        assert [s.times.tasks for s in each.stages] == [s.times.tasks for s in twin.stages]
        for here, there in zip(each.stages, twin.stages, strict=True):
            assert here.times.longest == pytest.approx(there.times.longest, abs=1e-3)
            assert here.records == there.records
