"""Bytes that a move of a state partition loads: predicted before it, over read by its executor. 10 minutes.

A count on three hosts, of which one holds no state: partitions move onto it and back, in both stores. What an executor read
is what Hadoop's file system counted there, which is the checkpoint and nothing else.
"""

import argparse
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import Report, main, progress

from elastream.core.action import MoveTask
from elastream.settings import StateStore
from elastream_papers.thesis.resilience.bed import Bed, bed
from elastream_papers.thesis.resilience.job import Job

HOSTS, MOVES, QUICK_MOVES = 3, 6, 2
JOB = Job(keys=400_000, rows=20_000, pace=4.0)
STORES: tuple[StateStore, ...] = ("memory", "disk")
TOLERANCE, BAR = 0.25, 0.9
# Seconds between the figures that an executor writes.
PERIOD = 1


def counted(folder: Path) -> dict[str, str]:
    """Return the settings by which executors write what their file systems read."""
    sink = "spark.metrics.conf.executor.sink.csv"
    return {
        f"{sink}.class": "org.apache.spark.metrics.sink.CsvSink",
        f"{sink}.directory": str(folder),
        f"{sink}.period": str(PERIOD),
        f"{sink}.unit": "seconds",
    }


def read_by(folder: Path, executor: str) -> float:
    """Return the MB that `executor` has read by now."""
    time.sleep(2 * PERIOD)
    (file,) = folder.glob(f"*.{executor}.executor.filesystem.file.read_bytes.csv")
    return float(file.read_text().split()[-1].split(",")[1]) / 1e6


def moved(made: Bed, folder: Path, number: int, empty: str) -> dict[str, Any]:
    """Move a partition to the host without state, and back; return what the first move loaded."""
    placing = made.plant.placing
    task = sorted(placing.tasks)[number % len(placing.tasks)]
    home = made.plant.reconciler.locations()[task]
    executor = next(each for each, host in made.plant.hosts.host_of().items() if host == empty)
    before, so_far = read_by(folder, executor), len(placing.landed)
    outcome = made.plant.apply(MoveTask(task, empty))
    made.until(lambda seen: len(placing.landed) > so_far)
    predicted, read = placing.landed[-1].megabytes, read_by(folder, executor) - before
    made.plant.apply(MoveTask(task, home))
    made.until(lambda seen: len(placing.landed) > so_far + 1)
    made.more(3)  # the store that was left is closed
    return {"predicted": predicted, "read": read, "ratio": predicted / read if read else math.nan, "said": outcome.reason}


def measured(store: StateStore, moves: int) -> list[dict[str, Any]]:
    found = []
    with tempfile.TemporaryDirectory(prefix="moves-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with bed(JOB, HOSTS, state_store=store, settings=counted(folder), steady=3) as made:
            *others, empty = made.plant.hosts.usable
            for number, task in enumerate(sorted(made.plant.placing.tasks)):
                made.plant.apply(MoveTask(task, others[number % len(others)]))
            made.settled()
            for number in range(moves):
                found.append(moved(made, folder, number, empty))
                progress(f"{store}: {found[-1]}")
    return found


def measure(arguments: argparse.Namespace) -> Report:
    report = Report()
    moves = QUICK_MOVES if arguments.quick else MOVES
    report.figures = {store: measured(store, moves) for store in STORES}
    ratios = [each["ratio"] for found in report.figures.values() for each in found]
    near = [abs(ratio - 1) <= TOLERANCE for ratio in ratios]
    report.figures["median of predicted over read"] = statistics.median(ratios)
    report.at_least(f"share of {len(ratios)} moves predicted within {TOLERANCE:.0%}", statistics.mean(near), BAR)
    return report


if __name__ == "__main__":
    main("state_moves", __doc__, measure)
