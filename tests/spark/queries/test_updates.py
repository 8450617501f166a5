"""Update latency and mixed records, from what batches of two queries ran under and took from one another."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastream.core.composition import Update, update_figures
from elastream.core.metrics import Metric
from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.stages import lay_out
from elastream.loads import constant
from elastream.spark.dataflow.edge_log import EdgeLog
from elastream.spark.queries.segments import RunningSegment
from elastream.spark.queries.switching import UpdateTracker
from elastream.spark.telemetry.batches import Batch, SourceProgress
from elastream.spark.worker.composition import newest_composition


class RingMemory:
    """source -> first -> edge -> last -> edge -> end, each with two alternates and a query; batches as the test says."""

    def __init__(self, folder: Path) -> None:
        flow = Dataflow("three")
        stream = flow.source(None, load=constant(1))
        for name in ("first", "last", "end"):
            stream = stream.map({"a": len, "b": len}, returns="n long", name=name).durable()
        stream.sink(None)
        self.layout = lay_out(flow.graph)
        self.folders = {edge: folder / f"{number}" for number, s in enumerate(self.layout.segments) for edge in s.inputs}
        queues = {edge: EdgeLog(records) for edge, records in self.folders.items()}
        running = []
        for segment in self.layout.segments:
            reads = segment.inputs or ("source",)
            fields = dict.fromkeys(RunningSegment.__dataclass_fields__)
            running.append(RunningSegment(**{**fields, "segment": segment, "reads": reads, "edges": {}}))  # type: ignore[arg-type]
        self.watch = UpdateTracker(
            self.layout, running, queues, lambda batch: newest_composition([s.end for s in batch.sources])
        )
        self.counts = [0] * len(running)
        self.taken = [0] * len(running)
        self.now = Composition.default(flow.graph)

    def request(self, at: float, **alternates: str) -> None:
        after = Composition(self.now.version + 1, {**self.now.alternates, **alternates})
        self.watch.requested(at, self.now, after)
        self.now = after

    def batch(self, number: int, version: int, rows: int, end: float, out: int | None = None) -> Batch:
        """A batch of query `number` that took `rows` records, and wrote as many, or `out`, to the edge behind it."""
        first, self.taken[number] = self.taken[number], self.taken[number] + rows
        found = Batch(
            self.layout.segments[number].name,
            self.counts[number],
            end - 1.0,
            1.0,
            rows,
            sources=(SourceProgress({"n": first}, {"n": self.taken[number], "version": version, "code": 0}, rows),),
        )
        for edge in self.layout.segments[number].outputs:
            place = self.folders[edge] / f"batch={self.counts[number]}"
            place.mkdir(parents=True)
            pq.write_table(pa.table({"n": pa.array([0] * (rows if out is None else out))}), place / "part-0.parquet")
        self.counts[number] += 1
        return found

    @property
    def updates(self) -> tuple[Update, ...]:
        return self.watch.updates()


@pytest.fixture
def watched(tmp_path: Path) -> RingMemory:
    return RingMemory(tmp_path)


def test_an_update_is_in_force_with_the_last_query_that_it_changes(watched):
    watched.watch.add_batches([watched.batch(0, 0, 5, 1.0)])
    watched.request(1.5, first="b", last="b")
    watched.watch.add_batches([watched.batch(0, 0, 5, 2.0), watched.batch(0, 1, 5, 3.0)])
    (update,) = watched.updates
    assert (update.until, update.latency) == (2.0, pytest.approx(float("nan"), nan_ok=True))
    watched.watch.add_batches([watched.batch(1, 0, 10, 4.0), watched.batch(1, 1, 5, 5.0), watched.batch(2, 0, 10, 6.0)])
    (update,) = watched.updates
    assert (update.in_force, update.until, update.latency) == (5.0, 4.0, 2.5)
    assert watched.watch.updates(epoch=1.0)[0].in_force == 4.0
    assert watched.watch.measured() == {Metric.UPDATE_LATENCY: 2.5, Metric.MIXED_RECORDS: 0.0}


def test_records_that_meet_the_old_then_the_new_version_are_mixed_once(watched):
    watched.watch.add_batches([watched.batch(0, 0, 6, 1.0)])
    watched.request(1.5, first="b", last="b", end="b")
    watched.watch.add_batches([watched.batch(0, 1, 4, 2.0)])
    watched.watch.add_batches([watched.batch(1, 1, 10, 3.0)])  # six of them entered under the old version
    assert watched.updates[0].mixed == 6
    watched.watch.add_batches([watched.batch(2, 1, 10, 4.0)])
    assert watched.updates[0].mixed == 6


def test_records_that_meet_the_new_version_first_are_mixed_too(watched):
    watched.request(0.0, first="b", end="b")
    watched.watch.add_batches([watched.batch(0, 1, 8, 1.0, out=4)])
    watched.watch.add_batches([watched.batch(1, 1, 4, 2.0, out=12)])  # its operator does not change
    assert watched.updates[0].mixed == 0
    watched.watch.add_batches([watched.batch(2, 0, 12, 3.0)])
    assert watched.updates[0].mixed == 12


def test_one_changed_query_mixes_nothing_and_neither_does_a_wave(watched):
    watched.request(0.0, last="b")
    watched.watch.add_batches([watched.batch(0, 0, 5, 1.0), watched.batch(1, 1, 5, 2.0), watched.batch(2, 0, 5, 3.0)])
    watched.request(3.5, first="a", last="a")
    watched.watch.add_batches([watched.batch(0, 2, 5, 4.0), watched.batch(1, 2, 5, 5.0), watched.batch(2, 2, 5, 6.0)])
    assert [update.mixed for update in watched.updates] == [0, 0]


def test_what_a_query_reports_late_is_waited_for(watched):
    early = watched.batch(0, 0, 5, 1.0)
    watched.request(1.5, first="b", last="b")
    late = watched.batch(1, 1, 5, 2.0)
    watched.watch.add_batches([late])
    assert watched.updates[0].mixed == 0
    watched.watch.add_batches([early])
    assert watched.updates[0].mixed == 5


def test_a_parallelism_is_no_update_and_figures_sum_up_those_there_were():
    updates = [Update(1, 0.0, 2.0, 1.0, mixed=3.0), Update(2, 5.0, 9.0), Update(3, 6.0)]
    found = update_figures(updates)
    assert (found["updates"], found["update latency"], found["longest update"], found["mixed records"]) == (
        3,
        1.0,
        1.0,
        3.0,
    )
    assert update_figures(updates[2:]) == {"updates": 1, "mixed records": 0.0}
    assert update_figures([]) == {}
