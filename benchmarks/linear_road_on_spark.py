"""Linear Road on Spark, with a load that quadruples and a host that loses half of its cores. 5 minutes a run."""

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from _common import Report, in_random_order, main

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import linear_road  # type: ignore[import-not-found]

from elastream.api.run import commanded
from elastream.core.plant import Policy
from elastream.documents.registry import POLICY, made
from elastream.documents.user_code import References

SOURCE = "the project's bar, on Spark"
QUERIES = 5
WORTH = dict(zip(("break_even_best", "break_even_worst"), linear_road.WORTH, strict=True))
AHEAD = {**WORTH, "step": 10.0, "horizon": 40.0, "renew": 20.0}  # seconds; the load's steps last minutes, not hours
BRED = {**WORTH, "population": 40, "generations": 60, "seconds": 2.0}  # less than half of a round
POLICIES: Mapping[str, Mapping[str, float]] = {
    "ce": WORTH, "sh": WORTH, "genetic": BRED, "hybrid": BRED, "plasticc": AHEAD, "caf": AHEAD, "horizon": {},
}  # fmt: skip


def policy_of(name: str) -> Policy:
    policy: Policy = made(POLICY, name, POLICIES[name], References(Path()))
    return policy


def one_run(policy: Policy, batch: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="linear-road-") as folder, commanded(runs=Path(folder) / "runs"):
        given = linear_road.Plan.of()
        results = Path(folder) / "results"
        _, checked, told = linear_road.carry_out(given, results, show=False, policy=policy, batch=batch)
        waits = {name: each[0] for name, each in checked.responses.items()}
        return {
            **asdict(told),
            **{f"{name} within 5 s": float((each <= linear_road.LIMIT).mean()) for name, each in waits.items()},
            **{f"{name}, median s": statistics.median(each.tolist()) for name, each in waits.items()},
            "rows": float(checked.notices + checked.accounts + checked.answers),
            "wrong": float(len(checked.wrong)),
        }


def measure(arguments: argparse.Namespace) -> Report:
    name, batch = arguments.policy, arguments.batch
    runs = in_random_order([name], arguments.rounds, lambda _: one_run(policy_of(name), batch))[name]
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


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", choices=tuple(POLICIES), default="ce")
    seconds = f"from one batch of a query to the next; default {linear_road.BATCH:g}"
    parser.add_argument("--batch", type=float, metavar="SECONDS", default=linear_road.BATCH, help=seconds)


if __name__ == "__main__":
    main("linear_road_on_spark", __doc__, measure, more, rounds=5)
