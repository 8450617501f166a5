"""What N-Storm's evaluation claims of ways to move tasks, judged by paired blocks: held, missed or undecided."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from elastream.experiments.findings import Check
from elastream.experiments.nstorm.experiment import LAZY, MAIN, ONLINE, RESTART, MoveWindow, WayToMove
from elastream.experiments.paired import LEVEL, PairedClaim, decided

WORTH = 0.5
"""Part of what stop and restart loses that a claim is to detect: of the paper's 279 s N-Storm leaves 20 (section 5.2.1)."""
LOST, GAP = "seconds of throughput lost", "longest time between two commits"


def differences(
    windows: Sequence[MoveWindow], worse: WayToMove, better: WayToMove, moves: int, figure: Callable[[MoveWindow], float]
) -> tuple[float, ...]:
    """By how much `figure` of `worse` exceeds that of `better`, block by block; blocks without both are left out."""
    by_block: dict[int, dict[str, float]] = {}
    for window in windows:
        if (window.arm, window.moves) == (MAIN.name, moves):
            by_block.setdefault(window.block, {})[window.way] = figure(window)
    found = (
        block[worse.name] - block[better.name] for block in by_block.values() if {worse.name, better.name} <= block.keys()
    )
    return tuple(each for each in found if math.isfinite(each))


def claims_of(windows: Sequence[MoveWindow]) -> list[PairedClaim]:
    """Every claim that `windows` of the main arm have blocks for."""
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
    """The claims, corrected for their number, and that no count is wrong (`wrong`: those unlike a batch query's)."""
    claims = claims_of(windows)
    checks = [Check("counts that differ from a batch query's", wrong, "0", wrong == 0, "project's bar")]
    for claim, verdict in zip(claims, decided(claims), strict=True):
        checks.append(Check(claim.name, shown(claim, len(claims)), f"> 0 {claim.unit}", verdict, claim.source))
    return tuple(checks)


def shown(claim: PairedClaim, number: int) -> str:
    """Mean, interval and power of a claim among `number` of them."""
    low, high = claim.interval()
    return (
        f"{claim.mean:.2f} {claim.unit} ({low:.2f} to {high:.2f}, {len(claim.differences)} blocks; "
        f"power for {claim.bound:.2f}: {claim.power(LEVEL / number):.0%})"
    )


def power_of(pilot: Sequence[MoveWindow], number: int, blocks: int) -> str:
    """What blocks like those of a pilot would decide. number: of claims; blocks: for each number of moves."""
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
