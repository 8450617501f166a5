"""Simulated and measured p50, p99, mean backlog and host time of runs on Spark, with the constants of other runs.

--record records twelve runs twice, in 35 minutes on two cores (--quick two runs: six minutes); without it, stored
recordings count.

A run is predicted by constants of every other run of its dataflow, under the recorded decisions; a run with batches of
about one size predicts nothing (`Calibration.separable`). A prediction agrees if within 20 % of what was measured, or
within the spread between the run and its twin, which had the same settings at another time.
"""

import argparse
import hashlib
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _common import Report, main, progress
from _visitors import access_log, visits

from elastream import Dataflow, HostType, Local, run
from elastream.core.hosts import Billing
from elastream.core.plant import Policy
from elastream.dataflow.endpoints import ArrivalPattern, parquet, records, text_files
from elastream.errors import InputError
from elastream.evaluation.drift import BOUND, replayed
from elastream.loads import constant, ramp, sine, steps
from elastream.policies import Static, Threshold
from elastream.policies.by_load import ByLoad
from elastream.recording.recorder import Recording
from elastream.simulator import figures_of

THIRD = HostType("third", cores=0.35, slots=1, memory=1000.0, price=1.0, billing=Billing(10.0), start=10.0, stop=3.0)
"""Four of them use 1.4 cores of two: the driver keeps its share."""
HALF = HostType("half", cores=0.5, slots=1, memory=1000.0, price=1.0, billing=Billing(10.0), start=10.0, stop=3.0)
TARGET = 3.0  # seconds from a record being due to its result being committed
STATE_PARTITIONS = 4
TEXTS = Path(__file__).parents[1] / "docs" / "explanation" / "*.md"
"""The text that words are counted of: what lies here in any checkout."""
ROUNDS = 2_000  # of a key derivation: about a millisecond of a core a record


def words(load: ArrivalPattern) -> Dataflow:
    flow = Dataflow("words")
    lines = flow.source(text_files(TEXTS), load=load)
    lines.flat_map(str.split, returns="word string", name="split").key_by("word").count().sink(parquet())
    return flow


def visitors(load: ArrivalPattern) -> Dataflow:
    flow = Dataflow("visitors")
    log = flow.source(records(access_log(), "value string"), load=load, name="log")
    seen = log.map_pandas(visits, returns="visitor string, bytes bigint", name="visits")
    seen.key_by("visitor").aggregate({"requests": "count(*)", "bytes": "sum(bytes)"}).sink(parquet())
    return flow


def signed(value: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", value.encode(), b"of this benchmark", ROUNDS).hex()


def signatures(load: ArrivalPattern) -> Dataflow:
    flow = Dataflow("signatures")
    log = flow.source(records(access_log(), "value string"), load=load, name="log")
    log.map(signed, returns="signature string", name="sign").sink(parquet())
    return flow


@dataclass(frozen=True)
class Scenario:
    """A run to record. hosts: at most."""

    dataflow: Callable[[ArrivalPattern], Dataflow]
    load: ArrivalPattern
    policy: Policy
    host: HostType
    hosts: int


def _up_and_down(low: float, high: float) -> ArrivalPattern:
    return constant(low, lasts=8).then(ramp(low, high, over=22)).then(ramp(high, low, over=15)).hold(10)


SCENARIOS: Mapping[str, Scenario] = {
    "words, up and down": Scenario(words, _up_and_down(1_000, 30_000), Threshold(), THIRD, 4),
    "words, a step": Scenario(words, steps((5_000, 20), (18_000, 20), (5_000, 15)), Threshold(), THIRD, 3),
    "words, level": Scenario(words, constant(9_000, lasts=50), Static(2), THIRD, 2),
    "words, a wave on larger hosts": Scenario(
        words, sine(2_000, 16_000, 30).lasting(55), ByLoad(hosts=Threshold()), HALF, 3
    ),
    "visitors, up and down": Scenario(visitors, _up_and_down(2_000, 40_000), Threshold(), THIRD, 4),
    "visitors, a step": Scenario(
        visitors, steps((6_000, 20), (24_000, 20), (6_000, 15)), ByLoad(hosts=Threshold()), THIRD, 4
    ),
    "visitors, level": Scenario(visitors, constant(12_000, lasts=50), Static(2), HALF, 2),
    "signatures, up and down": Scenario(signatures, _up_and_down(20, 600), Threshold(), THIRD, 4),
    "signatures, a step": Scenario(signatures, steps((60, 20), (350, 20), (60, 15)), Threshold(), HALF, 3),
    "signatures, level": Scenario(signatures, constant(250, lasts=50), Static(3), THIRD, 3),
    "signatures, a wave": Scenario(signatures, sine(30, 400, 30).lasting(55), ByLoad(hosts=Threshold()), THIRD, 4),
    "words, a wave at a constant number": Scenario(words, sine(2_000, 14_000, 25).lasting(50), Static(3), THIRD, 3),
}
"""By name; the part before the comma is the dataflow's."""
QUICK = ("words, level", "words, a step")
"""What `--quick` records: one with a constant number of hosts, one in which hosts come and go."""


def record(scenario: Scenario, folder: Path) -> None:
    with TemporaryDirectory(prefix="drift-") as runs:
        run(
            scenario.dataflow(scenario.load),
            policy=scenario.policy,
            cloud=Local(scenario.host, max_hosts=scenario.hosts),
            target_latency=TARGET,
            state_partitions=STATE_PARTITIONS,
            runs=runs,
            show=False,
        )
        (made,) = Path(runs).iterdir()
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(made / "recording.jsonl", folder / "recording.jsonl")


ONE_RUN = "--one-run"  # first argument of a process that records one run
PLACE = Path.home() / ".cache" / "elastream" / "drift"  # folder of recordings, outside of any checkout
JUDGED = ("latency p50", "latency p99", "backlog, mean", "host time")
PART = 0.9
SOURCE = "the project's bar: nine of ten pairs within 20 %, or within the spread of twins"
TWINS = 2
LONGEST = 300.0  # seconds that a run may take; the longest takes about 100
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
        return self.simulated / self.measured - 1 if self.measured else float("nan")

    @property
    def agrees(self) -> bool:
        return abs(self.off) <= max(BOUND, self.spread if self.spread == self.spread else 0.0)


def place_of(folder: Path, name: str, twin: int) -> Path:
    return folder / name.replace(", ", "-").replace(" ", "-") / str(twin)


def record_all(names: Sequence[str], folder: Path) -> None:
    """Record each of `names` TWINS times, a process each, in random order, all first ones before all second ones."""
    chance = random.Random(SEED)
    order = [(name, twin) for twin in range(1, TWINS + 1) for name in chance.sample(list(names), len(names))]
    for number, (name, twin) in enumerate(order, 1):
        progress(f"recording {number} of {len(order)}: {name}")
        into = place_of(folder, name, twin)
        try:
            subprocess.run([sys.executable, __file__, ONE_RUN, name, str(into)], check=True, timeout=LONGEST)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise InputError(f"the run {name!r} was not recorded: {error}") from None


def read_all(names: Sequence[str], folder: Path) -> dict[str, tuple[Recording, ...]]:
    missing = [name for name in names for twin in range(1, TWINS + 1) if not place_of(folder, name, twin).is_dir()]
    if missing:
        raise InputError(
            f"{folder} has no two recordings of {missing[0]!r}: record them first, "
            "with `python benchmarks/drift.py --record`, on a machine that nothing else uses"
        )
    return {name: tuple(Recording.read(place_of(folder, name, twin)) for twin in range(1, TWINS + 1)) for name in names}


def spread_of(twins: Sequence[Recording]) -> dict[str, float]:
    first, second = ({name: value for name, _, value in figures_of(run, run.sources)} for run in twins)
    return {name: abs(second[name] / first[name] - 1) if first[name] else float("nan") for name in JUDGED}


def predictions(runs: Mapping[str, tuple[Recording, ...]], simulations: int) -> list[Predicted]:
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
            judged = [each for each in values if each.metric in JUDGED]
            found += [Predicted(target, source, v.metric, v.measured, v.simulated, spread[v.metric]) for v in judged]
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


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", type=Path, nargs="?", const=PLACE, metavar="FOLDER",
                        help=f"record the runs anew (default of FOLDER: {PLACE})")  # fmt: skip
    parser.add_argument("--read", type=Path, default=PLACE, metavar="FOLDER", help="what was recorded before")


if __name__ == "__main__":
    if sys.argv[1:2] == [ONE_RUN]:
        record(SCENARIOS[sys.argv[2]], Path(sys.argv[3]))
    else:
        main("drift", __doc__, measure, more)
