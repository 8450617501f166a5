from pyspark.sql import SparkSession

from elastream.observability.events import EventLog
from elastream.recording.observer import Observer
from elastream.spark.jvm.cluster_manager import event_sink


def cluster_observers(spark: SparkSession) -> list[Observer]:
    """Return the observer that sends events to the cluster manager of `spark`; none if it takes no events."""
    sink = event_sink(spark)
    return [] if sink is None else [EventLog(sinks=[sink], logged=False)]
