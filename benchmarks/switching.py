"""Random switches of a running dataflow, with faults among them: what every batch ran under, and how long switches take.

    python benchmarks/switching.py [--quick] [--json FILE] [--html FILE]        about 15 minutes on two free cores

Alternates, branches, key tables and a keyed operator's alternates are switched at random in plans of one to three, with two
executors, while an operator fails, a sink fails after it has written, and executors are killed. Each batch is compared with
plain Python over the same records and the composition in Spark's offset log. Then the same, shorter, in the two modes that
are consistent across queries, so that update latency stands beside records that met two versions (thesis, p. 50).
"""

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from _common import Report, local_session, main, progress
from _switching import FAILING, Trial, sampled

from elastream.core.composition import Consistency

SWITCHES = {Consistency.BATCH: 1000, Consistency.WAVE: 200, Consistency.DRAIN: 60}
QUICK = {Consistency.BATCH: 30, Consistency.WAVE: 12, Consistency.DRAIN: 8}
CLUSTER = "local-cluster[2,1,1024]"
"""Executors, cores of each, megabytes of each."""


def faults(switches: int, times: int) -> dict[int, str]:
    """Each fault `times`, spread evenly over so many switches."""
    every = switches // (times * len(FAILING) + 1)
    return {every * (number + 1): FAILING[number % len(FAILING)] for number in range(times * len(FAILING))}


def measure(arguments: argparse.Namespace) -> Report:
    """The three modes, one after the other."""
    folder = Path(tempfile.mkdtemp(prefix="switching-"))
    spark = local_session("switching", folder, {"spark.master": CLUSTER, "spark.executor.memory": "1g"})
    report = Report(environment={"master": CLUSTER})
    try:
        for mode, switches in (QUICK if arguments.quick else SWITCHES).items():
            (folder / mode).mkdir()
            trial = Trial(spark, folder / mode, mode)
            few = mode is not Consistency.BATCH or arguments.quick
            trial.run(switches, faults(switches, 1 if few else 3))
            found = trial.check()
            report.figures[mode] = figures = described(trial, found)
            progress(f"{mode}: {figures}")
            for what in sorted(found):
                if what.startswith(("replays checked", "totals checked", "batches checked")) or what == "replays":
                    continue
                if what == "batches with records of another version" and mode is Consistency.BATCH:
                    continue  # what this mode allows, and the others do not
                report.at_most(f"{mode}: {what}", found[what], 0.0, "the project's bar")
            report.at_least(f"{mode}: switches", trial.switches, switches, "the project's bar")
            report.at_least(f"{mode}: executors killed", trial.killed, 1, "the project's bar")
            report.at_least(f"{mode}: queries that failed and were started again", trial.restarts, 2, "the project's bar")
        report.paper = {"update latency": "drained: very high; re-wired: very fast, and inconsistent (p. 50, no figures)"}
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return report


def described(trial: Trial, found: Any) -> dict[str, Any]:
    """The figures of one mode."""
    return {
        "switches": trial.switches,
        "plans": len(trial.requested),
        "batches checked": found["batches checked"],
        "totals checked": found["totals checked"],
        "replays": found["replays"],
        "restarts": trial.restarts,
        "failures that nobody asked for": trial.failures,
        "executors killed": trial.killed,
        "update latency, seconds": sampled(trial.latencies),
        "batches to effect": sampled(trial.lags),
        "mixed records": trial.figures["mixed records"],
        "batches with records of another version": found.get("batches with records of another version", 0),
    }


def line(report: Report) -> str:
    """The benchmark in one line."""
    parts = [
        f"{mode} {each['switches']} switches over {each['batches checked']} batches, update latency "
        f"{each['update latency, seconds']['median']:.2f} s, {each['mixed records']:.0f} records mixed"
        for mode, each in report.figures.items()
    ]
    return "; ".join(parts)


if __name__ == "__main__":
    main("switching", __doc__.splitlines()[0], measure, line)
