"""Page of the E2DF experiment on Spark: figures, scaling, curves as in Figure 2, bars.

Tables never mix figures from Spark with simulated ones; the paper's have separate rows. `on_spark` measures the figures.
"""

import time
from collections.abc import Sequence
from importlib.metadata import version
from statistics import fmean

from elastream.experiments.cases import ExperimentOptions
from elastream.experiments.e2df.experiment import PAPER, SCENARIOS
from elastream.experiments.e2df.on_spark import (
    CONTAINER,
    RISE,
    SCALE,
    Scenarios,
    SparkScenario,
    bars,
    over_static,
    run_scenario,
)
from elastream.experiments.findings import Check, Findings, check_table, counted, environment
from elastream.experiments.page import Block, Heading, Page, Plot, Prose, Table, hosts_plot, line, load_line

ROUNDS = 3
"""Runs of each scenario, each round in another order: what else a machine does is not always beside the same one."""
QUICK_RISE = 30.0
"""Seconds that the load rises with `quick`: a functional check, too short for hosts to follow the load well."""


def run_e2df_spark(options: ExperimentOptions) -> Findings:
    """Run the three scenarios ROUNDS times, each run on a separate cluster, in an order that turns.

    quick: once, and half the length of the load.
    """
    begun, found = time.monotonic(), []
    rounds = 1 if options.quick else ROUNDS
    for turn in range(rounds):
        runs = {}
        for number in range(len(SCENARIOS)):
            name = SCENARIOS[(number + turn) % len(SCENARIOS)]
            options.progress(f"{name}, {turn + 1} of {rounds}", turn * len(SCENARIOS) + number, rounds * len(SCENARIOS))
            runs[name] = run_scenario(name, QUICK_RISE if options.quick else RISE)
        found.append({name: runs[name] for name in SCENARIOS})
    options.progress("done", rounds * len(SCENARIOS), rounds * len(SCENARIOS))
    return outcome(found, time.monotonic() - begun)


def outcome(rounds: Sequence[Scenarios], seconds: float) -> Findings:
    """The findings of runs of all scenarios, round by round."""
    checks = bars(rounds)
    where = rounds[0]["static"].confinement
    return Findings(
        {
            "scenarios": {name: [runs[name].metrics for runs in rounds] for name in SCENARIOS},
            "latency over static": {name: over_static(rounds, name, "latency") for name in SCENARIOS[1:]},
            "seconds": round(seconds, 1),
        },
        {name: dict(figures) for name, figures in PAPER.items()},
        checks,
        _page(rounds, checks),
        environment(plant="spark", spark=version("pyspark"), hosts=where, seconds=round(seconds, 1)),
    )


def _comparison(rounds: Sequence[Scenarios]) -> Table:
    """Our absolute figures; the paper's are in `_ratios`, because only ratios are comparable."""
    rows = tuple(
        (name, *(_text(fmean(runs[scenario].metrics[name] for runs in rounds)) for scenario in SCENARIOS))
        for name in rounds[0]["static"].metrics
    )
    return Table(f"Word Count on Spark, means of {len(rounds)} runs", ("", *SCENARIOS), rows)


def _ratios(rounds: Sequence[Scenarios]) -> Table:
    rows: list[tuple[str, ...]] = []
    for what, printed, figure in (
        ("replicas", "replicas (mean)", "replicas"),
        ("hosts", "hosts that are up (mean)", "hosts"),
        ("mean latency", "mean latency (ms)", "latency"),
    ):
        ours = (fmean(over_static(rounds, name, figure)) for name in SCENARIOS)
        rows.append((f"{what}, over static's (Spark)", *(f"{value:.2f}" for value in ours)))
        paper = [PAPER[name].get(printed) for name in SCENARIOS]
        given = PAPER["static"][printed]
        rows.append(("   paper, section 5", *("-" if value is None else f"{value / given:.2f}" for value in paper)))
    return Table("What compares with the paper: ratios", ("", *SCENARIOS), tuple(rows))


def _page(rounds: Sequence[Scenarios], checks: tuple[Check, ...]) -> Page:
    blocks: list[Block] = [
        Prose(
            "A multi-level elasticity framework for distributed data stream processing (Nardelli, Russo Russo, Cardellini "
            "and Lo Presti, 2018), on a real Spark cluster of this machine: one worker process a host, "
            f"{rounds[0]['static'].confinement}. Figures are measured; latency is from a sentence being due to its counts "
            "being committed, and hosts are counted from being asked for to being gone, their start included."
        ),
        Prose(f"{counted(checks)}."),
        check_table(checks, "Spark"),
        _comparison(rounds),
        _ratios(rounds),
        Table("What was scaled to this machine", ("what", "paper", "here", "why"), SCALE),
        Heading("Over time, first round"),
        *(plot for run in rounds[0].values() for plot in _plots(run)),
    ]
    return Page(f"E2DF on Spark: elasticity of operators and of hosts of {CONTAINER.cores:g} cores", tuple(blocks))


def _plots(run: SparkScenario) -> tuple[Plot, Plot]:
    seconds, offered, latency, replicas, hosts, cpu = (list(column) for column in zip(*run.series, strict=True))
    load, unit = load_line("input rate", seconds, offered), "sentences/s"
    return (
        hosts_plot(
            f"{run.name}: replicas and hosts (Spark; compare Figure 2)", "seconds", seconds, load, unit, replicas, hosts
        ),
        Plot(
            f"{run.name}: latency and use of hosts (Spark; compare Figure 2)",
            "seconds",
            "s, fraction of cores",
            (load, line("latency", seconds, latency, colour=4), line("CPU", seconds, cpu, colour=2)),
            unit,
        ),
    )


def _text(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"
