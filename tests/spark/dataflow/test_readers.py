"""Readers: the version of their next batch, and its start before Spark 4.2 passes one."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.spark.dataflow.edge_log import note_composition
from elastream.spark.dataflow.edges import EdgeReader
from elastream.spark.dataflow.readers import NextBatchPlan, RangeReader, Steering
from elastream.spark.worker.composition import BatchComposition, CompositionRequest, newest_composition, write_request
from support.property_examples import examples

SCHEMA = pa.schema([("n", pa.int64())])


class Query:
    """A query that reads several edges and a source, without Spark: its offset log, and what was written to its edges."""

    def __init__(self, folder: Path, edges: int) -> None:
        self.folder = folder
        (folder / "checkpoint" / "offsets").mkdir(parents=True)
        self.records = {f"e{number}": folder / f"e{number}" for number in range(edges)}
        self.written: dict[str, list[int]] = {name: [] for name in self.records}
        self.newest = dict.fromkeys(self.records, 0)
        self.batches = dict.fromkeys(self.records, 0)
        self.readers = {name: self.reader(name) for name in self.records}
        self.source = NextBatchPlan(self.steering("source"))
        self.offsets: dict[str, dict[str, Any]] = {name: each.initialOffset() for name, each in self.readers.items()}
        self.offsets["source"] = {"n": 0, "version": 0, "code": 0}
        self.planned = 0

    def steering(self, name: str) -> Steering:
        checkpoint = self.folder / "checkpoint"
        found = Steering(name, self.folder / "wanted.json", 2, True, checkpoint, self.records, BatchComposition(0, 0))
        return Steering.of(found.option())

    def reader(self, name: str) -> EdgeReader:
        return EdgeReader(self.steering(name), self.records[name], 1, 1e6, SCHEMA, self.folder / "commits")

    def write(self, edge: str, rows: int, further: int) -> None:
        """A batch of the query upstream, `further` versions on."""
        self.newest[edge] += further
        place = self.records[edge] / f"batch={self.batches[edge]}"
        place.mkdir(parents=True)
        if rows:
            pq.write_table(pa.table({"n": pa.array([0] * rows, pa.int64())}), place / "part-0.parquet")
        note_composition(place, BatchComposition(self.newest[edge], 10 * self.newest[edge]))
        self.batches[edge] += 1
        self.written[edge] += [self.newest[edge]] * rows

    def plan(self, order: list[str], meanwhile: Any) -> bool:
        """Plan a batch as Spark does, each reader in its turn, while others write; whether there was one."""
        found = dict(self.offsets)
        for name in order:
            if name != "source":
                found[name] = self.readers[name].latestOffset(self.offsets[name])
            elif meanwhile():  # records are due
                self.source.look()
                n = self.offsets["source"]["n"] + 1
                found["source"] = {"n": n, "version": self.source.next.version, "code": self.source.next.code}
            meanwhile()
        if found == self.offsets:
            return False
        (self.folder / "checkpoint" / "offsets" / str(self.planned)).write_text(
            "\n".join(["v1", "{}", *(json.dumps(offset) for offset in found.values())])
        )
        ran = newest_composition(found.values())
        assert ran is not None
        assert ran.code == 10 * ran.version
        for name in self.records:
            taken = self.written[name][self.offsets[name]["n"] : found[name]["n"]]
            assert set(taken) <= {ran.version}, f"batch {self.planned} runs under {ran}, its records entered under {taken}"
            self.readers[name].commit(self.offsets[name])
        self.offsets, self.planned = found, self.planned + 1
        return True


@settings(max_examples=examples(60))
@given(edges=st.integers(1, 3), data=st.data())
def test_no_batch_mixes_versions_and_all_records_are_read(tmp_path_factory, edges, data):
    query = Query(tmp_path_factory.mktemp("query"), edges)
    names = [*query.records, "source"]

    def meanwhile() -> bool:
        if data.draw(st.booleans()):
            edge = data.draw(st.sampled_from(sorted(query.records)))
            query.write(edge, data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1)))
            return True
        return False

    for _ in range(data.draw(st.integers(1, 5))):
        meanwhile()
        query.plan(data.draw(st.permutations(names)), meanwhile)
    last = max(query.newest.values()) + 1
    for edge in query.records:  # every upstream query comes to the last version, with records or without
        query.write(edge, 0, last - query.newest[edge])
    while query.plan(list(query.records), lambda: False):
        pass
    for edge, offset in query.offsets.items():
        assert offset["n"] == len(query.written.get(edge, range(offset["n"])))
    assert newest_composition(query.offsets.values()) == BatchComposition(last, 10 * last)


def test_a_reader_stops_at_the_next_version_and_announces_empty_ones(tmp_path):
    query = Query(tmp_path, 1)
    write_request(tmp_path / "wanted.json", CompositionRequest(9, 90, {"e0": 5}))
    for rows, further in ((3, 0), (1, 0), (2, 1), (0, 1), (1, 1)):
        query.write("e0", rows, further)
    seen = []
    while query.plan(["e0"], lambda: False):
        offset = query.offsets["e0"]
        seen.append((offset["n"], offset["version"], offset["partitions"]))
    assert seen == [(4, 0, 5), (6, 1, 5), (7, 3, 5)]  # version 2 is passed at once: nothing of it is left to come
    query.write("e0", 0, 1)
    assert query.plan(["e0"], lambda: False)
    assert (query.offsets["e0"]["n"], query.offsets["e0"]["version"]) == (7, 4)
    assert not query.plan(["e0"], lambda: False)


def test_an_edge_ahead_waits_but_not_for_idle_ones(tmp_path):
    query = Query(tmp_path, 2)
    query.write("e0", 2, 1)
    assert not query.plan(["e0", "e1"], lambda: False)  # e1 may still bring records of version 0
    query.write("e1", 1, 0)
    assert query.plan(["e0", "e1"], lambda: False)
    assert [query.offsets[name]["n"] for name in ("e0", "e1")] == [0, 1]
    query.write("e1", 0, 1)
    assert query.plan(["e0", "e1"], lambda: False)
    assert [query.offsets[name]["n"] for name in ("e0", "e1")] == [2, 1]


class Queue(RangeReader):
    """A queue that has `there` records, of which a batch takes two at most."""

    def __init__(self, folder, there=0, kept=True):
        super().__init__(Steering("q", folder / "wanted.json"), 1.0, pa.schema([]), folder / "commits" if kept else None)
        self.there = there

    def initialOffset(self):
        return {"n": 0}

    def plan(self, start):
        return {"n": min(self.there, start["n"] + 2)} if self.there > start["n"] else dict(start)

    def due(self):
        return self.there

    def partitions(self, start, end):
        return []

    def read(self, partition):
        return iter(())


def test_from_a_given_offset_a_batch_is_planned_as_it_is(tmp_path):
    assert Queue(tmp_path, 3).latestOffset({"n": 0}, "no limit") == {"n": 2}
    assert not list(tmp_path.iterdir())


def test_without_one_it_goes_on_after_the_last_and_says_what_is_there(tmp_path):
    queue = Queue(tmp_path)
    assert [queue.latestOffset(), queue.latestOffset()] == [{"n": 0}] * 2  # no batch
    queue.there = 3
    assert queue.latestOffset() == {"n": 2, "due": 3}
    assert queue.latestOffset() == {"n": 3, "due": 3}
    assert queue.latestOffset() == {"n": 3, "due": 3}  # no batch


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans())))
def test_batches_follow_each_other_whatever_of_them_spark_has_logged(tmp_path_factory, steps):
    """Spark plans a batch from what it has logged to what it is given, which it may lose before it has logged it."""
    folder = tmp_path_factory.mktemp("queue")
    queue, logged = Queue(folder), 0
    for more, lost, restarted in steps:
        queue.there += more
        end = queue.latestOffset()["n"]
        assert logged <= end <= queue.there
        logged = logged if lost else end
        queue = Queue(folder, queue.there) if restarted else queue
    for _ in range(queue.there):
        logged = queue.latestOffset()["n"]
    assert logged == queue.there
