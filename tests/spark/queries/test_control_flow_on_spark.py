"""Loops, switches and messages as running queries: results against plain Python, across a restart and a replay."""

import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from test_compile import Run

from elastream.core.action import UpdateCode
from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow, Stream
from elastream.dataflow.endpoints import collect, files, records
from elastream.dataflow.functions import Loop, Receiver
from elastream.dataflow.stages import lay_out
from elastream.loads import constant
from elastream.recording.directory import RunDirectory
from elastream.spark.dataflow.sinks import tables_collected
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.placement.placing import InMemoryPlan, Placing
from elastream.spark.queries.compiled import CompiledQueries
from elastream.spark.queries.compiler import start_queries
from elastream.spark.queries.query import QueryAccess
from elastream.spark.queries.updating import RunningCode, ask_message, begin_code
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture
def spark(local_spark: SparkSession) -> SparkSession:
    return local_spark


def dropped(folder: Path, *numbers: int) -> str:
    """Return the folder, with a file of the numbers from the first to the second (exclusive), if they are given."""
    folder.mkdir(exist_ok=True)
    if numbers:
        hidden = folder / f".{numbers[0]}"
        pd.DataFrame({"n": range(*numbers), "rounds": 0}).to_parquet(hidden)
        hidden.rename(folder / f"{numbers[0]}.parquet")
    return str(folder)


def collatz(row: dict[str, int]) -> dict[str, int]:
    n = row["n"]
    return {"n": n // 2 if n % 2 == 0 else 3 * n + 1, "rounds": row["rounds"] + 1}


def at_one(row: dict[str, int]) -> bool:
    return row["n"] == 1


def by_rounds(row: dict[str, int]) -> str:
    return "few" if row["rounds"] < 20 else "many"


def expected(total: int) -> dict[str, list[int]]:
    rounds = []
    for n in range(1, total):
        row = collatz({"n": n, "rounds": 0})
        while not at_one(row):
            row = collatz(row)
        rounds.append(row["rounds"])
    return {"few": sorted(r for r in rounds if r < 20), "many": sorted(r for r in rounds if r >= 20)}


def test_loops_and_switches_give_what_plain_python_gives_across_a_restart(spark, tmp_path):
    flow, schema = Dataflow("collatz"), "n long, rounds long"
    source = flow.source(files(dropped(tmp_path / "in"), schema))
    ports = source.map(Loop(collatz, at_one, 200), returns=schema, name="loop").switch(
        by_rounds, ["few", "many"], name="by"
    )
    ports["few"].sink(collect("few"), name="short")
    ports["many"].durable().select("rounds").sink(collect("many"), name="long")

    def given(name: str) -> list[int]:
        return sorted(row["rounds"] for row in tables_collected([name])[name].to_pylist())

    run = Run.start(spark, flow, tmp_path)
    for first, last in ((1, 100), (100, 300)):
        dropped(tmp_path / "in", first, last)
        run.until(lambda last=last: all(len(given(name)) >= len(rows) for name, rows in expected(last).items()))
        assert {name: given(name) for name in ("few", "many")} == expected(last)
        run.stop()
        run.resume(Composition.default(flow.graph))
    run.stop()


@pytest.mark.slow
def test_keys_that_are_finished_leave_supersteps_early(spark, tmp_path):
    def halve(key: tuple[int], rows: pd.DataFrame, state: Any) -> tuple[pd.DataFrame, Any]:
        return pd.DataFrame({"n": rows["n"] // 2, "rounds": rows["rounds"] + 1}), None

    def superstep(stream: Stream, number: int) -> Stream:
        keyed = (stream.durable() if number > 1 else stream).key_by("n")
        return keyed.apply(halve, returns="n long, rounds long", state="n long", name=f"step_{number}")

    flow = Dataflow("supersteps")
    source = flow.source(files(dropped(tmp_path / "in"), "n long, rounds long"))
    source.unrolled(superstep, 3, until=lambda row: row["n"] == 0).durable().filter(lambda row: True).sink(
        collect("halved")
    )
    run = Run.start(spark, flow, tmp_path)
    dropped(tmp_path / "in", 1, 12)
    run.until(lambda: len(tables_collected(["halved"])["halved"]) >= 11)
    rows = sorted((row["n"], row["rounds"]) for row in tables_collected(["halved"])["halved"].to_pylist())
    assert rows == sorted((n // 2 ** min(3, n.bit_length()), min(3, n.bit_length())) for n in range(1, 12))
    run.stop()


@dataclass
class Kept:
    """Sink that keeps the messages of each attempt at a batch; `fail` makes it fail once."""

    attempts: dict[int, list[set[int]]] = field(default_factory=lambda: defaultdict(list))
    fail: bool = False

    def write(self, rows: DataFrame, batch: int) -> None:
        if messages := {row["message"] for row in rows.collect()}:  # a batch that only switches has no records
            self.attempts[batch].append(messages)
        if self.fail:
            self.fail = False
            raise RuntimeError("told to fail")


def stamp(n: int, message: int) -> dict[str, int]:
    return {"n": n, "message": message}


class Stamping:
    """A run whose records get the message of their batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.kept = spark, Kept()
        flow = Dataflow("stamping")
        stamped = flow.source(records([{"n": 1}], "n long"), load=constant(50)).map(
            Receiver(stamp, 0), returns="n long, message long", name="stamp"
        )
        stamped.sink(self.kept)
        self.graph, self.directory = flow.graph, RunDirectory.create(folder / "runs", "stamping")
        begin_code(self.graph, self.directory)
        self.start(Composition.default(self.graph, {"source": 3}))

    def start(self, composition: Composition) -> None:
        code, layout = RunningCode(self.graph, self.directory), lay_out(self.graph)
        running = start_queries(
            self.spark, layout, self.directory, composition,
            state_partitions=2, batch_seconds=1.0, interval=0.1, codec=code.codec,
        )  # fmt: skip
        access = QueryAccess(self.spark, DriverSide(self.spark), Placing({}, time.monotonic, InMemoryPlan()))
        self.queries = CompiledQueries(access, layout, running, partitions=2, target_latency=None, code=code)

    @property
    def query(self) -> Any:
        return self.queries.running[0].query

    def send(self, message: int) -> None:
        version = ask_message(self.directory, "stamp", message, "test")
        (outcome,) = self.queries.switch([UpdateCode(version.version, version.changed)])
        assert outcome.succeeded

    def wait_for(self, message: int) -> None:
        def there() -> bool:
            assert self.query.exception() is None
            return any({message} in attempts for attempts in self.kept.attempts.values())

        wait_until(there)


def test_each_batch_has_one_message_and_its_replay_the_same(spark, tmp_path):
    run = Stamping(spark, tmp_path)
    for message in (0, 1, 2, 3):
        if message:
            run.send(message)
        if message == 2:
            run.kept.fail = True
            wait_until(lambda: not run.query.isActive)
            run.query.stop()
            run.start(run.queries.composition)
        run.wait_for(message)
    run.query.stop()
    attempts = [each for _, each in sorted(run.kept.attempts.items())]
    assert all(len(messages) == 1 for each in attempts for messages in each)
    assert any(len(each) > 1 for each in attempts)
    assert all(messages == each[0] for each in attempts for messages in each)
    order = [next(iter(each[0])) for each in attempts]
    assert order == sorted(order)
    assert set(order) == {0, 1, 2, 3}
