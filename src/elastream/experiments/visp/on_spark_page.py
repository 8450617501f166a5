"""Page of the VISP experiment on Spark: costs and compliance side by side, curves, bars. `on_spark` measures the figures.

Tables never mix figures from Spark with simulated ones; the paper's have separate rows.
"""

import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version

from elastream.experiments.cases import ExperimentOptions
from elastream.experiments.findings import Check, Findings, check_table, counted, environment
from elastream.experiments.page import Block, Heading, Page, Plot, Prose, Table, comparison_table, hosts_plot, load_line
from elastream.experiments.visp.bars import Statistic
from elastream.experiments.visp.on_spark import (
    JUDGED,
    MONITORING,
    PAIRS,
    POLICIES,
    PROVISIONING,
    QUEUE,
    SECOND_QUEUE,
    STEP,
    UNIT,
    VispSparkRun,
    bars,
    run_pair,
    tabulate,
)
from elastream.experiments.visp.page import written
from elastream.experiments.visp.paper import TABLES

PAPER = TABLES["stepwise"]
SCALE: tuple[tuple[str, str, str, str], ...] = (
    ("billing time unit (s)", "600, 1800 and 3600", f"{UNIT:g}", "BTU10 in a tenth of its time"),
    ("a step of the load (s)", "240", f"{STEP:g}", "as the unit"),
    ("monitoring and provisioning (s)", "15 and 60", f"{MONITORING:g} and {PROVISIONING:g}", "as the unit"),
    ("a machine's emissions (s apart)", "0.48", "4", "two cores read two displays a second by OCR, not seventeen"),
    ("cores of a host", "4", "0.5", "as the rate; two hosts are always there, at most four"),
    ("waiting items that call for one instance, two", "50, 250", f"{QUEUE:g}, {SECOND_QUEUE:g}", "an eighth of the rate"),
    ("start of a host (s)", "30 to 60", "as it comes", "a real process starts; it is a larger part of a unit than there"),
    (
        "service levels",
        "Table 2",
        "five times Table 2",
        "in micro-batches an item waits for the next one and passes with it",
    ),
    (
        "items",
        "of every operator, one in ten measured",
        "all those of "
        + ", ".join(sorted({sensor for sensor, _ in JUDGED.values()}))
        + ", to OEE value, report and warning",
        "Spark runs as one query what needs no shuffle; between two commits nothing is measured",
    ),
    (
        "O2, O6",
        "without state",
        "keyed by machine, so never scaled",
        "a warning is of a new defect, which needs the last one",
    ),
    ("penalty of a late item", "0.0001", "so that all late items cost the same part of the hosts", "fewer items"),
)
"""(what, paper, here, why)."""


def run_visp_spark(options: ExperimentOptions) -> Findings:
    """Run both policies in pairs, each run on a cluster of its own, the second pair in the other order.

    quick: one pair of a shorter load, gone through once.
    """
    begun, runs = time.monotonic(), list[VispSparkRun]()
    pairs = 1 if options.quick else PAIRS
    for number in range(pairs):
        for run in run_pair(options.quick, swapped=number % 2 == 1):
            runs.append(run)
            options.progress(f"pair {number + 1}, {run.policy}", len(runs), pairs * len(POLICIES))
    return outcome(runs, time.monotonic() - begun)


def outcome(runs: Sequence[VispSparkRun], seconds: float) -> Findings:
    """The findings of the runs."""
    checks, table = bars(runs), tabulate(runs)
    return Findings(
        {
            "policies": {name: {metric: list(each.values) for metric, each in of.items()} for name, of in table.items()},
            "pairs": len(runs) // len(POLICIES),
            "penalty of an item": runs[0].penalty,
            "seconds": round(seconds, 1),
        },
        {name: {metric: row[f"{name} 10"].mean for metric, row in PAPER.rows.items()} for name in POLICIES},
        checks,
        _page(runs, checks, table),
        environment(plant="spark", spark=version("pyspark"), hosts=runs[0].confinement, seconds=round(seconds, 1)),
    )


def _page(runs: Sequence[VispSparkRun], checks: Sequence[Check], table: Mapping[str, Mapping[str, Statistic]]) -> Page:
    blocks: list[Block] = [
        Prose(
            "Cost-efficient enactment of stream processing topologies (Hochreiner et al., PeerJ CS 2017) on a real Spark "
            f"cluster of this machine, {runs[0].confinement}: the manufacturing dataflow, its OCR, reports and warnings. "
            "Both policies get the same load, one after the other. An item's time counts from when its sensor emits it to "
            "the commit of the batch that has its result. The paper's figures beside them are of BTU10 and of the "
            "threshold at the same unit (Table 3); its money and its levels are on another scale."
        ),
        Prose(f"{counted(checks)}."),
        check_table(checks, "Spark"),
        comparison_table(
            f"Costs and compliance side by side, mean (σ) of {len(runs) // len(POLICIES)} runs each",
            table,
            {name: {metric: row[f"{name} 10"] for metric, row in PAPER.rows.items()} for name in POLICIES},
            PAPER.name,
            written,
            "Spark",
        ),
        Table("What was scaled to this machine", ("what", "paper", "here", "why"), SCALE),
        Heading("Over time"),
        *(_plot(run) for run in runs[: len(POLICIES)]),
    ]
    return Page("VISP on Spark: provisioning by billing time unit", tuple(blocks))


def _plot(run: VispSparkRun) -> Plot:
    seconds, offered, instances, hosts = (list(column) for column in zip(*run.series, strict=True))
    load = load_line("machines", seconds, offered, steps=True)
    return hosts_plot(
        f"{run.policy}: instances of O1 and hosts (Spark; compare Figure 8)", "seconds", seconds, load, "machines",
        instances, hosts, "operator instances",
    )  # fmt: skip
