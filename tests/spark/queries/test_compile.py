"""Dataflows as running queries: results against plain Python, switching, replays, several sinks, durable edges."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect, files, parquet, records
from elastream.dataflow.stages import lay_out
from elastream.errors import DataflowError, EnvironmentProblem, InputError
from elastream.loads import constant
from elastream.recording.dead_letters import letters
from elastream.recording.directory import RunDirectory
from elastream.spark.dataflow.sinks import collected, latest
from elastream.spark.queries.compiler import start_queries
from elastream.spark.queries.segments import RunningSegment
from elastream.spark.queries.switching import switch
from elastream.spark.telemetry.left_out import LeftOutCounts
from elastream.spark.worker.composition import (
    BatchComposition,
    CompositionCodec,
    code_in_offsets,
    composition_in_offsets,
    latest_batch,
)
from elastream.spark.worker.meter import MeterRow
from elastream.spark.worker.runner import explain_failure
from support.waiting import wait_until

pytestmark = pytest.mark.spark

ROWS = [{"value": "the cat sat on the mat"}, {"value": "a dog and a cat"}, {"value": ""}]


@pytest.fixture
def spark(local_spark: SparkSession) -> SparkSession:
    return local_spark


@dataclass
class Run:
    """A dataflow under way."""

    spark: SparkSession
    flow: Dataflow
    directory: RunDirectory
    running: tuple[RunningSegment, ...] = ()

    @classmethod
    def start(
        cls, spark: SparkSession, flow: Dataflow, folder: Path, composition: Composition | None = None, width: int = 2
    ) -> "Run":
        run = cls(spark, flow, RunDirectory.create(folder / "runs", flow.name))
        run.resume(composition or Composition.default(flow.graph, {"source": width}))
        return run

    def resume(self, composition: Composition) -> None:
        self.running = start_queries(
            self.spark, lay_out(self.flow.graph), self.directory, composition, state_partitions=2, batch_seconds=60
        )

    def switch(self, composition: Composition) -> None:
        switch(lay_out(self.flow.graph), self.running, composition)

    def until(self, done: Callable[[], bool]) -> None:
        def done_or_failed() -> bool:
            for each in self.running:
                if (error := each.query.exception()) is not None:
                    raise AssertionError(explain_failure(error)) from error
            return done()

        wait_until(done_or_failed, otherwise=lambda: [each.query.lastProgress for each in self.running])

    def taken(self) -> int:
        """Records of the first query's source in committed batches."""
        progress = self.running[0].query.lastProgress
        offset = progress["sources"][0]["endOffset"] if progress else None
        return int(json.loads(offset)["n"]) if offset else 0

    def finish(self, total: int) -> list[MeterRow]:
        self.until(lambda: self.taken() == total)
        for each in self.running:
            each.query.processAllAvailable()
        return self.stop()

    def stop(self) -> list[MeterRow]:
        for each in self.running:
            each.query.stop()
        return self.running[0].meter.drain()


def lines(flow: Dataflow, total: int, rate: int | None = None) -> Any:
    """`total` lines, by default all due at once."""
    per_second = rate or total * 1000
    return flow.source(records(ROWS, "value string"), load=constant(per_second, total / per_second))


def split(line: str) -> list[str]:
    return line.split()


def expected_words(total: int) -> Counter[str]:
    return Counter(word for n in range(total) for word in ROWS[n % len(ROWS)]["value"].split())


def test_failing_records_are_left_out_once_even_if_the_batch_is_replayed(spark, tmp_path):
    def split_cats(line: str) -> list[str]:
        if "dog" in line:
            raise ValueError("no dogs")
        return line.split()

    def counted(key: tuple[str], rows: pd.DataFrame, state: tuple[int] | None) -> tuple[pd.DataFrame, tuple[int]]:
        if key == ("mat",):
            raise KeyError("mat")
        total = (state or (0,))[0] + len(rows)
        return pd.DataFrame({"word": [key[0]], "n": [total]}), (total,)

    flow = Dataflow("words")
    words = lines(flow, 300).flat_map(split_cats, returns="word string", name="split", on_error="dead_letter")
    counts = words.key_by("word").apply(counted, returns="word string, n long", state="n long", on_error="dead_letter")

    def no_the(row: dict[str, Any]) -> dict[str, Any]:
        assert row["word"] != "the"
        return row

    counts = counts.map(no_the, returns="word string, n long", on_error="skip")
    counts.sink(parquet(tmp_path / "out"))
    run = Run.start(spark, flow, tmp_path)
    run.finish(300)
    checkpoint = run.directory.checkpoint("source")
    (checkpoint / "commits" / str(latest_batch(checkpoint, "commits"))).unlink()  # as a driver that is killed before it
    run.resume(Composition.default(flow.graph, {"source": 2}))
    run.until(lambda: run.running[0].query.lastProgress is not None)
    run.finish(300)
    expected = expected_words(300)
    for word in "a", "dog", "and":
        expected -= Counter({word: 100 * ROWS[1]["value"].split().count(word)})
    expected -= Counter({"cat": 100, "mat": 100, "the": 200})
    assert dict(latest(tmp_path / "out").itertuples(index=False)) == expected
    layout = lay_out(flow.graph)
    for _ in range(2):
        left_out = LeftOutCounts(layout, run.directory).counts
        batches = latest_batch(run.directory.checkpoint("source"), "commits") + 1
        assert left_out == {"split": 100, "counted": 100, "no_the": pytest.approx(batches, abs=batches - 1)}
    found = Counter((each["operator"], each["error"], str(each["record"])) for each in letters(run.directory.dead_letters))
    assert found == {
        ("split", "ValueError: no dogs", "a dog and a cat"): 100,
        ("counted", "KeyError: 'mat'", "{'word': 'mat'}"): 100,
    }
    assert not [*run.directory.left_out("source").iterdir()]


def numbered(flow: Dataflow, total: int, rate: int | None = None) -> Any:
    per_second = rate or total * 1000
    rows = [{"n": n} for n in range(1000)]
    return flow.source(records(rows, "n long"), load=constant(per_second, total / per_second))


def double_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [2 * n for n in batch.column("n").to_pylist()]})


def odd_rows(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["n"] % 4 == 0]


def test_every_form_in_one_query_gives_what_plain_python_gives(spark, tmp_path):
    flow = Dataflow("forms")
    stream = numbered(flow, 700).select({"n": "n + 1"}, name="early")
    stream = stream.map_arrow(double_batch, returns="n long").map_pandas(odd_rows, returns="n long")
    stream = stream.map(lambda n: {"n": n, "text": str(n)}, returns="n long, text string", name="pairs")
    stream = stream.filter(lambda record: record["n"] > 100, name="large")
    stream = stream.flat_map(lambda record: [record, record], returns="n long, text string", name="twice")
    stream.select({"text": "concat(text, '!')", "half": "n div 2"}, name="late").sink(collect("forms"))
    Run.start(spark, flow, tmp_path).finish(700)
    numbers = [2 * (n % 1000 + 1) for n in range(700)]
    kept = [n for n in numbers if n % 4 == 0 and n > 100 for _ in range(2)]
    found = collected("forms").to_pylist()
    assert Counter((row["text"], row["half"]) for row in found) == Counter((f"{n}!", n // 2) for n in kept)


def test_a_fresh_run_does_not_append_to_the_results_of_an_earlier_one(spark, tmp_path):
    (tmp_path / "out" / "_spark_metadata").mkdir(parents=True)
    flow = Dataflow("append")
    numbered(flow, 10).map(lambda n: n, returns="n long", name="same").sink(parquet(tmp_path / "out"))
    with pytest.raises(EnvironmentProblem, match="out holds the results of an earlier run"):
        Run.start(spark, flow, tmp_path)


def switching_flow(name: str, fail_when: Path) -> Dataflow:
    """Numbers stamped with the alternate that took them; fails in the batch in which the file appears."""

    def stamped(tag: str) -> Callable[[int], dict[str, Any]]:
        def stamp(n: int) -> dict[str, Any]:
            if fail_when.exists():
                raise ValueError("told to fail")
            return {"n": n, "tag": tag}

        return stamp

    flow = Dataflow(name)
    stream = numbered(flow, 100_000, rate=200)
    named = stream.map({"a": stamped("a"), "b": stamped("b")}, returns="n long, tag string", name="stamp")
    checked = named.filter(lambda record: record["tag"] in "ab", name="second")
    checked.sink(collect(name))
    return flow


def seen_under(segment: RunningSegment, code: int, meter: list[MeterRow]) -> Callable[[], bool]:
    """Whether a batch has run under `code`; what the meter said goes to `meter`."""

    def seen() -> bool:
        fresh = segment.meter.drain()
        meter.extend(fresh)
        return any(row.code == code for row in fresh)

    return seen


def codes_by_batch(meter: list[MeterRow]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for row in meter:
        found.setdefault(row.batch, set()).add(row.code)
    return found


def test_a_switch_mixes_no_batch_and_a_replay_keeps_its_composition(spark, tmp_path):
    trigger = tmp_path / "fail"
    flow = switching_flow("switching", trigger)
    graph = flow.graph
    codec = CompositionCodec(graph)
    a, b = (Composition(v, {"stamp": tag}, parallelism={"source": 2}) for v, tag in enumerate("ab"))
    run = Run.start(spark, flow, tmp_path, a)
    (segment,) = run.running
    meter: list[MeterRow] = []
    for version in range(1, 6):
        wanted = Composition(version, {"stamp": "ab"[version % 2]}, parallelism={"source": 1 + version % 2})
        run.switch(wanted)
        run.until(seen_under(segment, codec.encode(wanted), meter))
    trigger.touch()
    wait_until(lambda: not segment.query.isActive)
    failed = latest_batch(segment.checkpoint)
    code = code_in_offsets(segment.checkpoint, failed)
    assert code == codec.encode(b)
    told = explain_failure(segment.query.exception())
    assert told.startswith("operator 'stamp' (alternate 'b') failed on the record")
    assert told.endswith("ValueError: told to fail")
    trigger.unlink()
    run.resume(a)  # the control plane changed its mind meanwhile
    (segment,) = run.running
    run.until(lambda: (segment.query.lastProgress or {"batchId": -1})["batchId"] > failed)
    meter += run.stop()
    by_batch = codes_by_batch(meter)
    assert by_batch[failed] == {codec.encode(b)}
    assert by_batch[failed + 1] == {codec.encode(a)}
    assert all(len(codes) == 1 for codes in by_batch.values())
    assert len({code for codes in by_batch.values() for code in codes}) == 2


@pytest.mark.slow
def test_a_foreign_source_switches_by_the_composition_log(spark, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()

    def drop(number: int) -> None:
        pq.write_table(pa.table({"n": [number] * 10}), folder / f".{number}")
        (folder / f".{number}").rename(folder / f"{number}.parquet")

    flow = Dataflow("foreign")
    stamp = {tag: (lambda n, tag=tag: f"{n}{tag}") for tag in "ab"}
    flow.source(files(folder, "n long")).map(stamp, returns="text string", name="stamp").sink(collect("foreign"))
    drop(0)
    run = Run.start(spark, flow, tmp_path, Composition(0, {"stamp": "b"}))
    (segment,) = run.running
    assert not segment.own_source
    segment.query.processAllAvailable()
    run.switch(Composition(1, {"stamp": "a"}))
    for number in range(1, 4):
        drop(number)
        segment.query.processAllAvailable()
    meter = run.stop()
    assert [codes_by_batch(meter)[batch] for batch in range(4)] == [{1}, {1}, {0}, {0}]
    assert Counter(collected("foreign").column("text").to_pylist()) == Counter(dict.fromkeys(("0b", "1b", "2a", "3a"), 10))


@pytest.mark.slow
def test_several_sinks_each_get_their_part(spark, tmp_path):
    flow = Dataflow("sinks")
    stream = numbered(flow, 700).map(lambda n: n + 1, returns="n long", name="add")
    stream.filter(lambda n: n % 2 == 0, name="even").sink(parquet(tmp_path / "even"), name="evens")
    texts = stream.map(lambda n: {"n": n, "text": str(n)}, returns="n long, text string", name="text")
    texts.sink(collect("texts"), name="texts")
    meter = Run.start(spark, flow, tmp_path).finish(700)
    numbers = [n % 1000 + 1 for n in range(700)]
    assert Counter(collected("texts").column("text").to_pylist()) == Counter(map(str, numbers))
    evens = spark.read.parquet(str(tmp_path / "even")).collect()
    assert Counter(row.n for row in evens) == Counter(n for n in numbers if n % 2 == 0)
    assert sum(row.rows_in for row in meter if row.operator == "add") == 700  # the walk ran once, not once a sink


def batches_of(run: Run, segment: int) -> Iterator[tuple[int, Any]]:
    """(batch, offset) of a segment's one inlet, in the order of its offset log."""
    folder = run.running[segment].checkpoint / "offsets"
    for batch in sorted(int(file.name) for file in folder.iterdir() if file.name.isdigit()):
        yield batch, json.loads((folder / str(batch)).read_text().splitlines()[-1])


@pytest.mark.slow
def test_a_stage_behind_a_durable_edge_is_as_wide_as_its_composition(spark, tmp_path):
    flow = Dataflow("wide")
    lines(flow, 1400, 140).durable().map(str.upper, returns="value string", name="shout").sink(collect("wide"))
    start = Composition.default(flow.graph, {"source": 2, "shout": 1})
    run = Run.start(spark, flow, tmp_path, start)
    behind = run.running[1].query
    run.until(lambda: any(each["numInputRows"] >= 3 for each in behind.recentProgress))  # a batch that needs three tasks
    run.switch(Composition(1, start.alternates, start.choices, {"source": 2, "shout": 3}))
    meter = run.finish(1400)
    assert collected("wide").num_rows == 1400
    widths = {batch: (offset["partitions"], offset["n"]) for batch, offset in batches_of(run, 1)}
    assert {width for width, _ in widths.values()} == {1, 3}
    tasks = {row.batch: row.tasks for row in meter if row.operator == "shout" and row.rows_in >= 3}
    assert all(tasks[batch] == widths[batch][0] for batch in tasks)
    assert {1, 3} == set(tasks.values())


def test_a_branch_behind_a_durable_edge_runs_no_batch_until_chosen(spark, tmp_path):
    flow = Dataflow("asleep")
    ways = numbered(flow, 100_000, rate=200).map(lambda n: n, returns="n long", name="pass").choice("peak")
    ways.nothing(name="asleep")
    ways.durable().map(lambda n: n + 1, returns="n long", name="heavy").sink(collect("asleep"))
    run = Run.start(spark, flow, tmp_path)
    first, second = run.running
    written = run.directory.edge("pass", "heavy")

    def batches(more: int) -> None:
        until = latest_batch(first.checkpoint) + more
        run.until(lambda: latest_batch(first.checkpoint, "commits") >= until)

    batches(4)
    assert latest_batch(second.checkpoint) == 0  # the first batch of a query has no records and starts its workers
    assert not list(written.rglob("*.parquet"))
    awake = Composition(1, {"pass": "pass", "heavy": "heavy"}, {"peak": "heavy"}, {"source": 2})
    run.switch(awake)
    run.until(lambda: latest_batch(second.checkpoint, "commits") > 0)
    run.switch(replace(awake, version=2, choices={"peak": "asleep"}))
    batches(4)
    second.query.processAllAvailable()
    asleep = latest_batch(second.checkpoint)
    batches(3)
    assert latest_batch(second.checkpoint) == asleep
    run.stop()
    passed = 0
    offsets = [(batch, offset["n"]) for batch, offset in batches_of(run, 0)]
    for (_, before), (batch, n) in zip([(-1, 0), *offsets], offsets, strict=False):
        passed += (n - before) * (composition_in_offsets(first.checkpoint, batch) == BatchComposition(1, 1))
    assert collected("asleep").num_rows == passed > 0


@pytest.mark.slow
def test_several_durable_edges_meet_in_one_query_and_switch_together(spark, tmp_path):
    flow = Dataflow("several")
    odd, even = lines(flow, 700, 140).deal(), flow.source(records(ROWS, "value string"), load=constant(100, 5), name="more")
    left = odd.map(str.lower, returns="value string", name="left")
    right = odd.map(str.upper, returns="value string", name="right")
    both = left.durable().merge(right.durable(), even.durable())
    both.map({"same": str.strip, "none": lambda _: "none"}, returns="value string", name="last").sink(collect("several"))
    run = Run.start(spark, flow, tmp_path)
    assert not any(each.query.status["message"].startswith("Initializing") for each in run.running)
    run.until(lambda: (run.running[-1].query.lastProgress or {}).get("numInputRows", 0) > 0)
    before = Composition.default(flow.graph)
    run.switch(Composition(1, {**before.alternates, "last": "none"}, before.choices, {"source": 2}))
    more = next(each for each in run.running if each.segment.name == "more")
    run.until(lambda: more.query.lastProgress is not None and '"n": 500' in str(more.query.lastProgress["sources"][0]))
    run.finish(700)
    texts = Counter(collected("several").column("value").to_pylist())
    assert texts.total() == 1200
    assert 0 < texts["none"] < 1200


@pytest.mark.slow
def test_a_durable_edge_beside_a_sink_carries_each_record_once(spark, tmp_path):
    flow = Dataflow("beside")
    words = lines(flow, 700).flat_map(split, returns="word string")
    words.sink(collect("beside"), name="archive")
    words.durable().key_by("word").count().sink(parquet(tmp_path / "out"), name="table")
    Run.start(spark, flow, tmp_path).finish(700)
    counts = latest(tmp_path / "out")
    assert dict(zip(counts["word"], counts["count"], strict=True)) == expected_words(700)
    assert Counter(collected("beside").column("word").to_pylist()) == expected_words(700)


@pytest.mark.slow
def test_streams_merged_before_a_key_are_counted_together(spark, tmp_path):
    flow = Dataflow("merged")
    left = flow.source(records([{"n": 1}], "n long"), load=constant(1_000_000, 0.0002), name="left")
    right = flow.source(records([{"n": 1}, {"n": 2}], "n long"), load=constant(1_000_000, 0.0003), name="right")
    left.merge(right).key_by("n").count().sink(parquet(tmp_path / "out"))
    run = Run.start(spark, flow, tmp_path)
    run.until(lambda: sum(p["numInputRows"] for p in run.running[0].query.recentProgress) == 500)
    run.stop()
    counts = latest(tmp_path / "out")
    assert dict(zip(counts["n"], counts["count"], strict=True)) == {1: 350, 2: 150}


REFUSED: dict[str, tuple[Callable[[Dataflow], object], str]] = {
    "a keyed operator and a sink beside it": (
        lambda flow: [
            (stream := numbered(flow, 1)).sink(collect("x"), name="raw"),
            stream.key_by("n").count().sink(collect("y"), name="table"),
        ],
        "one query would feed 'raw' besides the keyed 'count': put a durable edge before 'count'",
    ),
    "an aggregate of a wrong type": (
        lambda flow: numbered(flow, 1).key_by("n").aggregate({"x": "sum(array(n))"}).sink(collect("x")),
        "the aggregates of operator 'aggregate' are invalid: .*sum",
    ),
    "a column expression of a wrong type": (
        lambda flow: numbered(flow, 1).select({"x": "n + array(n)"}).sink(collect("x")),
        "the column expressions of 'select' are invalid: .*DATATYPE_MISMATCH",
    ),
    "streams whose columns turn out to differ": (
        lambda flow: [
            (stream := numbered(flow, 1)),
            stream.durable()
            .select({"n": "cast(n as string)"}, name="text")
            .merge(stream.durable().map(abs, returns="n long", name="abs"))
            .filter(bool)
            .sink(collect("x")),
        ],
        "merges streams with different columns: .* has n",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_flow_that_does_not_compile_is_refused_and_leaves_no_query(spark, tmp_path, case):
    write, sentence = REFUSED[case]
    flow = Dataflow("wrong")
    write(flow)
    with pytest.raises(DataflowError, match=sentence) as caught:
        Run.start(spark, flow, tmp_path)
    assert "\n" not in str(caught.value)
    assert spark.streams.active == []


class Words:
    """A source of the user's own: a folder of parquet files, `how` it is read."""

    schema = "word string"

    def __init__(self, folder: Path, how: str = "as it should be") -> None:
        self.folder, self.how = folder, how

    def read(self, spark: SparkSession) -> Any:
        match self.how:
            case "failing":
                raise OSError("no such place")
            case "at rest":
                return spark.read.parquet(str(self.folder))
            case "another column":
                return spark.readStream.schema("other string").parquet(str(self.folder))
        return spark.readStream.schema("more long, word string").parquet(str(self.folder))


class Kept:
    """A sink of the user's own: rows by the number of their batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}

    def write(self, rows: Any, batch: int) -> None:
        self.batches[batch] = sorted(row.word for row in rows.collect())


def own(folder: Path, how: str = "as it should be") -> tuple[Dataflow, Kept]:
    place, kept, flow = folder / "in", Kept(), Dataflow("own")
    place.mkdir()
    pq.write_table(pa.table({"word": ["cat", "dog"], "more": [1, 2]}), place / "rows.parquet")
    flow.source(Words(place, how)).map(str.upper, returns="word string", name="loud").sink(kept)
    return flow, kept


def test_a_source_and_a_sink_of_the_users_own_run(spark, tmp_path):
    flow, kept = own(tmp_path)
    run = Run.start(spark, flow, tmp_path)
    run.until(lambda: kept.batches.get(0) == ["CAT", "DOG"])
    run.stop()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("failing", "source 'source': Words.read failed: OSError: no such place"),
        ("at rest", "source 'source': Words.read returned no streaming DataFrame"),
        ("another column", "source 'source': Words.read returned no column 'word' (it returned: other)"),
    ],
)
def test_a_source_of_the_users_own_that_does_not_do_as_it_says_is_refused(spark, tmp_path, how, says):
    flow, _ = own(tmp_path, how)
    with pytest.raises(InputError) as refused:
        Run.start(spark, flow, tmp_path)
    assert str(refused.value) == says
