"""CPU a record of a dataflow with alternates, a choice and guards, over the same one without. 12 minutes on two free cores.

Both sides read the same files, run the same functions as one fused stage, and write files, one batch of Spark each, in
turn. The dynamic side has another composition in every batch, and a round of its guards. With a key table, the alternate is
that of the record's key, of ten thousand. Seconds are CPU time of all processes, Python's and the JVM.
"""

import argparse
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from _common import Report, cpu_of_all, interleaved, local_session, main
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow, Stream
from elastream.dataflow.chains import chain_of
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable
from elastream.dataflow.signals import Signal, SignalReading
from elastream.guards.evaluator import Element, Evaluator, Guard
from elastream.guards.language import Language
from elastream.recording.key_table_log import written_rows
from elastream.spark.dataflow.chaining import build_walk
from elastream.spark.dataflow.shipping import pickled
from elastream.spark.worker.composition import CompositionCodec, CompositionLog
from elastream.spark.worker.meter import Meter
from elastream.spark.worker.table_lookup import publish_table
from elastream.spark.worker.walk import WorkerPaths, stage_function

BAR, TABLE_BAR, SOURCE = 1.03, 1.1, "the project's bar"
KEYS, ALTERNATES = 10_000, 4
PAIRS, QUICK, FEWER = 24, 6, 10
"""Pairs of batches; with `--quick` fewer of them, and so many times fewer records in each."""
TASKS = 2
WARM = 4  # batches of each side before those that count: the JVM compiles in them


@dataclass(frozen=True)
class Shape:
    """A dataflow of one kind of record. columns: of its files, as SQL of `id`. form: of these. rows: records of a batch."""

    name: str
    columns: Mapping[str, str]
    form: str
    key: str
    rows: int
    build: "Callable[[Stream, Variants], Stream]"


class Variants:
    """Gives an operator its functions: the same one under several names where the dataflow is dynamic, else one."""

    def __init__(self, dynamic: bool, select_by: str | None = None) -> None:
        self.dynamic, self.select_by = dynamic, select_by

    def of(self, function: Callable[..., Any]) -> Any:
        return {f"v{n}": partial(function) for n in range(ALTERNATES)} if self.dynamic else partial(function)

    def needs(self) -> dict[str, Any]:
        return {"select_by": self.select_by} if self.select_by else {}


def cleaned(row: dict[str, Any]) -> dict[str, Any]:
    return {"customer": row["customer"], "hour": row["hour"] % 24, "load": min(row["load"], 500.0)}


def forecast(row: dict[str, Any]) -> dict[str, Any]:
    share = 1.0 + 0.1 * (row["hour"] - 12.0) / 12.0
    return {"customer": row["customer"], "hour": row["hour"], "load": 0.7 * row["load"] + 0.3 * row["load"] * share}


def is_peak(row: dict[str, Any]) -> bool:
    return bool(row["load"] > 60.0)


READING = "customer long, hour long, load double"


def readings(stream: Stream, variants: Variants) -> Stream:
    clean = stream.map(cleaned, returns=READING, name="clean")
    made = clean.map(variants.of(forecast), returns=READING, name="vary", **variants.needs())
    return _branches(made, variants, lambda s, name: s.filter(is_peak, name=name))


def words_of(line: str) -> list[str]:
    return line.split()


def stemmed(word: str) -> str:
    return word.lower().removesuffix("s").removesuffix("ing")


def words(stream: Stream, variants: Variants) -> Stream:
    split = stream.flat_map(words_of, returns="word string", name="split")
    made = split.map(variants.of(stemmed), returns="word string", name="vary", **variants.needs())
    return _branches(made, variants, lambda s, name: s.filter(str.isalnum, name=name))


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, "n", pc.multiply(batch.column("n"), 2))


def raised(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, "n", pc.add(batch.column("n"), 1))


NUMBERS = "key long, n long"


def numbers(stream: Stream, variants: Variants) -> Stream:
    first = stream.map_arrow(doubled, returns=NUMBERS, name="double")
    made = first.map_arrow(variants.of(raised), returns=NUMBERS, name="vary", **variants.needs())
    return _branches(made, variants, lambda s, name: s.map_arrow(doubled, returns=NUMBERS, name=name))


def _branches(made: Stream, variants: Variants, then: Callable[[Stream, str], Stream]) -> Stream:
    if not variants.dynamic:
        return then(made, "left")
    chosen = made.choice("way")
    return then(chosen, "left").merge(then(chosen, "right"))


SHAPES = (
    Shape(
        "readings",
        {"customer": f"pmod(id * 7919, {KEYS})", "hour": "id % 24", "load": "cast(id % 100 as double)"},
        "json", "customer", 200_000, readings,
    ),
    Shape(
        "words",
        {"value": f"concat_ws(' ', id % {KEYS}, (id * 7) % {KEYS}, 'singing', 'Cats')"},
        "text", "word", 100_000, words,
    ),
    Shape("numbers", {"key": f"pmod(id * 7919, {KEYS})", "n": "id"}, "parquet", "key", 2_000_000, numbers),
)  # fmt: skip
"""The key tables are of the customers, of the words that are numbers, and of the numbers' keys."""


@dataclass
class Side:
    spark: SparkSession
    shape: Shape
    variants: Variants
    folder: Path
    batch: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.graph = dataflow(self.shape, self.variants)
        self.codec = CompositionCodec(self.graph)
        self.log = CompositionLog(self.folder / "composition")
        self.meter = Meter(self.spark.sparkContext)
        self.guards = Guards() if self.variants.dynamic else None
        self.frame = written(self.spark, self.shape, self.folder.parent)
        arriving = to_arrow_schema(StructType(self.frame.schema.fields))
        found = chain_of(self.graph, self.graph.order, ())
        self.walk = build_walk(found, "source", "source", self.codec, [arriving], arrow_schema)
        self.shipped = pickled(self.walk, "dynamic")
        if self.variants.select_by:
            self._put_table()

    def _put_table(self) -> None:
        strings = self.shape.name == "words"
        names = [f"v{n}" for n in range(ALTERNATES)]
        rows = {(str(key) if strings else key,): self.chance.choice(names) for key in range(KEYS)}
        table = KeyTable(self.graph.name, "vary", (self.shape.key,), rows)
        file = self.folder / "table.arrow"
        file.write_bytes(written_rows(table))
        publish_table(self.folder / "tables", "vary", 1, file)

    def run(self) -> DataFrame:
        self.batch += 1
        if self.variants.dynamic:
            self._compose()
        log = self.log.directory if self.variants.dynamic else None
        carrier = WorkerPaths(log=log, tables=self.folder / "tables")
        self.spark.sparkContext.setLocalProperty("streaming.sql.batchId", str(self.batch))
        function = stage_function(self.shipped, carrier, self.meter.sink)
        return self.frame.mapInArrow(function, from_arrow_schema(self.walk.exits[0].schema))

    def _compose(self) -> None:
        picked = {"vary": f"v{self.chance.randrange(ALTERNATES)}"}
        way = {"way": self.chance.choice(("left", "right"))}
        tables = {"vary": 1} if self.variants.select_by else {}
        code = self.codec.encode(Composition(self.batch, picked, way, tables=tables))
        self.log.append(self.batch, self.batch, code)
        assert self.guards is not None
        self.guards.next(self.batch)

    def seconds(self) -> float:
        began = cpu_of_all()
        self.run().write.mode("overwrite").parquet(str(self.folder / "out"))
        spent = cpu_of_all() - began
        self.meter.drain()
        return spent


def written(spark: SparkSession, shape: Shape, folder: Path) -> DataFrame:
    place, columns = str(folder / "records"), [F.expr(sql).alias(name) for name, sql in shape.columns.items()]
    made = spark.range(0, shape.rows, 1, TASKS).select(*columns)
    if not (folder / "records").exists():
        made.write.format(shape.form).save(place)
    return spark.read.schema(made.schema).format(shape.form).load(place)


def arrow_schema(ddl: str) -> pa.Schema:
    return to_arrow_schema(cast(StructType, StructType.fromDDL(ddl)))


def dataflow(shape: Shape, variants: Variants) -> Graph:
    flow = Dataflow(f"dynamic-{shape.name}")
    shape.build(flow.source(None), variants).sink(None)
    return flow.graph


class Guards:
    """Guards of the two dynamic elements, and the signals that they meet."""

    def __init__(self) -> None:
        signals = [Signal("error"), Signal("arrivals"), Signal("peak")]
        language = Language(signals)
        texts = {
            "vary": [f"avg(error, '5m') >= {n / ALTERNATES}" for n in range(ALTERNATES)],
            "way": ["arrivals > 100.0", "arrivals <= 100.0 || peak > 0.5"],
        }
        elements = tuple(
            Element(name, tuple(Guard(f"g{n}", language.condition(text)) for n, text in enumerate(each)))
            for name, each in texts.items()
        )
        self._evaluator = Evaluator(elements, signals)
        self._chance = random.Random(2)

    def next(self, now: float) -> None:
        values = {"error": self._chance.random(), "arrivals": 200 * self._chance.random(), "peak": self._chance.random()}
        self._evaluator.update(now, {name: SignalReading(value, now) for name, value in values.items()})


def same_results(sides: Sequence[Side]) -> None:
    def digest(frame: DataFrame) -> tuple[int, int]:
        found = frame.agg(F.count(F.lit(1)), F.bit_xor(F.xxhash64(*frame.columns))).first()
        assert found is not None
        return found[0], found[1]

    first, *others = (digest(side.run()) for side in sides)
    assert first[0], "nothing came out"
    for other in others:
        assert other == first, "the sides differ"


def measure(arguments: argparse.Namespace) -> Report:
    with local_session("dynamic") as (spark, folder):
        report = Report(environment={"master": spark.sparkContext.master, "keys": KEYS, "alternates": ALTERNATES})
        pairs = QUICK if arguments.quick else PAIRS
        for whole in SHAPES:
            shape = replace(whole, rows=whole.rows // FEWER) if arguments.quick else whole
            fixed = Side(spark, shape, Variants(False), folder / shape.name / "fixed")
            ways = {
                "alternates": (Side(spark, shape, Variants(True), folder / shape.name / "log"), BAR),
                "key table": (Side(spark, shape, Variants(True, shape.key), folder / shape.name / "table"), TABLE_BAR),
            }
            same_results([fixed, *(side for side, _ in ways.values())])
            for side in (fixed, *(side for side, _ in ways.values())):
                for _ in range(WARM):
                    side.seconds()
            for way, (side, bar) in ways.items():
                name = f"{shape.name}, {way}"
                found = interleaved(side.seconds, fixed.seconds, pairs, f"{name}, CPU seconds of {shape.rows:,} records:")
                report.figures[name] = figures = found.figures("dynamic", "fixed")
                micros = {side: 1e6 * figures[side]["median"] / shape.rows for side in ("dynamic", "fixed")}
                figures["microseconds a record"] = micros
                report.median_at_most(f"CPU a record, dynamic over fixed: {name}", found.ratios, bar, SOURCE)
    return report


if __name__ == "__main__":
    main("dynamic", __doc__, measure)
