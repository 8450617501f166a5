"""The Spark plant keeps the contract that policies rely on: the suite that every plant takes, with real hosts."""

import tempfile
from pathlib import Path

import pytest

from conformance.suite import PlantCase, conformance_suite
from elastream import Dataflow, HostType, Local
from elastream.core.promises import PlantKind
from elastream.dataflow.endpoints import parquet, records
from elastream.loads import constant
from elastream.recording.directory import RunDirectory
from elastream.settings import RunSettings
from elastream.spark.plant import SparkPlant
from elastream.spark.start import start_plant

TINY = HostType("tiny", cores=1.0, slots=1, memory=1000.0)


def start() -> SparkPlant:
    root = Path(tempfile.mkdtemp(prefix="conforms-"))
    flow = Dataflow("conforms")
    lines = flow.source(records([{"value": "a b c"}], "value string"), load=constant("50/s"))
    words = lines.flat_map({"all": str.split, "first": lambda line: line.split()[:1]}, returns="word string", name="split")
    words.signal("seen", "count()")
    words.key_by("word").count().sink(parquet(root / "out"))
    directory = RunDirectory.create(root / "runs", "conforms")
    settings = RunSettings(cloud=Local(TINY, max_hosts=4), target_latency=2.0, state_partitions=4)
    return start_plant(flow.graph, directory, settings)


def lose(plant: SparkPlant, host: str) -> None:
    plant.hosts.provider.cluster.kill(host)  # type: ignore[attr-defined]


CASE = PlantCase("spark", start, PlantKind.DATAFLOW, settle=300.0, examples=2, shared=True, lose=lose)


@pytest.mark.spark
@pytest.mark.slow
class TestSparkPlant(conformance_suite(CASE)):  # type: ignore[misc]
    """The whole suite on one plant."""
