"""What every benchmark here shares: arguments, progress, the checks and how they are printed, interleaved A/B runs.

A machine that is shared makes single timings worthless; two ways of doing a thing are run in turn, and their ratio is taken
round by round, so that what slows one round down slows both sides of it. What is measured is left to each benchmark.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from elastream.errors import InputError
from elastream.evaluation import findings
from elastream.evaluation.experiments import Progress
from elastream.evaluation.findings import Check, Findings, check_table
from elastream.evaluation.page import Page, Prose, render
from elastream.spark.jvm.session import session_settings
from elastream_papers.harness.checks import median_at_least, median_at_most

FILES = ("--json", "--html", "--kept")
"""Options that name a file."""


@dataclass
class Report:
    """What a benchmark found, as `--json` writes it."""

    figures: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)

    def at_least(self, name: str, value: float, bar: float, source: str) -> None:
        """Check that `value` reaches `bar`: of what comes out the same whenever it is measured."""
        self.checks.append(Check.at_least(name, value, bar, source))

    def at_most(self, name: str, value: float, bar: float, source: str) -> None:
        """Check that `value` does not exceed `bar`: of what comes out the same whenever it is measured."""
        self.checks.append(Check.at_most(name, value, bar, source))

    def median_at_least(self, name: str, runs: Sequence[float], bar: float, source: str) -> None:
        """Check that the median of what `runs` are drawn from reaches `bar`; few runs leave it undecided."""
        self.checks.append(median_at_least(name, runs, bar, source))

    def median_at_most(self, name: str, runs: Sequence[float], bar: float, source: str) -> None:
        """Check that the median of what `runs` are drawn from does not exceed `bar`; few runs leave it undecided."""
        self.checks.append(median_at_most(name, runs, bar, source))


@dataclass(frozen=True)
class Sides:
    """Interleaved measurements of two ways, A and B: one value a round each."""

    a: tuple[float, ...]
    b: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """A over B, round by round."""
        return tuple(a / b for a, b in zip(self.a, self.b, strict=True))

    @property
    def ratio(self) -> float:
        """Median of the rounds' ratios."""
        return statistics.median(self.ratios)

    def figures(self, a: str, b: str) -> dict[str, Any]:
        """Medians and spread, with the two ways by name."""
        return {
            a: with_median(self.a),
            b: with_median(self.b),
            "ratio": {"median": self.ratio, "quartiles": _quartiles(self.ratios), "runs": self.ratios},
        }


def interleaved(a: Callable[[], float], b: Callable[[], float], rounds: int, what: str = "") -> Sides:
    """Run A and B in turn, `rounds` times each; who goes first alternates, because the second finds warmer caches."""
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


def each_check(report: Report) -> str:
    """Every check with its value, on one line: for benchmarks that have nothing else to say."""
    return "; ".join(f"{check.name}: {check.value:.3g}" for check in report.checks)


def with_median(runs: Sequence[float]) -> dict[str, Any]:
    """The runs as a figure has them."""
    return {"median": statistics.median(runs), "runs": runs}


def wait_until(holds: Callable[[], bool], limit: float) -> None:
    """Until `holds()`; raises TimeoutError after `limit` seconds."""
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
    """Print a progress line to stderr; results go to stdout."""
    print(text, file=sys.stderr, flush=True)


def counting(every: int, what: str) -> Progress:
    """Return a callback that prints how many cases are done, after every so many of them."""

    def show(case: str, done: int, total: int) -> None:
        if done % every == 0 or done == total:
            progress(f"{done} of {total} {what}" + (f": {case}" if every == 1 else ""))

    return show


def environment(**more: object) -> dict[str, Any]:
    """Where the figures come from."""
    import pyarrow
    import pyspark

    return findings.environment(pyspark=pyspark.__version__, pyarrow=pyarrow.__version__, **more)


def local_session(name: str, folder: Path, extra: Mapping[str, str] | None = None, cores: int = 2) -> SparkSession:
    """A session in this process with the settings of an Elastream run, for both sides of a comparison alike."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]").appName(name)
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
    session: SparkSession = builder.getOrCreate()
    return session


def main(
    name: str,
    description: str,
    measure: Callable[[argparse.Namespace], Report],
    line: Callable[[Report], str],
    more: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
) -> None:
    """Parse arguments, measure, print one line, write files; ends the process, with status 1 where a check fails, and with
    2 and a sentence where `measure` raises InputError.

    more: adds arguments of the benchmark's own.
    """
    parser = argparse.ArgumentParser(prog=f"python benchmarks/{name}.py", description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write figures, checks and environment")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write them as one page")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: shows that it works, proves less")
    more(parser)
    arguments = parser.parse_args()
    about = environment(command=" ".join(("python", f"benchmarks/{name}.py", *_without_files(sys.argv[1:]))))
    began = time.monotonic()
    try:
        report = measure(arguments)
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    about["minutes"] = round((time.monotonic() - began) / 60, 1)
    page = (Prose(description), Prose(line(report)), check_table(report.checks, "measured"))
    about |= report.environment
    found = Findings(report.figures, report.paper, tuple(report.checks), Page(name, page), about, line(report))
    if arguments.json:
        write(arguments.json, json.dumps(_known(found.to_json()), indent=1, allow_nan=False) + "\n")
    if arguments.html:
        write(arguments.html, render(found.page))
    told = [f"{c.verdict}: {c.name} {c.value:.3g} ({c.bound})" for c in report.checks if c.verdict != "held"]
    print(f"{name}: {line(report)} - {', '.join(told) or 'every bar is held'}")
    sys.exit(0 if found.holds else 1)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _known(value: Any) -> Any:
    """`value` with null for what was not measured, or never came."""
    if isinstance(value, Mapping):
        return {key: _known(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_known(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _without_files(words: Sequence[str]) -> list[str]:
    """The arguments that decide what is measured."""
    kept = []
    for before, word in pairwise(("", *words)):
        if not word.startswith(FILES) and before not in FILES:
            kept.append(word)
    return kept
