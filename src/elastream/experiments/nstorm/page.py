"""Page of the N-Storm experiment: figures next to those of Figs. 8 to 11, curves, bars, and the method of measurement.

Figures from Spark and the paper's never share a row. `experiment` measures and computes the figures.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from elastream.experiments.cases import ExperimentOptions
from elastream.experiments.findings import Check, Findings, check_table, counted, environment
from elastream.experiments.nstorm.experiment import (
    EXECUTORS,
    FULL,
    LAZY,
    LEVELS,
    ONLINE,
    PAPER,
    QUICK,
    RESTART,
    NStormCase,
    NStormRun,
    Schedule,
    bars,
    degraded,
    run_cases,
    usual,
)
from elastream.experiments.nstorm.rig import HOSTS, PARTITIONS, ROWS
from elastream.experiments.page import Block, Heading, Page, Plot, Prose, Table, line

ALONE = 0.03
"""Fraction of the cores that other programs may use on a machine that counts as free."""

SCHEMES = {RESTART: "Storm", EXECUTORS: "Storm*", ONLINE: "N-Storm", LAZY: "N-Storm+"}
"""The paper's name of each scheme."""


def run_nstorm(
    options: ExperimentOptions,
    *,
    moves: Sequence[int] | None = None,
    seconds: float | None = None,
) -> Findings:
    """The experiment on Spark, or that part of it with so many `moves` and `seconds` a case.

    sensitivity, workers: ignored; there are no assumptions, and cases cannot run in parallel.
    """
    setting = (QUICK if options.quick else FULL).reduced(moves, seconds)
    began = time.monotonic()
    runs, about = run_cases(setting, options.progress)
    return outcome(runs, setting, about, time.monotonic() - began)


def outcome(runs: Sequence[NStormRun], setting: Schedule, about: Mapping[str, Any], seconds: float) -> Findings:
    checks = bars(runs, setting.rounds, about["wrong counts"])
    missed = "; ".join(f"{check.name} is {check.value} ({check.bound})" for check in checks if check.missed)
    baseline = _baseline(runs, setting)
    return Findings(
        {
            "cases": {run.case.name: _figures(run, baseline, setting) for run in runs},
            "baseline (records/s, by round)": [round(baseline[int(n * setting.seconds)]) for n in range(setting.rounds)],
            "batches": about["batches"],
            "wrong counts": about["wrong counts"],
            "seconds": round(seconds, 1),
        },
        {name: dict(figures) for name, figures in PAPER.items()},
        checks,
        _page(runs, setting, about, checks),
        environment(
            plant="spark",
            hosts=about["hosts"],
            others_share_of_cores=round(about["others"], 3),
            seconds_each=setting.seconds * setting.rounds,
            period=setting.period,
            hurry=setting.hurry,
        ),
        f"Missed: {missed}." if missed else "",
    )


def degradation_table(runs: Sequence[NStormRun], setting: Schedule) -> Table:
    """Seconds at each level (Fig. 9) and totals (Fig. 10), ours followed by the paper's."""
    baseline, each = _baseline(runs, setting), setting.seconds * setting.rounds
    restart = {run.case.moves: run.total for run in runs if run.case.scheme == RESTART}
    rows: list[tuple[str, ...]] = []
    for run in runs:
        lost = degraded(run.throughput, baseline)
        ratio = f"{run.total / restart[run.case.moves]:.2f}" if run.case.moves in restart else "-"
        shares = (_share(lost[level], each) for level in LEVELS)
        rows.append((f"{run.case.name} (Spark)", *shares, f"{run.total:,.0f}", ratio))
        printed = PAPER.get(_paper_name(run.case)) if run.case.cycles is None else None
        if printed:
            known = (printed.get("seconds at >= 60 %"), printed.get("seconds at 100 %"), printed.get("total, Storm = 1"))
            sixty, stopped = ("-" if value is None else _share(value, 600.0) for value in known[:2])
            total = "-" if known[2] is None else f"{known[2]:g}"
            rows.append((f"paper: {_paper_name(run.case)}, of 600 s", "-", "-", sixty, "-", stopped, "-", total))
    return Table(
        f"Seconds, of {each:g}, at each level of degradation with their share, and totals (Figs. 9 and 10)",
        ("", *(f"{'>= ' * (level < 1)}{level:.0%}" for level in LEVELS), "records", "over stop and restart's"),
        tuple(rows),
    )


def movement_table(runs: Sequence[NStormRun]) -> Table:
    """Migrations, their time to land, and the control traffic (Fig. 11)."""
    rows = []
    for run in runs:
        landing = f"{sum(run.landing) / len(run.landing):.1f}" if run.landing else "-"
        traffic = (f"{run.traffic.get(kind, 0.0):,.0f}" for kind in ("gateway", "plan written", "plan read"))
        rows.append((run.case.name, f"{run.moved}", f"{run.restarts}", landing, *traffic))
    return Table(
        "Control plane, Spark: bytes/s to and from Spark's driver, into and out of the plan's file (Fig. 11); what has not "
        "landed at the end of its round does so behind it",
        ("", "migrations landed", "query starts", "mean s to land", "driver", "plan written", "plan read"),
        tuple(rows),
    )


def _page(runs: Sequence[NStormRun], setting: Schedule, about: Mapping[str, Any], checks: Sequence[Check]) -> Page:
    blocks: list[Block] = [
        Prose(
            "Online nonstop task management for Storm-based engines (N-Storm and OTD, Zhang et al.), section 5.2, run on "
            f"Spark: a word count with {PARTITIONS} state partitions on {about['hosts']}. Executors were warm before the "
            f"first case. All cases are one query of {about['batches']} batches, whose counts are compared with a batch "
            f"query's over the same records at the end: {about['wrong counts']} differ."
        ),
        Prose(_how(setting)),
        Prose(_shared(about["others"])),
        Prose(f"{counted(checks)}."),
        check_table(checks, "Spark"),
        degradation_table(runs, setting),
        movement_table(runs),
        Heading("Throughput per second (compare Fig. 8)"),
        *(_plot(run, _baseline(runs, setting)) for run in runs),
    ]
    return Page("N-Storm: task migration on a live query (Spark)", tuple(blocks))


def _how(setting: Schedule) -> str:
    each = setting.seconds * setting.rounds
    shorter = [f"{each:g} s a case instead of 600"] * (each < 600)
    shorter += [f"a re-deployment every {setting.period:g} s instead of 60"] * (setting.period < 60)
    shorter += [f"cycles of all but the lazy scheme divided by {setting.hurry:g}"] * (setting.hurry > 1)
    shorter += ["fewer cases"] * (len(setting.cases) < len(FULL.cases))
    return (
        f"The source always has a batch of {ROWS:,} records ready, so throughput is what the query can take. A second's "
        "throughput is the records of each committed batch, spread evenly over the time of that batch (from its trigger to "
        "its commit, which includes loading state and replanning), none between batches, and none for a batch that was "
        "broken off. So a stopped query shows as seconds at 100 %, a batch that takes three times as long as seconds at "
        "67 %. The baseline is the mean, in the same round, of the case without migrations, whose own seconds below it are "
        f"noise. {_turns(setting)} Degraded seconds compare as shares of time. "
        f"Tasks are the {PARTITIONS} state partitions, workers the {HOSTS} executors. Storm waits 30 s in a rebalance by "
        "default; nothing is waited for here that Spark does not wait for."
        + (f" This run is shorter than the paper's: {', '.join(shorter)}." if shorter else "")
    )


def _turns(setting: Schedule) -> str:
    if setting.rounds == 1:
        return f"Each case ran once, for {setting.seconds:g} s, in the order of the curves below."
    return (
        f"Cases took turns, {setting.rounds} rounds of {setting.seconds:g} s each, forwards and backwards, as machines and "
        "compilers warm up (those that replace executors came last, because new ones are slow); curves show the rounds one "
        "after the other."
    )


def _share(seconds: float, of: float) -> str:
    return f"{seconds:g} ({seconds / of:.0%})"


def _shared(others: float) -> str:
    if others < ALONE:
        return f"The machine was free for this: other programs used {others:.1%} of its cores."
    return (
        f"The machine was shared: other programs used {others:.0%} of its cores meanwhile, unevenly. Single seconds, and "
        "small differences between totals, are noise."
    )


def _figures(run: NStormRun, baseline: Sequence[float], setting: Schedule) -> dict[str, Any]:
    lost = degraded(run.throughput, baseline)
    return {
        "throughput by second": [round(value) for value in run.throughput],
        "seconds": setting.seconds * setting.rounds,
        "seconds degraded": {f"{level:.0%}": lost[level] for level in LEVELS},
        "records": round(run.total),
        "migrations landed": run.moved,
        "query starts": run.restarts,
        "seconds to land": [round(value, 2) for value in run.landing],
        "control traffic (bytes/s)": {kind: round(value, 1) for kind, value in run.traffic.items()},
    }


def _plot(run: NStormRun, baseline: Sequence[float]) -> Plot:
    seconds = [float(second) for second in range(len(run.throughput))]
    return Plot(
        f"{run.case.name} (Spark)",
        "seconds",
        "records/s",
        (
            line("throughput", seconds, run.throughput, colour=0, steps=True),
            line("mean without migrations", seconds, baseline, colour=5, dash="dot", steps=True),
        ),
    )


def _baseline(runs: Sequence[NStormRun], setting: Schedule) -> tuple[float, ...]:
    return usual(next(run for run in runs if run.case == NStormCase(None)), setting.rounds)


def _paper_name(case: NStormCase) -> str:
    return f"{SCHEMES.get(case.scheme or '', '')}, {case.moves} task{'s' * (case.moves != 1)}"
