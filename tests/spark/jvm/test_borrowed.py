"""A session that is borrowed, and what is left of that."""

import pytest
from pyspark.sql import SparkSession

from elastream.errors import EnvironmentProblem
from elastream.spark.jvm.borrowed import borrowed, in_session, open_in_process, slots_of
from elastream.spark.jvm.capabilities import has_executors
from elastream.spark.jvm.driver_side import java_context
from support.shared_session import shared_session

pytestmark = pytest.mark.spark

PARTITIONS = "spark.sql.shuffle.partitions"


def listeners(spark):
    """Return how many sessions of the application listen to its queries."""
    names = [each.getClass().getSimpleName() for each in java_context(spark).listenerBus().listeners()]
    return names.count("StreamingQueryListenerBus")


def test_the_open_session_is_found_with_its_slots():
    spark = shared_session()
    assert open_in_process() is spark
    assert (slots_of(spark), has_executors(spark)) == (2, False)


def test_a_clone_has_settings_of_its_own_and_leaves_nothing():
    spark = shared_session()
    before = listeners(spark), spark.conf.get(PARTITIONS), dict(spark.sparkContext.environment)
    with borrowed(spark, {PARTITIONS: "7", "spark.executor.memory": "9g"}, {}, {"MINE": "1"}) as clone:
        assert (clone.conf.get(PARTITIONS), spark.conf.get(PARTITIONS)) == ("7", before[1])
        assert clone.streams.active == []
        assert listeners(spark) == before[0] + 1
        clone.createDataFrame([(1,)], "n int")
    assert (listeners(spark), spark.conf.get(PARTITIONS), dict(spark.sparkContext.environment)) == before
    assert SparkSession.getActiveSession() is spark


def test_a_required_setting_that_cannot_change_is_named():
    refused = "spark.executor.memory cannot be changed in a session that is open, where it is "
    with (
        pytest.raises(EnvironmentProblem, match=refused),
        borrowed(shared_session(), {}, {"spark.executor.memory": "9g"}, {}),
    ):
        pass


def test_a_frame_of_the_open_session_runs_in_the_clone(tmp_path):
    """A query runs with the settings of its frame's session, and belongs to it."""
    spark = shared_session()
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    with borrowed(spark, {PARTITIONS: "3"}, {}, {}) as clone:
        counts = in_session(frame, clone).groupBy("value").count()
        writer = counts.writeStream.format("noop").outputMode("update")
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.id not in {each.id for each in spark.streams.active}
        query.processAllAvailable()
        query.stop()
        assert '"spark.sql.shuffle.partitions":"3"' in (tmp_path / "offsets" / "0").read_text()
