"""Shared parts of the benchmarks: arguments, progress, bars, and interleaved runs of two ways.

Two ways run in turn, and their ratio is taken per round, so that a disturbance slows both sides.
"""

import argparse
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import psutil
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from elastream.cli.experiment import save
from elastream.errors import ElastreamError
from elastream.evaluation import findings
from elastream.evaluation.checks import median_at_least, median_at_most
from elastream.evaluation.experiments import Progress
from elastream.evaluation.findings import Check, Findings, check_table
from elastream.evaluation.page import Page, Prose
from elastream.spark.jvm.session import session_settings

OURS = "the project's bar"
R = TypeVar("R")
EXECUTOR = "CoarseGrainedExecutorBackend"  # in the command line of an executor
FILES = ("--json", "--html", "--kept")  # options that name a file


@dataclass
class Report:
    figures: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)

    def at_least(self, name: str, value: float, bar: float, source: str = OURS) -> None:
        self.checks.append(Check.at_least(name, value, bar, source))

    def at_most(self, name: str, value: float, bar: float, source: str = OURS) -> None:
        self.checks.append(Check.at_most(name, value, bar, source))

    def median_at_least(self, name: str, runs: Sequence[float], bar: float, source: str = OURS) -> None:
        self.checks.append(median_at_least(name, runs, bar, source))

    def median_at_most(self, name: str, runs: Sequence[float], bar: float, source: str = OURS) -> None:
        self.checks.append(median_at_most(name, runs, bar, source))


@dataclass(frozen=True)
class Sides:
    """Interleaved measurements of two ways, A and B: one value per round each."""

    a: tuple[float, ...]
    b: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(a / b for a, b in zip(self.a, self.b, strict=True))

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    def figures(self, a: str, b: str) -> dict[str, Any]:
        return {
            a: with_median(self.a),
            b: with_median(self.b),
            "ratio": {"median": self.ratio, "quartiles": _quartiles(self.ratios), "runs": self.ratios},
        }


def interleaved(a: Callable[[], float], b: Callable[[], float], rounds: int, what: str = "") -> Sides:
    """Run A and B in turn, `rounds` times each; the first one alternates, because the second run finds warmer caches."""
    first: list[float] = []
    second: list[float] = []
    for number in range(rounds):
        if number % 2 == 0:
            first.append(a())
            second.append(b())
        else:
            second.append(b())
            first.append(a())
        progress(f"{what} round {number + 1} of {rounds}: {first[-1]:.4g} against {second[-1]:.4g}")
    return Sides(tuple(first), tuple(second))


def in_random_order(ways: Sequence[str], rounds: int, measured: Callable[[str], R]) -> dict[str, list[R]]:
    """Measure each way once a round, the ways of a round in random order."""
    chance = random.Random(1)
    results: dict[str, list[R]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in chance.sample(ways, len(ways)):
            results[way].append(measured(way))
            progress(f"round {number + 1} of {rounds}, {way}: {results[way][-1]}")
    return results


def median_batch(query: StreamingQuery, first: int, last: int, rows: int) -> float:
    """Wait for batch `last`, and return the median seconds of the batches from `first` on, all of multiples of `rows`."""
    while query.lastProgress is None or query.lastProgress["batchId"] < last:
        if (error := query.exception()) is not None:
            raise error
        time.sleep(0.02)
    measured = [each for each in query.recentProgress if first <= each["batchId"] <= last]
    assert all(each["numInputRows"] % rows == 0 for each in measured)
    return float(statistics.median(each["durationMs"]["triggerExecution"] / 1000 for each in measured))


def write_changes(out: Path, frame: DataFrame, batch: int) -> None:
    """Write the rows of a batch as the sinks of a dataflow do."""
    target = out / f"batch={batch}"
    target.mkdir(parents=True, exist_ok=True)
    pq.write_table(frame.toArrow(), target / ".changes.parquet")
    os.replace(target / ".changes.parquet", target / "changes.parquet")


def processes_below(*texts: str, root: int | None = None) -> list[psutil.Process]:
    """Return the processes below this one, or below `root`, whose command lines contain each of `texts`."""
    matching = []
    with suppress(psutil.NoSuchProcess):
        for each in psutil.Process(root).children(recursive=True):
            with suppress(psutil.Error):
                command = each.cmdline()
                if all(any(text in part for part in command) for text in texts):
                    matching.append(each)
    return sorted(matching, key=lambda each: each.pid)


def with_median(runs: Sequence[float]) -> dict[str, Any]:
    return {"median": statistics.median(runs), "runs": runs}


def wait_until(holds: Callable[[], bool], limit: float) -> None:
    until = time.monotonic() + limit
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {limit:g} s")
        time.sleep(0.2)


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def counting(every: int, what: str) -> Progress:
    """Return a callback that prints how many cases are done, at regular intervals."""

    def show(case: str, done: int, total: int) -> None:
        if done % every == 0 or done == total:
            progress(f"{done} of {total} {what}" + (f": {case}" if every == 1 else ""))

    return show


def environment(**more: object) -> dict[str, Any]:
    return findings.environment(pyspark=version("pyspark"), pyarrow=version("pyarrow"), **more)


def cpu_of_all() -> float:
    """Return the CPU seconds of this process and all below it, ended ones included."""
    me, spent = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            spent += times.user + times.system + times.children_user + times.children_system
    return spent


def files_below(folder: Path) -> tuple[int, float]:
    """Return the number of files and folders below `folder`, and their megabytes."""
    count, size = 0, 0
    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            with suppress(OSError):  # removed meanwhile
                size += os.lstat(os.path.join(root, name)).st_size
                count += 1
    return count, size / 1e6


@contextmanager
def local_session(name: str, extra: Mapping[str, str] | None = None) -> Iterator[tuple[SparkSession, Path]]:
    """Open a session in this process with the settings of an Elastream run, for both sides of a comparison alike."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with TemporaryDirectory(prefix=f"{name}-", ignore_cleanup_errors=True) as root:
        folder = Path(root)
        builder = SparkSession.builder.master("local[2]").appName(name)
        settings = {
            **session_settings(),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "scratch"),
            **(extra or {}),
        }
        for key, value in settings.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        try:
            yield spark, folder
        finally:
            spark.stop()


def main(
    name: str,
    description: str,
    measure: Callable[[argparse.Namespace], Report],
    more: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
    *,
    rounds: int | None = None,
) -> None:
    """Parse arguments, measure, print the bars, write files, and exit with 1 if a bar is missed, 2 for an ElastreamError.

    Args:
        more: Adds arguments of the benchmark's own.
        rounds: Default of `--rounds`; None: the benchmark has no rounds.
    """
    description, *_ = description.splitlines()
    parser = argparse.ArgumentParser(prog=f"python benchmarks/{name}.py", description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write figures, checks and environment")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write them as one page")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: shows that it works, proves less")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, metavar="N", help=f"default {rounds}; with --quick 1")
    more(parser)
    arguments = parser.parse_args()
    if rounds is not None and arguments.rounds is None:
        arguments.rounds = 1 if arguments.quick else rounds
    about = environment(command=" ".join(("python", f"benchmarks/{name}.py", *_without_files(sys.argv[1:]))))
    began = time.monotonic()
    try:
        report = measure(arguments)
        about |= {"minutes": round((time.monotonic() - began) / 60, 1), **report.environment}
        page = Page(name, (Prose(description), check_table(report.checks, "measured")))
        figures = finite(report.figures)
        outcome = Findings(figures, report.paper, tuple(report.checks), page, about, findings.counted(report.checks))
        save(Console(), outcome.to_json(), outcome.page, arguments.html, arguments.json)
    except ElastreamError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    for each in report.checks:
        print(f"{each.verdict}: {each.name} {each.value} ({each.bound})")
    print(f"{name}: {outcome.verdict}")
    sys.exit(0 if outcome.holds else 1)


def main_of_parts(
    name: str, description: str, parts: Mapping[str, Callable[[Report, bool], None]], **environment: str
) -> None:
    """Run `main` for a benchmark of several parts, of which `--part` chooses one. A part takes the report and `--quick`."""

    def measure(arguments: argparse.Namespace) -> Report:
        report = Report(environment={**environment})
        for each in parts if arguments.part is None else (arguments.part,):
            parts[each](report, arguments.quick)
        return report

    main(name, description, measure, lambda parser: parser.add_argument("--part", choices=tuple(parts)))


def finite(value: Any) -> Any:
    """Return `value` with null for figures that are unknown or infinite."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _without_files(words: Sequence[str]) -> list[str]:
    """Return the arguments that determine the measurement."""
    pairs = pairwise(("", *words))
    return [word for before, word in pairs if not word.startswith(FILES) and before not in FILES]
