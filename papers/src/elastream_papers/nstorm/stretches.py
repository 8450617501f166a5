"""N-Storm's Figures 8 to 11 on Spark: minutes of a running query whose tasks are re-deployed every minute.

Section 5.2: throughput by second, degraded seconds, totals and control traffic. The undisturbed stretch is the baseline.
"""

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Check, Findings
from elastream.evaluation.page import Table
from elastream_papers.harness.report import by_verdict, curves, report
from elastream_papers.nstorm.experiment import (
    CYCLES_TRIED,
    EXECUTORS,
    LAZY,
    ONLINE,
    PAPER,
    RESTART,
    WayToMove,
    records_between,
    redeploy,
)
from elastream_papers.nstorm.rig import PARTITIONS, ROWS, VOCABULARY, CommittedBatch, Rig, Used
from elastream_papers.nstorm.schemes import Scheme

WINDOW = 600.0  # seconds of the paper's runs: degraded seconds are given for so many
FIRST, EVERY = 20.0, 60.0  # seconds until the first re-deployment, and between two
LEVELS = (0.2, 0.4, 0.6, 0.8, 1.0)  # degradation of Fig. 9, parts of the baseline
SERIOUS = 0.6  # "seriously worse" (5.2.1)
UNDISTURBED, PROCESS = WayToMove("undisturbed", Scheme.LAZY), WayToMove("restart of the job", Scheme.PROCESS)
TRAFFIC = ("plan written", "plan read", "gateway")
PRINTED = ("seconds at >= 60 %", "seconds at 100 %", "total, Storm = 1")
LOOK = 5.0  # seconds between records of batches


@dataclass(frozen=True, slots=True)
class Stretch:
    """A way to run for `seconds`, with `moves` tasks in each re-deployment. keys: of the state."""

    way: WayToMove
    moves: int = 1
    seconds: float = 240.0
    keys: int = VOCABULARY

    @property
    def name(self) -> str:
        tasks = "" if self.way == UNDISTURBED else f", {self.moves} of {PARTITIONS}"
        return f"{self.way.name}{tasks}{'' if self.keys == VOCABULARY else f', {self.keys:,} keys'}"


@dataclass(frozen=True, slots=True)
class Throughput:
    """Measurements of a stretch.

    rates: records by second. asked: seconds of re-deployments. traffic: control bytes/s by kind. state: MB at the end.
    """

    rates: tuple[float, ...]
    asked: tuple[float, ...]
    traffic: Mapping[str, float]
    state: float

    @property
    def total(self) -> float:
        """Records per second, over all seconds."""
        return float(np.mean(self.rates))

    def degraded(self, baseline: float) -> dict[float, float]:
        """Return the seconds of a WINDOW in which throughput was at least so much below `baseline`, by LEVELS."""
        rates = np.asarray(self.rates)
        return {each: float(np.mean(rates <= (1 - each) * baseline + 1e-9)) * WINDOW for each in LEVELS}


# an hour: Figs. 8 and 9(a), 9(b) and (c), 9(d), and a restart with more state
ALL = (
    *(Stretch(way) for way in (UNDISTURBED, PROCESS, RESTART, EXECUTORS, ONLINE, LAZY)),
    *(Stretch(way, 16) for way in (ONLINE, LAZY)),
    *(Stretch(way, 16, 180.0) for way in CYCLES_TRIED),
    *(Stretch(way, 1, 140.0, keys) for keys in (500_000, 5_000_000) for way in (UNDISTURBED, PROCESS, LAZY)),
)
QUICK = tuple(Stretch(way, seconds=60.0) for way in (UNDISTURBED, PROCESS, LAZY))


def by_second(batches: Sequence[CommittedBatch], since: float, seconds: float) -> tuple[float, ...]:
    """Return the records of each second; a batch's are spread over its time."""
    mine = [each for each in batches if each.end > since and each.start < since + seconds]
    return tuple(records_between(mine, since + n, since + n + 1) for n in range(int(seconds)))


def run_stretch(rig: Rig, stretch: Stretch, chance: random.Random) -> Throughput:
    """Run one stretch. Tasks may still move when the next re-deployment comes."""
    way, asked = stretch.way, list[float]()
    rig.settle()
    rig.follower.switch(way.scheme, way.cycles, way.limits)
    before, began = rig.take()[2], time.time()
    moments = () if way == UNDISTURBED else np.arange(FIRST, stretch.seconds, EVERY)
    for moment in moments:
        _wait(rig, began + float(moment))
        wanted = redeploy(rig.at, sorted(set(rig.at.values())), stretch.moves, chance)
        asked.append(time.time() - began)
        if way.scheme is Scheme.PROCESS:
            rig.restart(wanted, way.name)
        else:
            rig.plan.publish(wanted, at=time.time(), why=way.name)
    _wait(rig, began + stretch.seconds)
    traffic = rig.take()[2]
    traffic.subtract(before)
    rig.next_batch(WINDOW)  # the batch that runs at the end counts, too
    rig.note()
    rates = by_second(rig.batches, began, stretch.seconds)
    by_kind = {kind: max(0, traffic[kind]) / stretch.seconds for kind in TRAFFIC}
    return Throughput(rates, tuple(asked), by_kind, rig.state)


def _wait(rig: Rig, until: float) -> None:
    while (left := until - time.time()) > 0:
        time.sleep(min(LOOK, left))
        rig.note()


def run_all(
    stretches: Sequence[Stretch], warm: float, progress: Callable[[str, int, int], None], seed: int = 1
) -> tuple[dict[Stretch, Throughput], dict[str, object]]:
    """Run `stretches`, a cluster for each number of keys; return what they showed, and facts."""
    found, chance, began, wrong, batches = dict[Stretch, Throughput](), random.Random(seed), Used.now(), 0, 0
    hosts = ""
    for keys in dict.fromkeys(each.keys for each in stretches):
        rows = max(ROWS, ROWS * keys // 400_000)  # larger states are filled by larger batches
        with (
            tempfile.TemporaryDirectory(prefix="nstorm-") as folder,
            contextlib.closing(Rig(Path(folder), rows=rows, vocabulary=keys)) as rig,
        ):
            progress("starting four executors", len(found), len(stretches))
            rig.begin(warm)
            rig.fill()
            for stretch in (each for each in stretches if each.keys == keys):
                found[stretch] = run_stretch(rig, stretch, chance)
                progress(stretch.name, len(found), len(stretches))
            rig.settle()
            committed, differ = rig.finish()
            wrong, batches, hosts = wrong + differ, batches + committed, rig.confinement
    return found, {"wrong": wrong, "batches": batches, "hosts": hosts, "others": Used.now().others(began)}


def baseline(found: Mapping[Stretch, Throughput], keys: int) -> float:
    """Return the records per second of the undisturbed stretch."""
    return next(each.total for stretch, each in found.items() if stretch.way == UNDISTURBED and stretch.keys == keys)


def checks_of(found: Mapping[Stretch, Throughput], wrong: int) -> list[Check]:
    """Return the bars of the pairs that ran."""
    checks = [Check("counts that differ from a batch query's", wrong, "0", wrong == 0, "project's bar")]
    serious = {each: found[each].degraded(baseline(found, each.keys))[SERIOUS] for each in found}

    def pair(better: WayToMove, worse: WayToMove, moves: int, keys: int = VOCABULARY) -> tuple[Stretch, Stretch] | None:
        mine = {each.way: each for each in found if (each.moves, each.keys) == (moves, keys)}
        return (mine[better], mine[worse]) if {better, worse} <= mine.keys() else None

    for keys in dict.fromkeys(each.keys for each in found):
        if both := pair(LAZY, PROCESS, 1, keys):
            what = f"seconds at >= 60 %, {both[0].name} over {PROCESS.name}"
            checks.append(
                _ratio(what, serious[both[0]], serious[both[1]], 0.13, "5.2.1: 20 of 155 s, Storm*; 20 of 279 s, Storm")
            )
    for better, worse, moves, low, high, source in (
        (LAZY, PROCESS, 1, 1.65, 1.85, "5.2.1: 1.75 of Storm"),
        (EXECUTORS, PROCESS, 1, 1.31, 1.51, "5.2.1: 1.41 of Storm"),
        (LAZY, ONLINE, 16, 1.06, 1.16, "5.2.3: 1.11 of N-Storm"),
    ):
        if both := pair(better, worse, moves):
            ratio = found[both[0]].total / found[both[1]].total
            within = low <= ratio <= high
            name = f"records, {better.name} over {worse.name}, {moves} of {PARTITIONS}"
            checks.append(Check(name, round(ratio, 3), f"{low:g} to {high:g}", within, source))
    if both := pair(LAZY, ONLINE, 16):
        what = f"seconds at >= 60 %, {LAZY.name} over {ONLINE.name}, 16 of {PARTITIONS}"
        checks.append(_ratio(what, serious[both[0]], serious[both[1]], 0.81, "5.2.3: 84 of 118 s"))
    return checks


def _ratio(what: str, seconds: float, over: float, bar: float, source: str) -> Check:
    if over == 0:  # no baseline to beat
        return Check(what, f"{seconds:.0f} of 0 s", f"<= {bar:g}", None if seconds == 0 else False, source)
    return Check.at_most(what, seconds / over, bar, source)


def run_figures(options: ExperimentOptions) -> Findings:
    """Run Figures 8 to 11 on Spark: an hour, or with `quick` four minutes."""
    began = time.monotonic()
    stretches, warm = (QUICK, 15.0) if options.quick else (ALL, 60.0)
    found, about = run_all(stretches, warm, options.progress)
    return outcome(found, about, time.monotonic() - began)


def outcome(found: Mapping[Stretch, Throughput], about: Mapping[str, object], seconds: float) -> Findings:
    checks = checks_of(found, int(str(about["wrong"])))
    rows, traffic = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for stretch, each in found.items():
        usual = baseline(found, stretch.keys)
        lost = (f"{value:.0f}" for value in each.degraded(usual).values())
        rows.append(
            (
                stretch.name,
                *lost,
                f"{each.total:,.0f}",
                f"{each.total / usual:.2f}",
                f"{each.state:.0f}",
                str(len(each.asked)),
            )
        )
        traffic.append((stretch.name, *(f"{size:,.0f}" for size in each.traffic.values())))
    about_run = (
        "Online nonstop task management for Storm-based engines (N-Storm and OTD, Zhang et al.), Figures 8 to 11, run on "
        f"Spark: a word count with {PARTITIONS} state partitions on {about['hosts']}, {about['batches']} batches. "
        f"Tasks are re-deployed every {EVERY:g} s. Seconds are scaled to the paper's {WINDOW:g} s. A batch's records are "
        "spread over its time, so only seconds without any batch are at 100 %. A restart of the job ends driver and "
        "executors; hosts start without their CPU limit, in its favour, and the Python interpreter stays."
    )
    header = (
        "",
        *(f"s at >= {each:.0%}" for each in LEVELS),
        "records/s",
        "over undisturbed",
        "state, MB",
        "re-deployments",
    )
    printed = tuple(
        (name, *(f"{figures[key]:g}" if key in figures else "-" for key in PRINTED)) for name, figures in PAPER.items()
    )
    shown = {
        each.name: list(enumerate(figures.rates))
        for each, figures in found.items()
        if (each.moves, each.keys) == (1, VOCABULARY)
    }
    return report(
        "N-Storm: throughput while tasks are re-deployed (Spark)",
        about_run,
        {
            "stretches": {
                stretch.name: {
                    "records by second": [round(rate) for rate in each.rates],
                    "re-deployed at": [round(at, 2) for at in each.asked],
                    "bytes/s": {kind: round(size) for kind, size in each.traffic.items()},
                    "state, MB": round(each.state, 1),
                }
                for stretch, each in found.items()
            },
        },
        checks,
        {
            "Throughput (Figure 8)": [curves("Records by second, one task a re-deployment", "s", "records/s", shown)],
            "Degradation and totals (Figures 9 and 10)": [
                Table("Spark, by stretch", header, tuple(rows)),
                Table("The paper, of 600 s", ("", "s at >= 60 %", "s at 100 %", "total, Storm = 1"), printed),
            ],
            "Communication (Figure 11)": [Table("Bytes/s, Spark", ("", *TRAFFIC), tuple(traffic))],
        },
        seconds,
        paper={name: dict(figures) for name, figures in PAPER.items()},
        verdict=by_verdict(checks, missed="Missed", undecided="Undecided"),
        plant="spark",
        hosts=about["hosts"],
        others_share_of_cores=round(float(str(about["others"])), 3),
    )
