"""Random switches of a running dataflow, with faults among them: composition of every batch, and duration of switches.

Alternates in Python and in DataFrame code, branches, key tables and a keyed operator's alternates are switched at random in
plans of one to three, with two executors, while an operator fails, a sink fails after it has written, and executors are
killed; then, shorter, in the two modes that are consistent across queries (thesis, p. 50). In a fourth trial each plan is a
switch and new code, which changes alternates, adds and removes one. 20 minutes on two free cores.

The first of two queries stamps records with the alternates and the branch that they pass; the second totals them by key
behind a durable edge. Expected rows follow in plain Python from the composition of each batch in Spark's offset log.
"""

import argparse
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from _common import EXECUTOR, Report, local_session, main, processes_below, progress
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from elastream.core.action import Outcome, SetKeyTable, Switch, SwitchAlternate, SwitchEdge, UpdateCode
from elastream.core.composition import Consistency
from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.compiling import plan_queries
from elastream.dataflow.endpoints import records
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable, selections_of
from elastream.dataflow.stages import lay_out
from elastream.loads import constant
from elastream.recording.code_log import CodeLog
from elastream.recording.directory import RunDirectory
from elastream.recording.key_table_log import KeyTableLog
from elastream.spark.dataflow.edge_log import EdgeLog
from elastream.spark.dataflow.table_activation import table_publisher
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.placement.allocation import InMemoryPlan
from elastream.spark.placement.placing import Placing
from elastream.spark.queries.compiled import CompiledQueries
from elastream.spark.queries.compiler import start_queries
from elastream.spark.queries.query import QueryAccess
from elastream.spark.queries.segments import RunningSegment, composition_left
from elastream.spark.queries.updating import RunningCode, ask_update, begin_code
from elastream.spark.worker.composition import (
    BatchComposition,
    CompositionCodec,
    composition_in_offsets,
    latest_batch,
    newest_composition,
    offsets_of,
)
from elastream.spark.worker.runner import explain_failure

KEYS = 7
ROWS = [{"n": n, "key": n % KEYS} for n in range(100)]
TAGS = "pq"
FAILING = ("an operator", "a sink", "an executor")  # injected failures during switches
PATIENCE = 240.0  # seconds without a batch after which a trial has hung
LOOK = 0.03  # seconds between two looks at the queries


class Injected(Exception):
    """A fault that the trial requested."""


def stamping(tag: str, failing: str, version: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def stamp(row: dict[str, Any]) -> dict[str, Any]:
        if os.path.exists(failing):
            raise Injected("an operator was told to fail")
        return {**row, "first": f"{tag}{version}"}

    return stamp


def branch(way: str, side: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: {**row, "way": way, "side": side}


def tagging(tag: str) -> Callable[[DataFrame], DataFrame]:
    return lambda rows: rows.withColumn("tag", F.lit(tag))


def totalling(factor: int) -> Callable[..., tuple[pd.DataFrame, tuple[int]]]:
    def total(key: tuple[int], rows: pd.DataFrame, state: tuple[int] | None) -> tuple[pd.DataFrame, tuple[int]]:
        now = (state[0] if state else 0) + factor * int(rows["n"].sum())
        emitted = {"key": [key[0]], "total": [now], "records": [len(rows)], "factor": [factor]}
        return pd.DataFrame({**emitted, "met": [",".join(sorted(set(rows["first"])))]}), (now,)

    return total


FACTORS = {"once": 1, "twice": 2}


def factor_of(alternate: str, version: int) -> int:
    return FACTORS[alternate] + 2 * version


def stamps_of(version: int) -> str:
    """Return the alternates of `stamp` in a version of the code: every second has one more."""
    return "abcd" if version % 2 else "abc"


@dataclass
class AttemptSink:
    """A sink that stores each attempt at a batch with its entry in the offset log; `fail` makes it fail once."""

    name: str
    attempts: dict[int, list[tuple[BatchComposition, pa.Table]]] = field(default_factory=dict)
    checkpoint: Path = Path()
    fail: bool = False

    def write(self, rows: DataFrame, batch: int) -> None:
        ran = composition_in_offsets(self.checkpoint, batch)
        assert ran is not None
        table = rows.toArrow()  # raises if the query is stopped meanwhile
        self.attempts.setdefault(batch, []).append((ran, table))
        if self.fail:
            self.fail = False
            raise Injected("a sink was told to fail")


def switching_flow(failing: Path, out: AttemptSink, totals: AttemptSink, rate: float, version: int = 0) -> Dataflow:
    flow = Dataflow("switching")
    source = flow.source(records(ROWS, "n long, key long"), load=constant(rate))
    tagged = source.transform({tag: tagging(tag) for tag in TAGS}, name="tag")
    stamps = {tag: stamping(tag, str(failing), version) for tag in stamps_of(version)}
    columns = "n long, key long, tag string, first string"
    ways = tagged.map(stamps, returns=columns, name="stamp", select_by="key").choice("way")
    returns = columns + ", way string, side string"
    sides = {side: branch("left", side) for side in "xy"}
    left = ways.map(sides, returns=returns, name="left")
    right = ways.map(branch("right", "-"), returns=returns, name="right")
    ways.nothing(name="asleep")
    both = left.merge(right)
    both.sink(out, name="out")
    alternates = {name: totalling(factor_of(name, version)) for name in FACTORS}
    keyed = both.durable().key_by("key")
    totals_schema = "key long, total long, records long, factor long, met string"
    keyed.apply(alternates, returns=totals_schema, state="total long", name="total", select_by="key").sink(
        totals, name="totals"
    )
    return flow


class CommittedBatch(NamedTuple):
    """A committed batch: what it ran under, and the range of records that it took from each source or edge."""

    ran: BatchComposition
    ranges: tuple[tuple[int, int], ...]


@dataclass
class Requested:
    """A plan that was requested. planned: newest batch by query, right after; batches: the first one under it less that."""

    version: int
    planned: Mapping[str, int]
    batches: dict[str, int] = field(default_factory=dict)


class Trial:
    """The dataflow under `consistency`, running in the session `spark`; `run` switches it, `check` returns violations.

    rate: records/s. interval: least seconds from batch to batch. updates: each plan is one switch and new code.

    failures: unrequested failures of queries, for example because Spark's ten seconds for the start of a source are too
    short on a busy machine. They count as restarts.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        consistency: Consistency = Consistency.BATCH,
        *,
        rate: float = 200.0,
        interval: float = 0.1,
        seed: int = 14,
        updates: bool = False,
    ) -> None:
        self.updates, self.rate = updates, rate
        self.spark, self.consistency, self._interval = spark, consistency, interval
        self.failing, self.random = folder / "failing", random.Random(seed)
        self.out, self.totals = AttemptSink("out"), AttemptSink("totals")
        self.graph = switching_flow(self.failing, self.out, self.totals, rate).graph
        self.layout = lay_out(self.graph)
        self.directory = RunDirectory.create(folder / "runs", f"switching-{consistency}")
        begin_code(self.graph, self.directory)
        self.code = RunningCode(self.graph, self.directory)
        self.tables = KeyTableLog(self.directory, selections_of(self.graph))
        self.composed: dict[int, Composition] = {}
        self._tables_read: dict[tuple[str, int], KeyTable] = {}
        self.out.checkpoint, self.totals.checkpoint = (
            Path(str(self.directory.checkpoint(segment.name))) for segment in self.layout.segments
        )
        self.requested: list[Requested] = []
        self.seen: dict[str, dict[int, CommittedBatch]] = {segment.name: {} for segment in self.layout.segments}
        self.switches, self.restarts, self.killed = 0, 0, 0
        self.failures: list[str] = []
        self.mixed = 0.0
        self.latencies: list[float] = []
        self._start(Composition.default(self.graph, {"source": 2}))

    @property
    def codec(self) -> CompositionCodec:
        return self.code.codec

    def _start(self, composition: Composition) -> None:
        running = start_queries(
            self.spark,
            self.layout,
            self.directory,
            composition,
            state_partitions=2,
            batch_seconds=1.0,
            interval=self._interval,
            consistency=self.consistency,
            codec=self.codec,
        )
        instruments = QueryAccess(self.spark, DriverSide(self.spark), Placing({}, time.monotonic, InMemoryPlan()))
        self.queries = CompiledQueries(
            instruments,
            self.layout,
            running,
            partitions=2,
            target_latency=None,
            consistency=self.consistency,
            tables=table_publisher(self.graph, self.directory),
            code=self.code,
        )
        self.composed[self.queries.composition.version] = self.queries.composition

    def run(self, switches: int, faults: Mapping[int, str] | None = None) -> "Trial":
        """Request random switches in plans of one to three, and `faults` by the switches before; end committed."""
        due = dict(sorted((faults or {}).items()))
        while self.switches < switches:
            self.request(self.plan(min(3, switches - self.switches)))
            while due and next(iter(due)) <= self.switches:
                self._fail(due.pop(next(iter(due))))
            self.wait(self.random.choice((0, 0, 1, 1, 1, 2)))
        self.wait(4)
        self.stop()
        return self

    def plan(self, most: int) -> list[Switch]:
        now = self.queries.composition
        elements: list[Callable[[], Switch]] = [
            lambda: SwitchAlternate("tag", self._other(TAGS, now.alternates["tag"])),
            lambda: SwitchAlternate("stamp", self._other(stamps_of(now.code_version), now.alternates["stamp"])),
            lambda: SwitchAlternate("left", self._other("xy", now.alternates["left"])),
            lambda: SwitchAlternate("total", self._other(FACTORS, now.alternates["total"])),
            lambda: SwitchEdge("way", self._other(self.graph.choices["way"], now.choices["way"])),
            lambda: SetKeyTable("stamp", self._table("stamp", "abc")),
            lambda: SetKeyTable("total", self._table("total", tuple(FACTORS))),
        ]
        many = 1 if self.updates else self.random.randint(1, min(most, len(elements)))
        plan = [each() for each in self.random.sample(elements, many)]
        return [*plan, self._update()] if self.updates else plan

    def _update(self) -> UpdateCode:
        version = len(CodeLog(self.directory).versions)
        graph = switching_flow(self.failing, self.out, self.totals, self.rate, version).graph
        given = ask_update(graph, self.directory, plans_of, "a trial")
        return UpdateCode(given.version, given.changed)

    def _other(self, among: Iterable[str], but: str) -> str:
        return self.random.choice([each for each in among if each != but])

    def _table(self, operator: str, alternates: Sequence[str]) -> int:
        if self.queries.composition.tables.get(operator, 0) and self.random.random() < 0.2:
            return 0
        some = self.random.sample(range(KEYS), self.random.randint(1, KEYS - 1))
        rows = {(key,): self.random.choice(alternates) for key in some}
        return self.tables.append(KeyTable(self.graph.name, operator, ("key",), rows))

    def request(self, plan: Sequence[Switch]) -> None:
        outcomes: tuple[Outcome, ...] = self.queries.switch(plan)
        assert all(outcome.succeeded for outcome in outcomes), outcomes
        planned = {each.segment.name: latest_batch(each.checkpoint) for each in self.queries.running}
        self.requested.append(Requested(self.queries.composition.version, planned))
        self.composed[self.queries.composition.version] = self.queries.composition
        self.switches += len(plan)

    def wait(self, batches: int) -> None:
        name = self.layout.segments[0].name
        until, hung = self._newest(name) + batches, time.monotonic() + PATIENCE
        while self.queries.settle() or self._newest(name) < until:
            if time.monotonic() > hung:
                raise TimeoutError(f"no batch for {PATIENCE:.0f} s: {[q.query.status for q in self.queries.running]}")
            before = self._newest(name)
            if not self._look():
                self.again()
            if self._newest(name) > before:
                hung = time.monotonic() + PATIENCE
            time.sleep(LOOK)

    def _newest(self, query: str) -> int:
        return max(self.seen[query], default=-1)

    def _look(self) -> bool:
        alive = all(each.query.isActive for each in self.queries.running)
        try:
            now = time.time()
            self.queries.look(now, now)
        except Exception:
            if all(each.query.isActive for each in self.queries.running):
                raise
        for query in self.queries.live:
            for batch in query.batches:
                if batch.id in self.seen[query.name]:
                    continue
                ran = newest_composition([source.end for source in batch.sources])
                assert ran is not None
                self.seen[query.name][batch.id] = CommittedBatch(ran, tuple(source.numbers for source in batch.sources))
                for each in self.requested[-50:]:
                    if query.name not in each.batches and ran.version >= each.version:
                        each.batches[query.name] = batch.id - each.planned[query.name]
        return alive

    def _fail(self, what: str) -> None:
        match what:
            case "an operator":
                self.failing.touch()
                self._until_failed()
            case "a sink":
                if self.queries.composition.choices["way"] == "asleep":
                    self.request([SwitchEdge("way", "right")])
                self.out.fail = True
                self._until_failed()
            case "an executor":
                for process in processes_below(EXECUTOR)[:1]:
                    process.kill()
                    self.killed += 1
            case _:
                raise ValueError(f"{what!r} is none of {FAILING}")

    def _until_failed(self) -> None:
        hung, meanwhile = time.monotonic() + PATIENCE, self.random.randint(0, 3)
        while self._look():
            if time.monotonic() > hung:
                raise TimeoutError("what was told to fail did not")
            self.queries.settle()
            if self.failing.exists() and meanwhile and self.random.random() < 0.1:
                self.request(self.plan(1))  # the controller does not know it yet
                meanwhile -= 1
            time.sleep(LOOK)
        self.failing.unlink(missing_ok=True)

    def again(self) -> None:
        self._figure()
        for each in self.queries.running:
            error = each.query.exception()
            if error is not None and "told to fail" not in str(error):
                self.failures.append(explain_failure(error))
            each.query.stop()
        self.restarts += 1
        # Use the last written composition, not the wanted one: a running drain has not written it, and ends with its
        # driver.
        self.code = RunningCode(self.graph, self.directory)
        self._start(composition_left(self.layout, self.directory, self.queries.composition, self.codec))
        # The composition wanted at the failure never came into force: count again from the one wanted now.
        for requested in self.requested:
            for name in self.seen:
                requested.batches.setdefault(name, 0)

    def _figure(self) -> None:
        self._look()
        for each in self.queries.running:
            self._read_log(each)
        self.mixed += sum(each.mixed for each in self.queries.updates)
        self.latencies += [each.latency for each in self.queries.updates if each.latency == each.latency]

    def _read_log(self, each: RunningSegment) -> None:
        seen = self.seen[each.segment.name]
        for batch in range(latest_batch(each.checkpoint, "commits") + 1):
            if batch in seen:
                continue
            before, after = (offsets_of(each.checkpoint, number) if number >= 0 else () for number in (batch - 1, batch))
            begun = [int(offset["n"]) for offset in before] or [0] * len(after)
            ran = newest_composition(after)
            assert ran is not None
            seen[batch] = CommittedBatch(ran, tuple(zip(begun, (int(offset["n"]) for offset in after), strict=True)))

    def stop(self) -> None:
        first, second = self.queries.running
        first.query.stop()
        second.query.processAllAvailable()
        second.query.stop()
        self._figure()

    def check(self) -> Mapping[str, float]:
        found: Counter[str] = Counter()
        self._check_replays(found)
        self._check_batches(found)
        self._check_totals(found)
        found["switches effective after more than 2 batches"] = sum(lag > 2 for lag in self.lags)
        return {
            "mixed batches": 0, "batches that differ from plain Python": 0, "replays that differ": 0,
            "totals that differ from a batch computation": 0, **found,
        }  # fmt: skip

    @property
    def lags(self) -> list[int]:
        direct = {
            Consistency.BATCH: [segment.name for segment in self.layout.segments],
            Consistency.WAVE: [self.layout.segments[0].name],  # the other query follows its records
        }.get(self.consistency, [])
        return [each.batches[name] for each in self.requested for name in direct if name in each.batches]

    @property
    def batches(self) -> int:
        return len(self.out.attempts)

    def decoded(self, ran: BatchComposition) -> Composition:
        found = self.codec.decode(ran.code, ran.version)
        return replace(found, tables=self.composed[ran.version].tables)

    def alternate(self, now: Composition, operator: str, key: int) -> str:
        version = now.tables.get(operator, 0)
        table = self._tables_read.get((operator, version))
        if table is None and version:
            table = self._tables_read[operator, version] = self.tables.find(operator, version)
        return (table and table.alternate((key,))) or now.alternates[operator]

    def stamp(self, now: Composition, key: int) -> str:
        return f"{self.alternate(now, 'stamp', key)}{now.code.get('stamp', 0)}"

    def factor(self, now: Composition, key: int) -> int:
        return factor_of(self.alternate(now, "total", key), now.code.get("total", 0))

    def _check_replays(self, found: Counter[str]) -> None:
        for kept in (self.out, self.totals):
            for (ran, first), *others in kept.attempts.values():
                found["replays"] += len(others)
                for other, again in others:
                    found["replays that differ"] += other != ran or rows_of(again) != rows_of(first)

    def _check_batches(self, found: Counter[str]) -> None:
        query = self.layout.segments[0].name
        for batch, (ran, ((first, last),)) in self.seen[query].items():
            now = self.decoded(ran)
            attempts = self.out.attempts.get(batch, [])
            rows = rows_of(attempts[-1][1]) if attempts else Counter()
            found["batches checked"] += 1
            ways = {(row["key"], row["first"], row["tag"], row["way"], row["side"]) for row in map(dict, rows)}
            mixed = len(ways) > len({key for key, *_ in ways}) or len({tuple(way) for _, _, *way in ways}) > 1
            found["mixed batches"] += mixed or any(each != ran for each, _ in attempts)
            found["batches that differ from plain Python"] += rows != Counter(self._expected(now, first, last))
        ranges = sorted(each.ranges[0] for each in self.seen[query].values())
        gaps = sum(b[0] != a[1] for a, b in pairwise(ranges))
        found["batches that nobody saw"] += gaps + (ranges[0][0] != 0)

    def _expected(self, now: Composition, first: int, last: int) -> Iterable[frozenset[tuple[str, Any]]]:
        way = now.choices["way"]
        if way == "asleep":
            return
        side = now.alternates["left"] if way == "left" else "-"
        for number in range(first, last):
            row = ROWS[number % len(ROWS)]
            stamp = self.stamp(now, row["key"])
            stamped = {**row, "tag": now.alternates["tag"], "first": stamp, "way": way, "side": side}
            yield frozenset(stamped.items())

    def _check_totals(self, found: Counter[str]) -> None:
        query = self.layout.segments[1].name
        logs = [EdgeLog(self.directory.edge(edge.source, edge.target)) for edge in self.layout.segments[1].inputs]
        for log in logs:
            log.refresh()
        totals: Counter[int] = Counter()
        for batch, (ran, ranges) in sorted(self.seen[query].items()):
            now = self.decoded(ran)
            factors = {key: self.factor(now, key) for key in range(KEYS)}
            pieces = [piece for log, (first, last) in zip(logs, ranges, strict=True) for piece in log.pieces(first, last)]
            tables = (pq.ParquetFile(str(piece.path)).read().slice(piece.first, piece.rows) for piece in pieces)
            taken = [row for table in tables for row in table.to_pylist()]
            for row in taken:
                totals[row["key"]] += factors[row["key"]] * row["n"]
            stamps = {key: self.stamp(now, key) for key in range(KEYS)}
            sides = {now.alternates["left"], "-"}
            strange = any(row["first"] != stamps[row["key"]] or row["side"] not in sides for row in taken)
            found["batches with records of another version"] += strange
            if batch in self.totals.attempts:
                emitted = [row for _, table in self.totals.attempts[batch][-1:] for row in table.to_pylist()]
                found["mixed batches"] += any(row["factor"] != factors[row["key"]] for row in emitted)
                found["totals that differ from a batch computation"] += sum(
                    row["total"] != totals[row["key"]] for row in emitted
                )
                found["totals checked"] += len(emitted)
        if self.consistency is not Consistency.BATCH:
            found["mixed batches"] += found["batches with records of another version"]


def plans_of(graph: Graph) -> object:
    return plan_queries(lay_out(graph))


def rows_of(table: pa.Table) -> Counter[frozenset[tuple[str, Any]]]:
    return Counter(frozenset(row.items()) for row in table.to_pylist())


def sampled(values: Sequence[float]) -> Mapping[str, float]:
    ordered = sorted(values) or [float("nan")]
    at = [ordered[min(len(ordered) - 1, int(part * len(ordered)))] for part in (0.5, 0.95)]
    return {"median": at[0], "p95": at[1], "longest": ordered[-1]}


SWITCHES = {Consistency.BATCH: 1000, Consistency.WAVE: 200, Consistency.DRAIN: 60}
UPDATED, UPDATES, QUICK_UPDATES = "updates", 200, 10
QUICK = {Consistency.BATCH: 30, Consistency.WAVE: 12, Consistency.DRAIN: 8}
CLUSTER = "local-cluster[2,1,1024]"  # executors, cores of each, megabytes of each


def faults(switches: int, times: int) -> dict[int, str]:
    every = switches // (times * len(FAILING) + 1)
    return {every * (number + 1): FAILING[number % len(FAILING)] for number in range(times * len(FAILING))}


def measure(arguments: argparse.Namespace) -> Report:
    modes = QUICK if arguments.quick else SWITCHES
    updates = QUICK_UPDATES if arguments.quick else UPDATES
    trials: dict[str, tuple[Consistency, int]] = {mode: (mode, switches) for mode, switches in modes.items()}
    trials[UPDATED] = Consistency.BATCH, 2 * updates  # one switch each, too
    if arguments.part:
        trials = {arguments.part: trials[arguments.part]}
    with local_session("switching", {"spark.master": CLUSTER, "spark.executor.memory": "1g"}) as (spark, folder):
        report = Report(environment={"master": CLUSTER})
        for mode, (consistency, switches) in trials.items():
            (folder / mode).mkdir()
            trial = Trial(spark, folder / mode, consistency, updates=mode == UPDATED)
            few = mode is not Consistency.BATCH or arguments.quick
            trial.run(switches, faults(switches, 1 if few else 3))
            found = trial.check()
            report.figures[mode] = figures = described(trial, found)
            progress(f"{mode}: {figures}")
            for what in sorted(found):
                if what.startswith(("replays checked", "totals checked", "batches checked")) or what == "replays":
                    continue
                if what == "batches with records of another version" and consistency is Consistency.BATCH:
                    continue  # allowed in this mode only
                report.at_most(f"{mode}: {what}", found[what], 0.0)
            report.at_least(f"{mode}: switches", trial.switches, switches)
            report.at_least(f"{mode}: executors killed", trial.killed, 1)
            report.at_least(f"{mode}: queries that failed and were started again", trial.restarts, 2)
        report.paper = {"update latency": "drained: very high; re-wired: very fast, and inconsistent (p. 50, no figures)"}
    return report


def described(trial: Trial, found: Any) -> dict[str, Any]:
    return {
        "switches": trial.switches,
        "plans": len(trial.requested),
        "batches checked": found["batches checked"],
        "totals checked": found["totals checked"],
        "replays": found["replays"],
        "restarts": trial.restarts,
        "failures that nobody asked for": trial.failures,
        "executors killed": trial.killed,
        "update latency, seconds": sampled(trial.latencies),
        "batches to effect": sampled(trial.lags),
        "mixed records": trial.mixed,
        "batches with records of another version": found.get("batches with records of another version", 0),
    }


if __name__ == "__main__":
    parts = (*map(str, SWITCHES), UPDATED)
    main("switching", __doc__, measure, lambda parser: parser.add_argument("--part", choices=parts))
