"""Linear Road under `ce` on Spark, with a load that quadruples and a host that loses half of its cores. 5 minutes a run."""

import argparse
import math
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from _common import Report, in_random_order, main

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import linear_road  # type: ignore[import-not-found]

from elastream.api.run import commanded

SOURCE = "the project's bar, on Spark"
QUERIES = 5


def one_run() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="linear-road-") as folder, commanded(runs=Path(folder) / "runs"):
        given = linear_road.Plan.of()
        _, checked, told = linear_road.carry_out(given, Path(folder) / "results", show=False)
        waits = {name: each[0] for name, each in checked.responses.items()}
        return {
            **asdict(told),
            **{f"{name} within 5 s": float((each <= linear_road.LIMIT).mean()) for name, each in waits.items()},
            **{f"{name}, median s": statistics.median(each.tolist()) for name, each in waits.items()},
            "rows": float(checked.notices + checked.accounts + checked.answers),
            "wrong": float(len(checked.wrong)),
        }


def measure(arguments: argparse.Namespace) -> Report:
    runs = in_random_order(["linear road"], arguments.rounds, lambda _: one_run())["linear road"]
    report = Report()
    for name in runs[0]:
        values = [run[name] for run in runs]
        known = [value for value in values if not math.isnan(value)]
        report.figures[name] = {"median": statistics.median(known) if known else math.nan, "runs": values}
    report.median_at_least("relative throughput of the step", [run["throughput"] for run in runs], 0.8, SOURCE)
    first = [run["switched"] <= run["leased"] or math.isnan(run["leased"]) for run in runs]
    report.at_least("runs in which alternates were switched before a host was leased", sum(first), len(runs), SOURCE)
    report.at_least("runs in which a host was leased", sum(run["leased"] >= 0 for run in runs), len(runs), SOURCE)
    seen = sum(run["noticed"] >= 0 and run["answered"] >= 0 for run in runs)
    report.at_least("runs in which the loss of half of a host was noticed and answered", seen, len(runs), SOURCE)
    report.at_most("queries started again", sum(run["query_runs"] - QUERIES for run in runs), 0, SOURCE)
    report.at_most("rows that differ from plain loops", sum(run["wrong"] for run in runs), 0, SOURCE)
    report.environment["hosts"] = f"{linear_road.HOSTS[0]} to {linear_road.HOSTS[1]} of {linear_road.HOST.cores:g} cores"
    return report


if __name__ == "__main__":
    main("linear_road_on_spark", __doc__, measure, rounds=5)
