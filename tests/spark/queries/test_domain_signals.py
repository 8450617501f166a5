"""Domain signals on the driver: one value a batch, by its number, readable once it is committed."""

from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import records
from elastream.dataflow.graph import Graph
from elastream.dataflow.signals import SignalReading
from elastream.spark.queries.compiled import DomainSignals
from elastream.spark.telemetry.batches import Batch
from elastream.spark.worker.signals import SignalRow

EPOCH = 1000.0


def graph() -> Graph:
    flow = Dataflow("signalled")
    source = flow.source(records([{"x": 1.0}], "x double"))
    source.signal("level", "mean(x)")
    source.signal("seen", "count()")
    source.sink(None)
    return flow.graph


def row(batch: int, value: float, task: int = 0, signal: str = "level", count: int = 2) -> SignalRow:
    return ("source", batch, signal, task, count, value)


def committed(batch: int, end: float) -> Batch:
    return Batch("source", batch, EPOCH + end - 1.0, 1.0, 10)


def test_a_batchs_tasks_make_one_value_dated_at_the_commit():
    signals = DomainSignals(graph())
    signals.add_parts([row(0, 2.0), row(0, 10.0, task=1)])
    assert signals.newest == {}
    signals.committed([committed(0, 5.0)], EPOCH)
    assert signals.newest == {"level": SignalReading(3.0, 5.0)}


def test_a_repeated_task_or_batch_replaces_its_earlier_report():
    signals = DomainSignals(graph())
    signals.add_parts([row(3, 2.0), row(3, 4.0, task=1)])
    signals.add_parts([row(3, 2.0)])
    signals.add_parts([row(3, 20.0, task=1)])
    signals.committed([committed(3, 7.0)], EPOCH)
    assert signals.newest["level"].value == 22.0 / 4


def test_a_batch_without_records_for_a_signal_leaves_its_last_value_to_age():
    signals = DomainSignals(graph())
    signals.add_parts([row(0, 2.0), row(0, 0.0, signal="seen", count=4)])
    signals.committed([committed(0, 1.0)], EPOCH)
    signals.add_parts([row(1, 0.0, signal="seen", count=9)])
    signals.committed([committed(1, 2.0)], EPOCH)
    assert signals.newest == {"level": SignalReading(1.0, 1.0), "seen": SignalReading(9.0, 2.0)}


def test_an_unobserved_commit_lies_before_the_start_of_the_next_batch():
    signals = DomainSignals(graph())
    signals.add_parts([row(0, 2.0)])
    signals.committed([committed(1, 9.0)], EPOCH)
    assert signals.newest == {"level": SignalReading(1.0, 8.0)}
