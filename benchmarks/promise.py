"""In time, hosts, leases and cost of `threshold` on recorded and synthetic loads, simulated. An hour on two free cores.

Bars, all with a target latency of 30 s and hosts that start in 60 s: at least 99 % of the records in time (a tenfold burst
is shown only). Billed by the second: hosts at most 1.5 times those that the work fills. Billed by the hour: at most a tenth
of the leases ended early, and a cost below that of the static peak provision. Loads of one cycle a day: at most 100 leases.
"""

import argparse
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from _common import Report, counting, main, progress

from elastream.core.hosts import Billing, HostType
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.evaluation.cases import run_all
from elastream.evaluation.compare import compare
from elastream.evaluation.experiments import ExperimentOptions
from elastream.loads import constant, ramp, random_walk, sine, steps, trace
from elastream.loads.pattern import counts
from elastream.policies.common.provision import TARGET_UTILISATION, declared_cores, declared_provision, provision_for_cores
from elastream.policies.threshold import Threshold
from elastream.settings import SimulateSettings
from elastream.simulator import Settings, Travel

SOURCE = "the project's bar for `threshold`"
TARGET = 30.0
HOUR, DAY = 3600.0, 86_400.0
HIGH = 40_000.0  # records/s at the peak of a load, as in the recorded loads that the bars were drawn from
BY_SECOND, BY_HOUR = Billing(1.0, 60.0), Billing(3600.0)
DATA = Path("../shared/data")


@dataclass(frozen=True)
class Case:
    """One run. judged: whether the bar for records in time holds for it. daily: whether its load is one cycle a day."""

    name: str
    graph: Graph
    load: ArrivalPattern
    fused: bool
    kind: HostType
    seconds: float
    judged: bool = True
    daily: bool = False

    @property
    def title(self) -> str:
        unit = "hour" if self.kind.billing.unit == BY_HOUR.unit else "second"
        return f"{self.name}, {'fused' if self.fused else 'apart'}, by the {unit}"


def two(cores: float = 0.5) -> Graph:
    return line_of([("parse", 150e-6, 1.0), ("enrich", 250e-6, 1.0)], cores)


def line_of(operators: list[tuple[str, float, float]], cores: float) -> Graph:
    names = ["source", *(name for name, _, _ in operators), "sink"]
    return Graph(
        "promise",
        (
            Operator("source", Kind.SOURCE),
            *(
                Operator(name, alternates=(Alternate(name, cost=cost, selectivity=selectivity),), cores=cores)
                for name, cost, selectivity in operators
            ),
            Operator("sink", Kind.SINK, cores=0.0),
        ),
        tuple(Edge(a, b) for a, b in pairwise(names)),
    )


def loads(data: Path, quick: bool) -> dict[str, tuple[ArrivalPattern, float, bool, bool]]:
    burst = steps((HIGH / 10, "2h"), (HIGH, "5min"), (HIGH / 10, "1315min"))
    found: dict[str, tuple[ArrivalPattern, float, bool, bool]] = {
        "ramp": (ramp(HIGH / 20, HIGH, "45min").then_back(), 1.5 * HOUR, True, False),
        "steps": (steps(HIGH / 8, HIGH / 4, HIGH / 2, HIGH / 3, HIGH / 6, every="15min"), 1.25 * HOUR, True, False),
        "sine of two hours": (sine(HIGH / 8, HIGH, "2h").lasting("4h"), (2 if quick else 4) * HOUR, True, False),
        "burst": (burst, (6 if quick else 24) * HOUR, False, False),
        "walk": (walk(1), 2 * HOUR, True, False),
    }
    if not quick:
        found["sine of a day"] = (sine(HIGH / 8, HIGH, "24h").lasting("24h"), DAY, True, True)
        found["constant"] = (constant(HIGH / 2, "2h"), 2 * HOUR, True, False)
        for seed in (2, 3):
            found[f"walk {seed}"] = (walk(seed), 2 * HOUR, True, False)
    cup, elb = data / "rates/worldcup98_requests_per_minute.csv.gz", data / "rates/nab_elb_requests_5min.csv"
    if cup.exists() and elb.exists():
        days = trace(cup, gaps="hold")
        whole = slice_of(days, 60 * DAY, DAY)
        most = max(piece.total for piece in whole.pieces) / 60
        found["World Cup, a day"] = (whole.scaled(HIGH / most), DAY if not quick else 6 * HOUR, True, not quick)
        if not quick:
            balancer = slice_of(trace(elb, gaps="hold"), 2 * DAY, DAY)
            most = max(piece.total / piece.seconds for piece in balancer.pieces)
            found["load balancer, a day"] = (balancer.scaled(HIGH / most), DAY, True, False)
    else:
        progress(f"there are no recorded rates in {data}: those loads are left out")
    return found


def walk(seed: int) -> ArrivalPattern:
    return random_walk(HIGH / 2, HIGH / 8, low=HIGH / 8, high=HIGH, every="1min", lasts="2h", seed=seed)


def slice_of(load: Any, begin: float, seconds: float) -> Any:
    ends = load.ends
    chosen = [piece for piece, end in zip(load.pieces, ends, strict=True) if begin < end <= begin + seconds]
    return type(load)(tuple(chosen))


def cases(arguments: argparse.Namespace) -> list[Case]:
    found = []
    for name, (load, seconds, judged, daily) in loads(arguments.data, arguments.quick).items():
        for fused in (True, False):
            for billing in (BY_SECOND, BY_HOUR):
                price = 0.044 * billing.unit / HOUR
                kind = HostType("m1.small", 1.0, 1700.0, price=price, billing=billing, start=60.0, slots=10_000)
                found.append(Case(name, two(), load, fused, kind, seconds, judged, daily))
    return found


def run_case(case: Case) -> dict[str, Any]:
    monitor, period = (1.0, 2.0) if case.fused else (15.0, 15.0)
    trial = compare(
        case.graph,
        {"threshold": Threshold()},
        SimulateSettings(
            host_types=[case.kind],
            load=case.load,
            limit=case.seconds,
            target_latency=TARGET,
            fused=case.fused,
            period=period,
            seed=1,
        ),
        constants=Settings(monitor=monitor, travel=Travel.COHORTS),
    ).trials[0]
    records = case.load.count(case.seconds)
    work = sum(declared_cores(case.graph, {"source": 1.0}).values()) * records
    peak = declared_provision(
        lay_out(case.graph, chained=case.fused), case.kind, {"source": case.load}, seconds=case.seconds, window=TARGET
    )
    kept = (trial.compliance or 0.0) * (1 - trial.waiting / max(1, records))
    instances_to_fill = work / (case.kind.cores * case.kind.speed)
    return {
        "case": case.title,
        "in time": kept,
        "hosts over work": trial.result.host_seconds / instances_to_fill,
        "fewest whole hosts over work, full": fewest(case, 1.0) / instances_to_fill,
        "fewest whole hosts over work, at the target utilisation": fewest(case, TARGET_UTILISATION) / instances_to_fill,
        "hosts at most": trial.peak_hosts,
        "leases": trial.result.leases,
        "leases a day": trial.result.leases * DAY / case.seconds,
        "early": trial.result.early_releases / max(1, trial.result.leases),
        "cost": trial.cost,
        "cost of the static peak": peak.cost(case.kind, case.seconds),
        "waiting at the end": trial.waiting,
        "refused": trial.refused,
    }


def fewest(case: Case, utilisation: float) -> float:
    """Return the host-seconds of the fewest whole hosts that the load fills to `utilisation`, by target latencies.

    A reference, no strict bound: its windows are fixed. Unchained, whole instances are on whole hosts.
    """
    layout = lay_out(case.graph, chained=case.fused)
    work = declared_cores(case.graph, {"source": 1.0})
    edges = np.append(np.arange(0.0, case.seconds - TARGET / 2, TARGET), case.seconds)
    rates = np.diff(counts(case.load, edges)) / np.diff(edges)
    needed = {
        rate: provision_for_cores(layout, case.kind, {name: each * rate for name, each in work.items()}, utilisation).hosts
        for rate in set(rates.tolist())
    }
    return float(sum(needed[rate] * length for rate, length in zip(rates.tolist(), np.diff(edges).tolist(), strict=True)))


def measure(arguments: argparse.Namespace) -> Report:
    report = Report()
    wanted = [each for each in cases(arguments) if arguments.only in each.title]
    workers = min(os.cpu_count() or 1, len(wanted))
    options = ExperimentOptions(workers=workers, progress=counting(1, "cases"))
    results, _ = run_all(run_case, wanted, options, lambda case: case.title)
    for case, result in zip(wanted, results, strict=True):
        progress(str(result))
        if case.judged:
            report.at_least(f"{case.title}: in time", result["in time"], 0.99, SOURCE)
        if case.judged and case.kind.billing == BY_SECOND:
            report.at_most(f"{case.title}: hosts over those that the work fills", result["hosts over work"], 1.5, SOURCE)
        if case.kind.billing == BY_HOUR:
            report.at_most(f"{case.title}: early releases a lease", result["early"], 0.1, SOURCE)
            below = result["cost"] / result["cost of the static peak"]
            report.at_most(f"{case.title}: cost over the static peak's", below, 1.0, SOURCE)
        if case.daily:
            report.at_most(f"{case.title}: leases a day", result["leases a day"], 100, SOURCE)
    report.figures = {"cases": results}
    return report


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="folder with recorded rates")
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs with this in their title")


if __name__ == "__main__":
    main("promise", __doc__, measure, more)
