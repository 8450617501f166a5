"""Page of the N-Storm experiment: claims by paired blocks, what each way costs, and the method of measurement.

Figures from Spark and the paper's never share a row. `experiment` measures, `claims` judges.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from elastream.experiments.cases import ExperimentOptions
from elastream.experiments.findings import Check, Findings, check_table, counted, environment
from elastream.experiments.nstorm.claims import bars, claims_of, power_of
from elastream.experiments.nstorm.experiment import (
    AFTER,
    BEFORE,
    FULL,
    PAPER,
    PLAIN,
    QUICK,
    BlockPlan,
    MoveWindow,
    run_setting,
)
from elastream.experiments.nstorm.rig import PARTITIONS, ROWS
from elastream.experiments.page import Block, Heading, Page, Prose, Table

ALONE = 0.03
"""Fraction of the cores that other programs may use on a machine that counts as free."""


def run_nstorm(options: ExperimentOptions, *, moves: Sequence[int] | None = None, full: bool = False) -> Findings:
    """The experiment on Spark; moves: only with these numbers of tasks; full: with the arms of `FULL`.

    sensitivity, workers: ignored; there are no assumptions, and windows cannot run in parallel.
    """
    setting = (QUICK if options.quick else FULL if full else PLAIN).reduced(moves)
    began = time.monotonic()
    main = setting.arms[0]
    number = 4 * len(main.moves) + (16 in main.moves)
    windows, about = run_setting(setting, options.progress, lambda pilot: power_of(pilot, number, main.blocks))
    return outcome(windows, setting, about, time.monotonic() - began)


def outcome(windows: Sequence[MoveWindow], setting: BlockPlan, about: Mapping[str, Any], seconds: float) -> Findings:
    checks = bars(windows, about["wrong counts"])
    return Findings(
        {
            "claims": {claim.name: {"differences": claim.differences, "chance": claim.p} for claim in claims_of(windows)},
            "windows": [{key: _rounded(value) for key, value in asdict(window).items()} for window in windows],
            "batch seconds": about["batch seconds"],
            "batches": about["batches"],
            "wrong counts": about["wrong counts"],
            "power, by the pilot": about.get("power, by the pilot", ""),
            "seconds": round(seconds, 1),
        },
        {name: dict(figures) for name, figures in PAPER.items()},
        checks,
        _page(windows, setting, about, checks),
        environment(plant="spark", hosts=about["hosts"], others_share_of_cores=round(about["others"], 3)),
        verdict(checks),
    )


def verdict(checks: Sequence[Check]) -> str:
    """Which claims are missed, and which stay undecided."""
    said = ""
    for kind in ("missed", "undecided"):
        names = [check.name for check in checks if check.verdict == kind]
        said += f"{kind.capitalize()}: {'; '.join(names)}. " if names else ""
    return said.strip()


def cost_table(windows: Sequence[MoveWindow], arm: str) -> Table:
    """What a re-deployment costs, mean and standard deviation over the blocks of an arm."""
    rows = []
    for moves in sorted({window.moves for window in windows if window.arm == arm}):
        for way in dict.fromkeys(window.way for window in windows if window.arm == arm):
            mine = [window for window in windows if (window.arm, window.moves, window.way) == (arm, moves, way)]
            columns = (_spread([getattr(window, name) for window in mine]) for name in ("lost", "gap", "landed"))
            warm = float(np.mean([window.warm for window in mine])) if mine else 0.0
            rate = float(np.mean([window.rate for window in mine])) if mine else 0.0
            rows.append((f"{way}, {moves} of {PARTITIONS}", *columns, f"{warm:.0%}", f"{rate:,.0f}", str(len(mine))))
    header = ("", "s lost", "longest s between commits", "s to land", "loaded ahead", "baseline, records/s", "blocks")
    return Table(f"{arm}, Spark: mean (standard deviation) of a re-deployment", header, tuple(rows))


def _page(windows: Sequence[MoveWindow], setting: BlockPlan, about: Mapping[str, Any], checks: Sequence[Check]) -> Page:
    lasted = ", ".join(f"{seconds:.2f} s at {load}" for load, seconds in about["batch seconds"].items())
    blocks: list[Block] = [
        Prose(
            "Online nonstop task management for Storm-based engines (N-Storm and OTD, Zhang et al.), section 5.2, run on "
            f"Spark: a word count with {PARTITIONS} state partitions on {about['hosts']}. A batch has {ROWS:,} records and "
            f"lasts {lasted} (median). All windows of a cluster are one query, of {about['batches']} batches in all, whose "
            f"counts are compared with a batch query's over the same records at the end: {about['wrong counts']} differ."
        ),
        Prose(
            "In a block the same tasks move there and back, once in each way, in random order. Lost is what the local "
            f"baseline (the {BEFORE:g} s before, and at least {AFTER:g} s after) would have processed from the "
            "re-deployment to the end of the first batch after the last task had landed, less what was processed, as "
            "seconds of the baseline. A claim is held or missed where the exact sign-flip test of the blocks' differences "
            "says so with all claims together at 5 % (Holm), else undecided; its interval is that of the same test, 95 % "
            "for itself."
        ),
        Prose(_shared(about["others"])),
        Prose(f"{counted(checks)}. {verdict(checks)}"),
        check_table(checks, "Spark"),
        *([Prose(said)] if (said := about.get("power, by the pilot", "")) else []),
        Heading("What a re-deployment costs"),
        *(cost_table(windows, arm.name) for arm in setting.arms),
        Table(
            "The paper, of 600 s with a re-deployment every 60 s (sections 5.2.1 to 5.2.3)",
            ("", "s at >= 60 %", "s at 100 %", "total, Storm = 1"),
            tuple(
                (
                    name,
                    *(
                        f"{found[key]:g}" if key in found else "-"
                        for key in ("seconds at >= 60 %", "seconds at 100 %", "total, Storm = 1")
                    ),
                )
                for name, found in PAPER.items()
            ),
        ),
    ]
    return Page("N-Storm: task migration on a live query (Spark)", tuple(blocks))


def _shared(others: float) -> str:
    if others < ALONE:
        return f"The machine was free for this: other programs used {others:.1%} of its cores."
    return f"The machine was shared: other programs used {others:.0%} of its cores meanwhile, unevenly."


def _spread(values: Sequence[float]) -> str:
    known = [value for value in values if value == value]
    if not known:
        return "-"
    return f"{np.mean(known):.2f} ({np.std(known, ddof=1) if len(known) > 1 else 0.0:.2f})"


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) and value == value else None if value != value else value
