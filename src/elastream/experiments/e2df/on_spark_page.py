"""Page of the E2DF experiment on Spark: figures, scaling, curves as in Figure 2, bars.

Tables never mix figures from Spark with simulated ones; the paper's have separate rows. `on_spark` measures the figures.
"""

import time
from collections.abc import Mapping
from importlib.metadata import version

from elastream.experiments.cases import ExperimentOptions
from elastream.experiments.e2df.experiment import PAPER, SCENARIOS
from elastream.experiments.e2df.on_spark import CONTAINER, RISE, SCALE, SparkScenario, bars, run_scenario
from elastream.experiments.findings import Check, Findings, check_table, counted, environment
from elastream.experiments.page import Block, Heading, Page, Plot, Prose, Table, hosts_plot, line, load_line

QUICK_RISE = 30.0
"""Seconds that the load rises with `quick`: a functional check, too short for hosts to follow the load well."""


def run_e2df_spark(options: ExperimentOptions) -> Findings:
    """Run the three scenarios one after the other, each on a separate cluster.

    quick: half the length of the load.
    """
    begun = time.monotonic()
    runs = {}
    for number, name in enumerate(SCENARIOS):
        options.progress(name, number, len(SCENARIOS))
        runs[name] = run_scenario(name, QUICK_RISE if options.quick else RISE)
    options.progress("done", len(SCENARIOS), len(SCENARIOS))
    return outcome(runs, time.monotonic() - begun)


def outcome(runs: Mapping[str, SparkScenario], seconds: float) -> Findings:
    checks = bars(runs)
    return Findings(
        {
            "scenarios": {name: run.metrics for name, run in runs.items()},
            "latency over static": {name: runs[name].latency / runs["static"].latency for name in SCENARIOS[1:]},
            "seconds": round(seconds, 1),
        },
        {name: dict(figures) for name, figures in PAPER.items()},
        checks,
        _page(runs, checks),
        environment(plant="spark", spark=version("pyspark"), hosts=runs["static"].confinement, seconds=round(seconds, 1)),
    )


def _comparison(runs: Mapping[str, SparkScenario]) -> Table:
    """Our absolute figures; the paper's are in `_ratios`, because only ratios are comparable."""
    names = next(iter(runs.values())).metrics
    rows = tuple((name, *(_text(run.metrics[name]) for run in runs.values())) for name in names)
    return Table("Word Count on Spark", ("", *runs), rows)


def _ratios(runs: Mapping[str, SparkScenario]) -> Table:
    static = runs["static"]
    rows: list[tuple[str, ...]] = []
    for what, printed, values, base in (
        ("replicas", "replicas (mean)", [runs[name].replicas for name in SCENARIOS], static.replicas),
        ("hosts", "hosts that are up (mean)", [runs[name].hosts for name in SCENARIOS], static.hosts),
        ("mean latency", "mean latency (ms)", [runs[name].latency for name in SCENARIOS], static.latency),
    ):
        rows.append((f"{what}, over static's (Spark)", *(f"{value / base:.2f}" for value in values)))
        paper = [PAPER[name].get(printed) for name in SCENARIOS]
        given = PAPER["static"][printed]
        rows.append(("   paper, section 5", *("-" if value is None else f"{value / given:.2f}" for value in paper)))
    return Table("What compares with the paper: ratios", ("", *SCENARIOS), tuple(rows))


def _page(runs: Mapping[str, SparkScenario], checks: tuple[Check, ...]) -> Page:
    blocks: list[Block] = [
        Prose(
            "A multi-level elasticity framework for distributed data stream processing (Nardelli, Russo Russo, Cardellini "
            "and Lo Presti, 2018), on a real Spark cluster of this machine: one worker process a host, "
            f"{runs['static'].confinement}. Figures are measured; latency is from a sentence being due to its counts being "
            "committed, and hosts are counted from being asked for to being gone, their start included."
        ),
        Prose(f"{counted(checks)}."),
        check_table(checks, "Spark"),
        _comparison(runs),
        _ratios(runs),
        Table("What was scaled to this machine", ("what", "paper", "here", "why"), SCALE),
        Heading("Over time"),
        *(plot for run in runs.values() for plot in _plots(run)),
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
