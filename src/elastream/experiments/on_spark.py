"""Runs a dataflow of an experiment on a local Spark cluster, and returns its recording.

Loop, plant and recording are those of `run(...)`, without signal handlers, report and live view.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastream.clouds.local.local import Local
from elastream.control.loop import Loop
from elastream.model.errors import ElastreamError
from elastream.model.flow import Dataflow
from elastream.model.plant import Policy
from elastream.recording.directory import RunDirectory
from elastream.recording.observer import describe_run
from elastream.recording.recorder import Collector, Recording
from elastream.spark.dataflow.corpus import replayed
from elastream.spark.dataflow.sources import CORPUS
from elastream.spark.start import start_plant

__all__ = ["SparkRun", "run_on_spark"]


@dataclass(frozen=True, slots=True)
class SparkRun:
    """Result of a run on Spark: its recording, its facts, and whether `check` confirmed its results."""

    recording: Recording
    facts: Mapping[str, float | str]
    exact: bool
    confinement: str


def run_on_spark(
    build: Callable[[Path], Dataflow],
    policy: Policy,
    cloud: Local,
    *,
    check: Callable[[Path, Mapping[str, Any]], bool],
    target_latency: float,
    state_partitions: int,
    batch_seconds: float | None = None,
    monitor: float = 1.0,
    period: float = 2.0,
    limit: float = 600.0,
) -> SparkRun:
    """Run the dataflow of `build(folder)` until its load ends, in a temporary folder.

    check: returns whether the results in the folder are correct, given the committed records of each shaped source. Raises
    ElastreamError if the run fails or does not end within `limit` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="experiment-") as name:
        folder = Path(name)
        flow = build(folder)
        directory = RunDirectory.create(folder / "runs", flow.graph.name)
        plant = start_plant(
            flow.graph,
            cloud,
            directory,
            target_latency=target_latency,
            state_partitions=state_partitions,
            batch_seconds=batch_seconds,
        )
        try:
            collector = Collector()
            header = describe_run(plant.context, policy=policy.name, plant="spark")
            loop = Loop(
                plant,
                policy,
                monitor=monitor,
                period=period,
                observers=[collector],
                limit=limit,
                header=header,
                facts=plant.facts,
            )
            ending = loop.run()
        finally:
            plant.close()
        if ending.status != "finished":
            raise ElastreamError(f"the run of {flow.graph.name!r} under {policy.name!r} {ending.status}: {ending.reason}")
        taken = {source: replayed(control / CORPUS, count) for source, (control, count) in plant.queries.taken().items()}
        return SparkRun(collector.recording, ending.facts, check(folder, taken), plant.confinement)
