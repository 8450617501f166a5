"""Page of the N-Storm experiment: claims by paired blocks, and the cost of each way."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from elastream.errors import InputError
from elastream.evaluation.checks import mean_at_least
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Check, Findings
from elastream.evaluation.page import Prose, Table
from elastream_papers.harness.paired import LEVEL, PairedClaim, decided
from elastream_papers.harness.report import by_verdict, report
from elastream_papers.nstorm import experiment as rig
from elastream_papers.nstorm.experiment import LAZY, MAIN, ONLINE, PARTLY, RESTART, MoveWindow, WayToMove
from elastream_papers.nstorm.rig import PARTITIONS, ROWS
from elastream_papers.nstorm.stretches import run_figures

AHEAD = 0.9  # bar: moves with state loaded ahead, where the query waits between batches
WORTH = 0.5  # part of stop-and-restart's loss to detect: the paper's 279 s become 20 (section 5.2.1)
LOST, GAP = "seconds of throughput lost", "longest time between two commits"


def differences(
    windows: Sequence[MoveWindow], worse: WayToMove, better: WayToMove, moves: int, figure: Callable[[MoveWindow], float]
) -> tuple[float, ...]:
    """Return by block how much `figure` of `worse` exceeds that of `better`."""
    by_block: dict[int, dict[str, float]] = {}
    for window in windows:
        if (window.arm, window.moves) == (MAIN.name, moves):
            by_block.setdefault(window.block, {})[window.way] = figure(window)
    found = (
        block[worse.name] - block[better.name] for block in by_block.values() if {worse.name, better.name} <= block.keys()
    )
    return tuple(each for each in found if math.isfinite(each))


def claims_of(windows: Sequence[MoveWindow]) -> list[PairedClaim]:
    """Return every claim for which the main arm has blocks."""
    figures: tuple[tuple[str, Callable[[MoveWindow], float]], ...] = ((LOST, lambda w: w.lost), (GAP, lambda w: w.gap))
    found = []
    for moves in sorted({window.moves for window in windows if window.arm == MAIN.name}):
        for what, figure in figures:
            usual = _mean([figure(w) for w in windows if (w.arm, w.moves, w.way) == (MAIN.name, moves, RESTART.name)])
            for way in (ONLINE, LAZY):
                values = differences(windows, RESTART, way, moves, figure)
                source = "our bar; paper, 5.2.1: 20 of 279 s" if what is LOST else "our bar; paper, 5.2.1: below a second"
                found.append(
                    PairedClaim(
                        f"{what}, {moves} of 16 tasks: stop and restart's less that of {way.name}",
                        values,
                        "s",
                        WORTH * usual,
                        source,
                    )
                )
    if both := differences(windows, ONLINE, LAZY, 16, lambda window: window.lost):
        usual = _mean([w.lost for w in windows if (w.arm, w.moves, w.way) == (MAIN.name, 16, ONLINE.name)])
        found.append(
            PairedClaim(
                f"{LOST}, 16 of 16 tasks: that of {ONLINE.name} less that of {LAZY.name}",
                both,
                "s",
                WORTH * usual,
                "our bar; paper, 5.2.3: 84 s for 118 s",
            )
        )
    return found


def bars(windows: Sequence[MoveWindow], wrong: int) -> tuple[Check, ...]:
    """Return the claims, corrected for their number, and checks of the counts and of the state loaded ahead."""
    claims = claims_of(windows)
    checks = [Check("counts that differ from a batch query's", wrong, "0", wrong == 0, "project's bar")]
    for claim, verdict in zip(claims, decided(claims), strict=True):
        checks.append(Check(claim.name, shown(claim, len(claims)), f"> 0 {claim.unit}", verdict, claim.source))
    if ahead := [window.warm for window in windows if (window.arm, window.way) == (PARTLY.name, LAZY.name)]:
        checks.append(mean_at_least(f"{PARTLY.name}: moves with state loaded ahead", ahead, AHEAD, "our bar"))
    return tuple(checks)


def shown(claim: PairedClaim, number: int) -> str:
    """Return mean, interval and power of a claim among `number`."""
    low, high = claim.interval()
    return (
        f"{claim.mean:.2f} {claim.unit} ({low:.2f} to {high:.2f}, {len(claim.differences)} blocks; "
        f"power for {claim.bound:.2f}: {claim.power(LEVEL / number):.0%})"
    )


def power_of(pilot: Sequence[MoveWindow], number: int, blocks: int) -> str:
    """Return the power of each claim, by the spread of `pilot`. number: of claims; blocks: of each number of moves."""
    renamed = [MoveWindow(MAIN.name, w.moves, w.block, w.way, w.lost, w.gap, w.landed, w.warm, w.rate) for w in pilot]
    said = [
        f"{claim.name.split(':')[0]}, {claim.name.rsplit('of ', 1)[-1]}: {claim.power(LEVEL / number, blocks):.0%} for "
        f"{claim.bound:.2f} {claim.unit}"
        for claim in claims_of(renamed)
    ]
    return f"power with {blocks} blocks, by {len({w.block for w in pilot})} of a pilot: " + "; ".join(said)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan


ALONE = 0.03  # part of the cores others may use on a free machine


def run_nstorm(
    options: ExperimentOptions, *, moves: Sequence[int] | None = None, full: bool = False, part: str | None = None
) -> Findings:
    """Run the experiment on Spark. moves: only these numbers of tasks; full: the arms of `FULL`; part: "figures".

    sensitivity and workers are ignored. Raises InputError for an unknown part.
    """
    if part not in (None, "figures"):
        raise InputError(f"the experiment nstorm has no part {part!r} (there is: figures)")
    if part and (moves or full):
        raise InputError("the part figures of nstorm takes neither --moves nor --full")
    if part:
        return run_figures(options)
    setting = (rig.QUICK if options.quick else rig.FULL if full else rig.PLAIN).reduced(moves)
    began = time.monotonic()
    main = setting.arms[0]
    number = 4 * len(main.moves) + (16 in main.moves)
    windows, about = rig.run_setting(setting, options.progress, lambda pilot: power_of(pilot, number, main.blocks))
    return outcome(windows, setting, about, time.monotonic() - began)


def outcome(
    windows: Sequence[rig.MoveWindow], setting: rig.BlockPlan, about: Mapping[str, Any], seconds: float
) -> Findings:
    checks = bars(windows, about["wrong counts"])
    lasted = ", ".join(f"{seconds:.2f} s at {load}" for load, seconds in about["batch seconds"].items())
    printed = ("seconds at >= 60 %", "seconds at 100 %", "total, Storm = 1")
    power = about.get("power, by the pilot", "")
    what = (
        "Online nonstop task management for Storm-based engines (N-Storm and OTD, Zhang et al.), section 5.2, run on "
        f"Spark: a word count with {PARTITIONS} state partitions on {about['hosts']}. A batch has {ROWS:,} records and "
        f"lasts {lasted} (median). All windows of a cluster are one query, of {about['batches']} batches in all, whose "
        f"counts are compared with a batch query's over the same records at the end: {about['wrong counts']} differ."
    )
    how = (
        "In a block the same tasks move there and back, once in each way, in random order. Lost is what the local "
        f"baseline (the {rig.BEFORE:g} s before, and at least {rig.AFTER:g} s after) would have processed from the "
        "re-deployment to the end of the first batch after the last task had landed, less what was processed, as "
        "seconds of the baseline. A claim is held or missed where the exact sign-flip test of the blocks' differences "
        "says so with all claims together at 5 % (Holm), else undecided; its interval is that of the same test, 95 % "
        "for itself."
    )
    return report(
        "N-Storm: task migration on a live query (Spark)",
        (what, how, _shared(about["others"])),
        {
            "claims": {claim.name: {"differences": claim.differences, "chance": claim.p} for claim in claims_of(windows)},
            "windows": [{key: _rounded(value) for key, value in asdict(window).items()} for window in windows],
            "batch seconds": about["batch seconds"],
            "batches": about["batches"],
            "wrong counts": about["wrong counts"],
            "power, by the pilot": power,
        },
        checks,
        {
            "": [Prose(power)] if power else [],
            "What a re-deployment costs": [
                *(cost_table(windows, arm.name) for arm in setting.arms),
                Table(
                    "The paper, of 600 s with a re-deployment every 60 s (sections 5.2.1 to 5.2.3)",
                    ("", "s at >= 60 %", "s at 100 %", "total, Storm = 1"),
                    tuple(
                        (name, *(f"{found[key]:g}" if key in found else "-" for key in printed))
                        for name, found in rig.PAPER.items()
                    ),
                ),
            ],
        },
        seconds,
        paper={name: dict(figures) for name, figures in rig.PAPER.items()},
        verdict=by_verdict(checks, missed="Missed", undecided="Undecided"),
        plant="spark",
        hosts=about["hosts"],
        others_share_of_cores=round(about["others"], 3),
    )


def cost_table(windows: Sequence[rig.MoveWindow], arm: str) -> Table:
    """Return the cost of a re-deployment: mean and standard deviation over an arm's blocks."""
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
