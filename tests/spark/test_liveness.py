"""Sources that declare no load: the default policy leases hosts when they overload the first one, by what it can observe.

The work is more than the first host can do, which backlog, latency or busy cores must tell.
"""

import sys
import threading
import time
from pathlib import Path

import pytest
from pyspark import cloudpickle

from elastream import Autopilot, Dataflow, HostType, Local
from elastream.control.loop import Loop
from elastream.core.action import LeaseHost
from elastream.core.latency import Basis, basis_text
from elastream.dataflow.endpoints import parquet, text_files
from elastream.policies import Threshold
from elastream.recording.directory import RunDirectory
from elastream.recording.observer import describe_run
from elastream.recording.recorder import Collector, Recording
from elastream.report.page import render
from elastream.settings import RunSettings
from elastream.spark.start import start_plant
from support.foreign_sessions import TINY, one_executor
from support.waiting import wait_until

# Executors do not find this file: what runs there travels with the query.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [pytest.mark.spark, pytest.mark.slow]
SMALL = HostType("small", cores=0.4, slots=1, memory=1000.0)
WORK = 0.004
"""Core-seconds that one record takes."""


def busy(value: object) -> object:
    """Work on a record."""
    until = time.thread_time() + WORK
    while time.thread_time() < until:
        pass
    return str(value)


def drop_files(folder: Path, stop: threading.Event) -> None:
    """Move files of more and more lines to `folder`, one a second."""
    number = 0
    while not stop.wait(1.0):
        number += 1
        hidden = folder / f".{number}"
        hidden.write_text("a line\n" * min(20 * number, 300))
        hidden.rename(folder / f"{number}.txt")


def test_hosts_are_leased_for_files_that_come_at_a_rising_rate(tmp_path):
    stop, folder = threading.Event(), tmp_path / "in"
    folder.mkdir()
    (folder / "0.txt").write_text("a line\n")
    flow = Dataflow("overloaded")
    flow.source(text_files(folder), name="in").map(busy, returns="value string", name="work").sink(
        parquet(tmp_path / "out")
    )
    directory = RunDirectory.create(tmp_path / "runs", "overloaded")
    plant = start_plant(
        flow.graph, directory, RunSettings(cloud=Local(SMALL, max_hosts=3), target_latency=5.0, state_partitions=2)
    )
    kept = Collector()
    header = describe_run(plant.context, policy="threshold", plant="spark", started=plant.clock.epoch)
    loop = Loop(plant, Threshold(), observers=[kept], header=header)
    thread = threading.Thread(target=loop.run)
    thread.start()
    threading.Thread(target=drop_files, args=(folder, stop), daemon=True).start()
    try:
        wait_until(lambda: len(plant.ledger) > 1 and kept.recording.latency_basis == {"in": Basis.FILES}, look=1.0)
    finally:
        loop.stop()
        thread.join()
        plant.close()
        stop.set()
    leased = [each.action for decision in kept.recording.decisions for each in decision.done]
    assert any(isinstance(action, LeaseHost) for action in leased)
    assert basis_text(kept.recording.latency_basis) in render(kept.recording)


def test_autopilot_leases_a_host_beside_a_plain_job_that_is_overloaded(tmp_path):
    with one_executor(tmp_path / "cluster") as (spark, _):
        rate = spark.readStream.format("rate").option("rowsPerSecond", 400).load()
        worked = rate.mapInPandas(
            lambda parts: (part.assign(value=part["value"].map(work_on)) for part in parts), rate.schema
        )
        writer = worked.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).queryName("q")
        query = writer.trigger(processingTime="500 milliseconds").start()
        folder = tmp_path / "run"
        options = {"target_latency": "2s", "cloud": Local(TINY, max_hosts=2), "max_hosts": 2, "folder": folder}
        with Autopilot(spark, **options).watch(query) as pilot:
            wait_until(lambda: pilot.plant is not None and len(pilot.plant.ledger) > 1, look=1.0)
        assert pilot.join(60)
        assert Recording.read(folder).latency_basis == {"q": Basis.BOUND}
        query.stop()


def work_on(value: int) -> int:
    """The same work, on a number."""
    busy(value)
    return value
