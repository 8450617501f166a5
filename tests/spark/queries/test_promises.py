"""Telemetry of a source without a load keeps what the table of metrics promises, however its batches fall in time."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from test_telemetry import STARTED, a_running

from conformance.suite import PlantCase, missing
from elastream.core.metrics import Metric
from elastream.core.observation import Context, Observation
from elastream.core.promises import PlantKind
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect
from elastream.dataflow.stages import lay_out
from elastream.spark.queries.compiled_frames import Telemetry
from elastream.spark.telemetry.batches import Batch, SourceProgress
from elastream.spark.worker.meter import MeterRow
from support.property_examples import examples

CASE = PlantCase("compiled", lambda: None, PlantKind.DATAFLOW)
RATE = 100.0
"""Records/s that come to the source, all the time."""


@dataclass(frozen=True)
class Own:
    """A source of a user's own."""

    schema: str = "value string"

    def read(self, spark):
        raise AssertionError("no query is started")


def told(number, start, seconds, before):
    """A batch that took what had come since the one before it was planned, and what the meter says of it."""
    since = before.start if before else start - 1.0
    rows = max(1, round(RATE * (start - since)))
    taken = SourceProgress({"page": [number]}, {"page": [number + 1]}, rows, waiting=since)
    batch = Batch("source", number, start, seconds, rows, before.end if before else start, (taken,))
    at = start + seconds / 2
    names = ("source", "split")
    return batch, [MeterRow("source", number, name, 0, rows, rows, seconds / 4, start, at, 2) for name in names]


def planned(checkpoint, batch, ended):
    """The checkpoint's entries of a batch."""
    for folder, there in (("offsets", True), ("commits", ended)):
        if there:
            entry = checkpoint / folder / str(batch.id)
            entry.parent.mkdir(exist_ok=True)
            entry.touch()
            os.utime(entry, (batch.start, batch.start))


@settings(max_examples=examples(100), deadline=None)
@given(
    interval=st.sampled_from((0.4, 2.0, 12.0)),
    lengths=st.lists(st.floats(0.05, 2.5), min_size=4, max_size=12),
    used=st.floats(0.0, 2.0),
)
def test_from_the_second_batch_on_every_promised_metric_is_known(interval, lengths, used):
    flow = Dataflow("f")
    lines = flow.source(Own())
    lines.flat_map(str.split, returns="word string", name="split").key_by("word").count().sink(collect("out"))
    layout, rows, batches = lay_out(flow.graph), [], []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, seen = Path(folder), []
        running = a_running(layout.segments[0], checkpoint, reads=("source",), keyed=("count",), interval=interval)
        made = Telemetry(layout, [running], {"source": seen}, 2.0)
        for number, length in enumerate(lengths):  # in intervals
            before = batches[-1] if batches else None
            start = STARTED if before is None else max(before.start + interval, before.end)
            batch, rows = told(number, start, length * interval, before)
            batches.append(batch)
            planned(checkpoint, batch, ended=False)
            for part in (0.3, 0.6, 0.9):
                look_at(made, layout, [], start + part * batch.seconds, used, whole=number > 1)
            planned(checkpoint, batch, ended=True)
            seen.append(batch)
            made.metered(rows)
            fresh = [batch]
            for waited in (0.01, 0.5, 0.99):
                left = max(0.0, start + interval - batch.end)
                look_at(made, layout, fresh, batch.end + waited * left, used, whole=number > 0)
                fresh = []


def look_at(made, layout, fresh, now, used, whole):
    """Observe at epoch second `now`; whole: with two batches committed, so that everything is to be known."""
    made.add_batches(fresh, now)
    operators = made.operators(now, {"count": 2.0, "sink": 2.0}, 2.0, used)
    application = made.application(now, cost=1.0)
    if whole:
        observation = Observation(now - STARTED, Context(layout, {}, 2.0), operators, application)
        assert missing(observation, CASE) == []
        assert 0.8 * RATE <= operators.value("source", Metric.ARRIVAL_RATE) <= 1.25 * RATE
