"""What the simulator says of a run on Spark, by constants of another run: p50, p99, mean backlog and host time.

    python benchmarks/drift.py --record [FOLDER]      # records twelve runs twice, 35 minutes on two cores, then reads them
    python benchmarks/drift.py [--read FOLDER]        # reads what was recorded: a minute
    python benchmarks/drift.py --quick --record       # two runs twice: six minutes

A run is predicted by constants of every other run of its dataflow, which differs in load, hosts or policy, under the
decisions that were recorded. A run whose batches were all of about one size cannot tell what a batch costs from what its
records do: it is predicted, and predicts nothing (`Calibration.separable`). A prediction agrees if within 20 % of what
was measured, or within the spread between the run and its twin, which had the same settings at another time: no model can
be nearer to both than half of that. Twins are not recorded one after the other, since what else a machine does is alike
for minutes.
"""

import argparse
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import Report, main, progress
from _drift_runs import QUICK, SCENARIOS

from elastream.errors import InputError
from elastream.evaluation.drift import BOUND, replayed
from elastream.recording.recorder import Recording
from elastream.simulator import figures_of

PLACE = Path.home() / ".cache" / "elastream" / "drift"
"""Where recordings are kept, outside of any checkout."""
JUDGED = ("latency p50", "latency p99", "backlog, mean", "host time")
PART = 0.9
SOURCE = "the project's bar: nine of ten pairs within 20 %, or within the spread of twins"
TWINS = 2
LONGEST = 300.0
"""Seconds that a run may take; the longest takes about 100."""
SEED = 1


@dataclass(frozen=True, slots=True)
class Predicted:
    """A figure of a run, by constants of another one. spread: between twins, as a part of what was measured."""

    target: str
    source: str
    figure: str
    measured: float
    simulated: float
    spread: float

    @property
    def off(self) -> float:
        """Simulated over measured, less 1."""
        return self.simulated / self.measured - 1 if self.measured else float("nan")

    @property
    def agrees(self) -> bool:
        """Whether it is within BOUND, or within the spread of twins; not, where either is unknown."""
        return abs(self.off) <= max(BOUND, self.spread if self.spread == self.spread else 0.0)


def place_of(folder: Path, name: str, twin: int) -> Path:
    """Where the recording of a run is kept."""
    return folder / name.replace(", ", "-").replace(" ", "-") / str(twin)


def record_all(names: Sequence[str], folder: Path) -> None:
    """Record each of `names` TWINS times, a process each, in random order, all first ones before all second ones.

    Raises InputError where a run fails.
    """
    chance = random.Random(SEED)
    order = [(name, twin) for twin in range(1, TWINS + 1) for name in chance.sample(list(names), len(names))]
    for number, (name, twin) in enumerate(order, 1):
        progress(f"recording {number} of {len(order)}: {name}")
        script, into = Path(__file__).with_name("_drift_runs.py"), place_of(folder, name, twin)
        try:
            subprocess.run([sys.executable, str(script), name, str(into)], check=True, timeout=LONGEST)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise InputError(f"the run {name!r} was not recorded: {error}") from None


def read_all(names: Sequence[str], folder: Path) -> dict[str, tuple[Recording, ...]]:
    """The twins of each run. Raises InputError where one is missing."""
    missing = [
        name for name in names for twin in range(1, TWINS + 1) if not place_of(folder, name, twin).is_dir()
    ]  # fmt: skip
    if missing:
        raise InputError(
            f"{folder} has no two recordings of {missing[0]!r}: record them first, "
            "with `python benchmarks/drift.py --record`, on a machine that nothing else uses"
        )
    return {name: tuple(Recording.read(place_of(folder, name, twin)) for twin in range(1, TWINS + 1)) for name in names}


def spread_of(twins: Sequence[Recording]) -> dict[str, float]:
    """By figure, the difference of two runs with the same settings, as a part of the first one's."""
    first, second = ({name: value for name, _, value in figures_of(run, run.sources)} for run in twins)
    return {name: abs(second[name] / first[name] - 1) if first[name] else float("nan") for name in JUDGED}


def predictions(runs: Mapping[str, tuple[Recording, ...]], simulations: int) -> list[Predicted]:
    """Every run by constants of every other run of its dataflow."""
    found = []
    for target, twins in runs.items():
        spread = spread_of(twins)
        for source, (other, *_) in runs.items():
            if source == target or other.header.flow != twins[0].header.flow:
                continue
            again = replayed(twins[0], {}, source=other, place=target, runs=simulations)
            if not again.calibration.separable:
                progress(f"{source} tells no constants: its batches were all of about one size")
                continue
            values = [again.ways[0].figure(number) for number in range(len(again.ways[0].drifts[0]))]
            found += [
                Predicted(target, source, each.metric, each.measured, each.simulated, spread[each.metric])
                for each in values
                if each.metric in JUDGED
            ]
            progress(f"{target}, by {source}: " + ", ".join(f"{p.figure} {p.off:+.0%}" for p in found[-len(JUDGED) :]))
    return found


def measure(arguments: argparse.Namespace) -> Report:
    names = QUICK if arguments.quick else tuple(SCENARIOS)
    folder = arguments.record or arguments.read
    if arguments.record:
        record_all(names, folder)
    runs = read_all(names, folder)
    found = predictions(runs, simulations=3 if arguments.quick else 7)
    if not found:
        raise InputError("no two runs of one dataflow were recorded of which one tells constants")
    report = Report()
    spreads = {name: spread_of(twins) for name, twins in runs.items()}
    for figure in JUDGED:
        mine = [each for each in found if each.figure == figure]
        agreeing = sum(each.agrees for each in mine)
        report.at_least(f"{figure}: part of {len(mine)} pairs that agree", agreeing / len(mine), PART, SOURCE)
        either = [abs(each.off) <= max(BOUND, each.spread, spreads[each.source][figure]) for each in mine]
        report.figures[f"{figure}: part that agrees within the spread of either run's twins"] = sum(either) / len(mine)
    report.figures["pairs"] = [as_figures(each) for each in found]
    report.figures["spread of twins"] = spreads
    report.environment["measured"] = sorted({str(twin.header.environment) for twins in runs.values() for twin in twins})[:1]
    return report


def as_figures(each: Predicted) -> dict[str, Any]:
    """A prediction, JSON-ready."""
    return {
        "of": each.target,
        "by constants of": each.source,
        "figure": each.figure,
        "measured": each.measured,
        "simulated": each.simulated,
        "off": each.off,
        "twins differ by": each.spread,
        "agrees": each.agrees,
    }


def line(report: Report) -> str:
    return "; ".join(f"{check.name} {check.value:.2f}" for check in report.checks)


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", type=Path, nargs="?", const=PLACE, metavar="FOLDER",
                        help=f"record the runs anew (default of FOLDER: {PLACE})")  # fmt: skip
    parser.add_argument("--read", type=Path, default=PLACE, metavar="FOLDER", help="what was recorded before")


if __name__ == "__main__":
    main("drift", __doc__.splitlines()[0], measure, line, more)
