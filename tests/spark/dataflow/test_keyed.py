"""Functions with state as running queries: alternates, key tables, restarts and time-outs, against plain Python."""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow, timeout
from elastream.dataflow.key_table import KeyTable
from elastream.spark.dataflow.keyed import Wiring, keyed_frame
from elastream.spark.jvm.session import STATE_STORES
from elastream.spark.worker.composition import CompositionCodec, CompositionLog
from elastream.spark.worker.meter import Meter
from elastream.spark.worker.walk import WorkerPaths
from support.waiting import wait_until
from support.walks import in_use

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

ON_DISK = {name: value for name, value in STATE_STORES["disk"].items() if "hadoop" not in name}
"""Settings of the store on disk that a session can change. Snapshots come later than these queries end."""


@pytest.fixture(params=["memory", pytest.param("disk", marks=pytest.mark.slow)])
def stores(request, local_spark: SparkSession) -> Iterator[SparkSession]:
    """The session, whose queries keep their state in the heap or on disk."""
    before = {name: local_spark.conf.get(name, None) for name in ON_DISK}
    for name, value in ON_DISK.items() if request.param == "disk" else ():
        local_spark.conf.set(name, value)
    yield local_spark
    for name, value in before.items():
        local_spark.conf.set(name, value) if value is not None else local_spark.conf.unset(name)


@dataclass
class Query:
    """A query of one keyed operator over files that are dropped into a folder, each a batch."""

    spark: SparkSession
    flow: Dataflow
    folder: Path
    schema: str = "key string, v long"
    rows: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    batch: int = 0
    running: StreamingQuery | None = None

    def __post_init__(self) -> None:
        (self.folder / "in").mkdir()
        self.operator = next(o for o in self.flow.graph.operators if o.key)
        self.codec = CompositionCodec(self.flow.graph)
        self.log = CompositionLog(self.folder / "composition")
        self.meter = Meter(self.spark.sparkContext)

    def start(self) -> None:
        """Begin, or go on from the checkpoint."""
        frame = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).json(str(self.folder / "in"))
        carrier = WorkerPaths(log=self.log.directory, tables=self.folder / "tables")
        found = keyed_frame(frame, self.operator, Wiring("segment", self.codec, carrier, self.meter))
        writer = found.writeStream.outputMode("update").option("checkpointLocation", str(self.folder / "checkpoint"))
        self.running = writer.foreachBatch(self._take).trigger(processingTime="100 milliseconds").start()

    def _take(self, frame: Any, batch: int) -> None:
        self.rows[batch] = [tuple(row) for row in frame.collect()]

    def compose(self, composition: Composition) -> None:
        """Let the next batch run under `composition`."""
        self.log.append(self.batch, self.batch, self.codec.encode(composition))

    def drop(self, records: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
        """Process a batch of these records; the rows that it emitted."""
        number, self.batch = self.batch, self.batch + 1
        hidden = self.folder / "in" / f".{number}"
        hidden.write_text("".join(json.dumps(record) + "\n" for record in records))
        hidden.rename(self.folder / "in" / f"{number}.json")
        assert self.running is not None
        self.running.processAllAvailable()
        return self.rows[number]

    def drop_and_go_on(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Process these records; batches without records may have come between, and may follow."""
        number, self.batch = self.batch, self.batch + 1
        hidden = self.folder / "in" / f".{number}"
        hidden.write_text("".join(json.dumps(record) + "\n" for record in records))
        hidden.rename(self.folder / "in" / f"{number}.json")
        self.until(lambda: (self.folder / "checkpoint" / "sources" / "0" / str(number)).exists())

    def until(self, holds: Callable[[], Any]) -> None:
        """Wait, as long as the query lives."""

        def alive() -> Any:
            assert self.running is not None
            if (error := self.running.exception()) is not None:
                raise AssertionError(error)
            return holds()

        wait_until(alive, otherwise=lambda: self.rows)

    def stop(self) -> None:
        assert self.running is not None
        self.running.stop()


def emitted(key: tuple[Any, ...], name: str, value: Any) -> pd.DataFrame:
    return pd.DataFrame({"key": [key[0]], "name": [name], "value": [str(value)]})


def summed(key, rows, state):
    total = (state or (0,))[0] + int(rows["v"].sum())
    return emitted(key, "sum", total), (total,)


def gathered(key, rows, state):
    values = [*(state[0] if state else []), *sorted(rows["v"].tolist())]
    return emitted(key, "all", values), (values,)


RETURNS = "key string, name string, value string"


def test_own_states_survive_switches_key_tables_and_a_restart(stores, tmp_path):
    flow = Dataflow("own")
    functions = {"sum": summed, "all": gathered}
    states = {"sum": "total double", "all": "values array<long>"}
    grouped = flow.source(None).key_by("key")
    grouped.apply(functions, returns=RETURNS, state=states, name="learn", select_by="key").sink(None)
    query, chance = Query(stores, flow, tmp_path), random.Random(14)
    tables = {1: {"a": "all"}, 2: {"a": "sum", "b": "all"}}
    for version, rows in tables.items():
        in_use(tmp_path, KeyTable("own", "learn", ("key",), {(key,): name for key, name in rows.items()}), version)
    model: dict[tuple[str, str], Any] = {}
    query.start()
    for number in range(6):
        active, version = chance.choice(["sum", "all"]), chance.choice([0, 1, 2])
        query.compose(Composition(number, {"learn": active}, tables={"learn": version}))
        records = [{"key": chance.choice("abc"), "v": chance.randrange(100)} for _ in range(6)]
        expected = set()
        for key in {record["key"] for record in records}:
            name = tables.get(version, {}).get(key, active)
            rows = pd.DataFrame([record for record in records if record["key"] == key])
            result, model[key, name] = functions[name]((key,), rows, model.get((key, name)))
            if name == "sum":
                model[key, name] = (float(model[key, name][0]),)
            expected |= set(result.itertuples(index=False, name=None))
        assert set(query.drop(records)) == expected, f"batch {number}"
        if number == 3:
            query.stop()
            query.start()
    query.stop()
    counted = query.meter.drain()
    assert {row.alternate for row in counted} == {"sum", "all"}
    assert sum(row.rows_in for row in counted) == 36


def test_a_shared_state_goes_on_with_whichever_alternate_runs(local_spark, tmp_path):
    flow = Dataflow("shared")

    def doubled(key, rows, state):
        total = (state or (0,))[0] + 2 * int(rows["v"].sum())
        return emitted(key, "twice", total), None if total > 100 else (total,)

    grouped = flow.source(None).key_by("key")
    grouped.apply({"sum": summed, "twice": doubled}, returns=RETURNS, state="total long", name="add").sink(None)
    query = Query(local_spark, flow, tmp_path)
    query.start()
    found = []
    for number, (name, value) in enumerate([("sum", 1), ("twice", 10), ("sum", 5), ("twice", 50), ("sum", 7)]):
        query.compose(Composition(number, {"add": name}))
        found += query.drop([{"key": "a", "v": value}])
    query.stop()
    # A function that leaves None ends the state: the next one begins anew.
    assert [value for _, _, value in found] == ["1", "21", "26", "126", "7"]


def ended(key, state):
    return emitted(key, "end", state)


@pytest.mark.slow
def test_a_state_ends_by_the_clock_once_and_a_function_emits_it(local_spark, tmp_path):
    flow = Dataflow("clock")
    grouped = flow.source(None).key_by("key")
    grouped.apply(summed, returns=RETURNS, state="total long", name="add", timeout=timeout("1s", emits=ended)).sink(None)
    query = Query(local_spark, flow, tmp_path)
    query.start()
    query.drop_and_go_on([{"key": "a", "v": 3}, {"key": "b", "v": 4}])

    def ends() -> list[tuple[Any, ...]]:
        return [row for rows in list(query.rows.values()) for row in rows if row[1] == "end"]

    query.until(lambda: len(ends()) >= 2)
    query.drop_and_go_on([{"key": "a", "v": 5}])
    query.until(lambda: len(ends()) >= 3)
    query.stop()
    assert sorted(ends()) == [("a", "end", "(3,)"), ("a", "end", "(5,)"), ("b", "end", "(4,)")]


@pytest.mark.slow
def test_a_state_ends_by_the_time_of_records_and_late_records_are_not_lost(local_spark, tmp_path):
    flow = Dataflow("event")
    grouped = flow.source(None).key_by("key")
    ends = timeout("10s", by="at", late="2s", emits=ended)
    grouped.apply(summed, returns=RETURNS, state="total long", name="add", timeout=ends).sink(None)
    query = Query(local_spark, flow, tmp_path, schema="key string, v long, at timestamp")
    query.start()

    def at(seconds: int) -> str:
        return f"2026-11-22T00:{seconds // 60:02}:{seconds % 60:02}Z"

    query.drop_and_go_on([{"key": "a", "v": 1, "at": at(0)}, {"key": "b", "v": 2, "at": at(0)}])
    query.drop_and_go_on([{"key": "b", "v": 3, "at": at(9)}])
    query.drop_and_go_on([{"key": "c", "v": 4, "at": at(14)}])  # the watermark is then at 12 s: past the end of a
    query.until(lambda: any(row[:2] == ("a", "end") for rows in list(query.rows.values()) for row in rows))
    query.drop_and_go_on([{"key": "b", "v": 5, "at": at(1)}])  # late, and still counted
    query.drop_and_go_on([{"key": "d", "v": 6, "at": at(40)}])
    query.until(lambda: any(row[:2] == ("c", "end") for rows in list(query.rows.values()) for row in rows))
    query.stop()
    found = [row for batch in sorted(query.rows) for row in query.rows[batch]]
    assert [row for row in found if row[0] == "b"] == [
        ("b", "sum", "2"), ("b", "sum", "5"), ("b", "sum", "10"), ("b", "end", "(10,)")
    ]  # fmt: skip
    assert sorted(row for row in found if row[1] == "end") == [
        ("a", "end", "(1,)"), ("b", "end", "(10,)"), ("c", "end", "(4,)")
    ]  # fmt: skip
