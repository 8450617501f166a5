"""Measurements of placements of state partitions on a Spark cluster, with synthetic queries.

Partitions of successive stages prefer certain partners and have unequal cost. Hosts are worker processes with a CPU
quota and, if possible, a network link.
"""

import contextlib
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from elastream.clouds.local.local import Local
from elastream.clouds.local.network import Link
from elastream.core.action import MoveTask
from elastream.core.frames import Floats, Frame
from elastream.core.hosts import HostType
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.plant import Policy
from elastream.core.task_id import TaskId
from elastream.errors import ElastreamError
from elastream.policies.elastic_allocator.policy import deviation
from elastream.recording.directory import RunDirectory
from elastream.settings import RunSettings
from elastream.spark.plant import SparkPlant
from elastream.spark.queries.watched import SessionQueries
from elastream.spark.start import start_beside

LINK = Link("20mbit")
HOST = HostType("small host", cores=0.35, slots=1, memory=1000.0)  # two cores can run three of them beside Spark's driver
HOSTS, PARTITIONS = 3, 6
FAVOURITE = 0.9  # fraction of a partition's output to its preferred partner; the rest is even
GROUPS = 128  # keys of the second stage per partition: pre-aggregation sends one record a key
ROUND = 5.0  # seconds from a landed move to the next question, as in the paper
INTERVAL = 0.1  # least seconds between batch starts: below any batch's duration
LANDING, WARMING = 40.0, 60.0  # seconds for moves to land, and for a new query's first batches


WatchedPlant: TypeAlias = SparkPlant[SessionQueries]


@dataclass(frozen=True, slots=True)
class SteadyQuery:
    """A query whose batches follow each other without a pause.

    partner: work of a second stage, or nothing. rows: a batch. steps: mean work per record in the first stage (terms of
    a harmonic number). skew: their Zipf exponent by partition. payload, sent: bytes per record to the first and the second
    stage. seed: of weights and partners.
    """

    name: str
    rows: int
    partner: str = ""
    steps: int = 0
    skew: float = 0.0
    payload: int = 0
    sent: int = 0
    seed: int = 1

    def weights(self) -> list[int]:
        """Return steps per record, by partition."""
        share = np.arange(1, PARTITIONS + 1) ** -self.skew
        share = np.random.default_rng(self.seed).permutation(share / share.mean())
        return [round(self.steps * each) for each in share]


class Moves(NamedTuple):
    """Landed and refused moves of state partitions. planned: each task's host in the end."""

    landed: int
    refused: int
    planned: Mapping[TaskId, str]


@dataclass(frozen=True, slots=True)
class PlacementFigures:
    """Measurements under one placement.

    cpu, link: used part by host. sent: shuffle bytes/s from host (row) to host (column). within, crossing: bytes/s
    between stateful tasks on one host and on two; NaN without traffic. rate: records/s. batch: median seconds. moves: to
    reach this placement. in_place: mean share of tasks on their planned hosts.
    """

    cpu: tuple[float, ...]
    link: tuple[float, ...]
    sent: tuple[tuple[float, ...], ...]
    within: float
    crossing: float
    rate: float
    batch: float
    moves: Moves
    in_place: float

    @property
    def metrics(self) -> dict[str, float]:
        found = {
            "CPU of hosts (mean, of the quota)": statistics.fmean(self.cpu),
            "CPU of hosts (deviation)": _deviation(self.cpu),
            "links of hosts (mean, of the rate)": statistics.fmean(self.link),
            "links of hosts (deviation)": _deviation(self.link),
            "records/s": self.rate,
            "batch (s)": self.batch,
            "state partitions moved": float(self.moves.landed),
            "moves refused": float(self.moves.refused),
            "tasks where planned": self.in_place,
        }
        if self.within + self.crossing > 0:
            found["between hosts, of what tasks with state send each other"] = self.crossing / (self.within + self.crossing)
        return found


def _deviation(used: Sequence[float]) -> float:
    return deviation(np.array(used), np.ones(len(used)))


def frame_of(spark: SparkSession, query: SteadyQuery) -> DataFrame:
    """Return the query's frame: drops duplicates, works on the rest, counts by a key of the partner."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", query.rows).option("numPartitions", HOSTS)
    numbers = rows.load().withColumn("payload", _bytes(query.payload)).withWatermark("timestamp", "5 seconds")
    fresh = numbers.dropDuplicatesWithinWatermark(["value"]).withColumn("p", F.expr(f"pmod(hash(value), {PARTITIONS})"))
    steps = F.element_at(F.array(*map(F.lit, query.weights())), F.col("p") + 1)
    work = F.aggregate(F.sequence(F.lit(0), steps), F.lit(0.0), lambda total, n: total + 1 / (n + 1))
    worked = fresh.withColumn("work", work if query.steps else F.lit(0.0))
    if not query.partner:
        return worked.select("value", "work", "payload")  # columns not selected would not be sent
    # Keys by the partition that Spark puts them in: with them, records choose which partition of the next stage they go to.
    keys = spark.range(8 * PARTITIONS * GROUPS).select("id", F.expr(f"pmod(hash(id), {PARTITIONS})").alias("p")).collect()
    table = [[row.id for row in keys if row.p == partition][:GROUPS] for partition in range(PARTITIONS)]
    partner = np.random.default_rng(query.seed).permutation(PARTITIONS)
    stray = F.col("value") % 1000 >= 1000 * FAVOURITE
    goal = F.when(stray, F.expr(f"pmod(hash(value, 7), {PARTITIONS})")).otherwise(
        F.element_at(F.array(*(F.lit(int(each)) for each in partner)), F.col("p") + 1)
    )
    known = F.array(*(F.array(*map(F.lit, each)) for each in table))
    group = F.element_at(F.element_at(known, goal + 1), (F.col("value") % GROUPS).cast("int") + 1)
    sent = worked.select(group.cast("long").alias("group"), "work", _bytes(query.sent).alias("sent"))
    return sent.groupBy("group").agg(F.count("*").alias("n"), F.sum("work").alias("work"), F.max("sent").alias("sent"))


def _bytes(count: int) -> Any:
    """Return about `count` incompressible characters, unique per record."""
    parts = [F.sha2(F.concat(F.col("value").cast("string"), F.lit(f"/{n}")), 512) for n in range(-(-count // 128))]
    return F.concat(*parts) if parts else F.lit("")


def begin(spark: SparkSession, queries: Sequence[SteadyQuery], directory: RunDirectory) -> None:
    """Start the queries, one batch after the other."""
    for query in queries:
        writer = frame_of(spark, query).writeStream.outputMode("update" if query.partner else "append").format("noop")
        checkpoint = writer.queryName(query.name).option("checkpointLocation", str(directory.checkpoint(query.name)))
        checkpoint.trigger(processingTime=f"{INTERVAL:g} seconds").start()


@contextlib.contextmanager
def cluster(queries: Sequence[SteadyQuery], link: Link = LINK, slots: int = HOST.slots) -> Iterator[WatchedPlant]:
    """Yield a cluster with these queries, with host links if the machine can limit them. slots: of a host."""
    assert link.bits_per_second is not None
    kind = replace(HOST, bandwidth=link.bits_per_second / 8, slots=slots)
    with tempfile.TemporaryDirectory(prefix="experiment-") as name:
        directory = RunDirectory.create(Path(name) / "runs", "placement")
        plant = start_beside(
            lambda spark: begin(spark, queries, directory),
            directory,
            RunSettings(
                cloud=Local(kind, min_hosts=HOSTS, max_hosts=HOSTS, network=link),
                target_latency=5.0,
                state_partitions=PARTITIONS,
            ),
        )
        try:
            yield plant
        finally:
            plant.close()


def network_kind(plant: WatchedPlant) -> str:
    """Return the kind of network in words."""
    if plant.hosts.provider.terms.link_rate > 0:
        rate = f"{8 * _bandwidth(plant) / 1e6:g} Mbit/s"
        return f"a network namespace each, joined by a bridge, the link limited by tc (token bucket) to {rate}, not delayed"
    return "loopback of one machine, which nothing limits: use of links is in parts of a rate that no link had"


def _bandwidth(plant: WatchedPlant) -> float:
    """Return bytes/s of a host's link, each way."""
    (kind,) = plant.context.host_types.values()
    assert kind.bandwidth is not None
    return kind.bandwidth


def settle(
    plant: WatchedPlant,
    policy: Policy,
    seconds: float,
    observe: Callable[[WatchedPlant], Observation] | None = None,
) -> Moves:
    """Let `policy` move tasks for `seconds`, asking again ROUND after each landing, until two measured rounds are quiet.

    Raises ElastreamError if a query fails or no task appears within WARMING.
    """
    _await_measured(plant)
    before, until, quiet, refused = len(plant.placing.landed), time.monotonic() + seconds, 0, 0
    planned, memory = plant.reconciler.placements(), None
    while time.monotonic() < until and quiet < 2:
        seen = (observe or _over_a_round)(plant)
        if not _measured(seen):
            continue
        plan = policy.plan(seen, memory)
        memory = plan.memory
        for action in plan.actions:
            if not plant.apply(action).succeeded:
                refused += 1
            elif isinstance(action, MoveTask):
                planned[action.task] = action.host
        quiet = 0 if plan.actions else quiet + 1
        landing = time.monotonic() + LANDING
        while plant.placing.targets() and time.monotonic() < landing:
            _looked(plant)
            time.sleep(0.5)
    return Moves(len(plant.placing.landed) - before, refused, planned)


def operators_of(plant: WatchedPlant, name: str) -> tuple[str, ...]:
    """Return a query's stages with state once its tasks are reported."""
    _await_measured(plant)
    return next(query.operators for query in plant.queries.live if query.name == name)


def _over_a_round(plant: WatchedPlant) -> Observation:
    """Return the observation after a round, with CPU use averaged over it."""
    hosts = tuple(plant.hosts.usable)
    began, before = time.monotonic(), _cpu(plant, hosts)
    while (passed := time.monotonic() - began) < ROUND:
        seen = _looked(plant)
        time.sleep(0.5)
    used = dict(zip(hosts, (np.array(_cpu(plant, hosts)) - before) / passed / HOST.cores, strict=True))
    kept = {metric: seen.hosts.column(metric) for metric in (Metric.BANDWIDTH, Metric.MEMORY, Metric.TASKS)}
    frame = Frame(seen.hosts.ids, {**kept, Metric.CPU: [used.get(host, math.nan) for host in seen.hosts.ids]})
    return replace(seen, hosts=frame)


def _await_measured(plant: WatchedPlant) -> None:
    until = time.monotonic() + WARMING
    while not _measured(_looked(plant)):
        if time.monotonic() > until:
            raise ElastreamError(f"no batch of the queries was measured within {WARMING:g} s")
        time.sleep(0.5)


def _measured(seen: Observation) -> bool:
    return len(seen.tasks) > 0 and not bool(np.isnan(seen.tasks.column(Metric.BUSY_CORES)).any())


def phase(plant: WatchedPlant, moves: Moves, seconds: float) -> PlacementFigures:
    """Measure for `seconds` under the current placement."""
    hosts = tuple(plant.hosts.usable)
    began, clock, before = time.time(), time.monotonic(), _cpu(plant, hosts)
    seen: list[Observation] = []
    sent: list[Floats] = []
    in_place: list[float] = []
    while time.monotonic() < clock + seconds:
        seen.append(_looked(plant))
        locations = plant.reconciler.locations()
        in_place.append(statistics.fmean(locations.get(task) == host for task, host in moves.planned.items()))
        assert plant.instruments.traffic is not None
        sent.append(plant.instruments.traffic.between(plant.hosts.host_of(), hosts))
        time.sleep(1.0)
    passed = time.monotonic() - clock
    cpu = tuple((b - a) / passed / HOST.cores for a, b in zip(before, _cpu(plant, hosts), strict=True))
    link = tuple(
        float(np.nanmean([each.hosts.value(host, Metric.BANDWIDTH) for each in seen])) / (2 * _bandwidth(plant))
        for host in hosts
    )
    within, crossing = np.nanmean([each.exchange.split(each.tasks.host) for each in seen], axis=0).tolist()
    batches = [batch for query in plant.queries.live for batch in query.batches if batch.rows and began <= batch.end]
    return PlacementFigures(
        cpu,
        link,
        tuple(map(tuple, np.nanmean(sent, axis=0).tolist())),
        within,
        crossing,
        sum(batch.rows for batch in batches) / passed,
        statistics.median([batch.seconds for batch in batches]) if batches else float("nan"),
        moves,
        statistics.fmean(in_place),
    )


def _cpu(plant: WatchedPlant, hosts: Sequence[str]) -> list[float]:
    measured = plant.hosts.provider.measure()
    used = [measured[host].cpu_seconds if host in measured else None for host in hosts]
    return [float("nan") if each is None else each for each in used]


def _looked(plant: WatchedPlant) -> Observation:
    seen = plant.observe()
    if gone := [query.name for query in plant.queries.all if query.run_id is None]:
        raise ElastreamError(f"the query {gone[0]!r} has failed")
    return seen
