"""Speed of the simulator: a day of 20 hosts at three rates, VISP's busiest load, 48 runs of it, a day of 10,000 hosts.

    python benchmarks/simulator.py [--quick] [--json FILE]    about four minutes alone on two cores

--quick has a sixth of each day, extrapolated, and two of the rates.
"""

import argparse
import time
from itertools import pairwise

import numpy as np
from _common import Report, main, progress

from elastream.core.hosts import Billing, HostType
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.evaluation.cases import run_all
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.trials import simulated
from elastream.loads import SpeedSource, SpeedWalk
from elastream.policies.threshold import Threshold
from elastream.simulator import Emissions, Settings, SimulatedPlant, Travel, make_plant
from elastream_papers.visp.experiment import PATTERNS, cases, make, run_case
from elastream_papers.visp.manufacturing import MONITORING

SOURCE = "the project's bar; compilation apart"
CHAINS, LENGTH, EACH, HOSTS = 20, 5, 500, 10_000  # A hundred operators with 500 instances each, in twenty chains
RECORDS_PER_SECOND = 2000.0
"""Mean load of a chain; it swings by 40 % over the day, so that queues fill and empty."""

RULES = ("btu", "threshold")  # of VISP's runs those by the rule of its text and of the baseline, with three seeds: 48
RATES = (2_000, 200_000, 2_000_000)  # mean records/s of the days of 20 hosts
DAY, EVERY = 86_400.0, 15.0  # seconds of a day, and between two plans
USED = 13.0
"""Cores that the mean load of those days keeps busy; it swings by 40 %, so that a policy has 12 to 26 of them to lease."""


def day_of(rate: int, fused: bool, seconds: float, hosts: SpeedSource | None = None) -> float:
    """CPU seconds of a simulated day (extrapolated from `seconds`) under `threshold` at `rate` records/s on average.

    hosts: how their speeds vary; None: not at all.
    """
    names = ("clicks", "enrich", "score", "out")
    kinds = (Kind.SOURCE, Kind.TRANSFORM, Kind.TRANSFORM, Kind.SINK)
    operators = tuple(
        Operator(name, kind, (Alternate("a", cost=USED / rate / 2),) if kind is Kind.TRANSFORM else (), cores=0.5)
        for name, kind in zip(names, kinds, strict=True)
    )
    graph = Graph("day", operators, tuple(Edge(a, b) for a, b in pairwise(names)))
    minute = np.arange(int(seconds // 60))
    counts = np.round(60 * rate * (1 + 0.4 * np.sin(2 * np.pi * minute / 1440)))
    plant = make_plant(
        lay_out(graph, chained=fused),
        host_types=[HostType("small", cores=1, memory=1700, price=0.05 / 3600, billing=Billing(1.0, 60.0), start=60.0)],
        loads={"clicks": Emissions.every(60.0, counts, spread=True)},
        settings=Settings(
            monitor=1.0 if fused else EVERY,
            travel=Travel.COHORTS,
            speed_trace=None if hosts is None else hosts.over(seconds),
        ),
        hosts=20,
        parallelism={} if fused else {"enrich": 20, "score": 20},
        max_hosts=40,
        target_latency=30.0,
    )
    began = time.process_time()
    simulated(plant, Threshold(), period=EVERY, until=seconds)
    return (time.process_time() - began) * DAY / seconds


def days(report: Report, quick: bool) -> None:
    seconds, rates = (DAY / 6, (RATES[0], RATES[-1])) if quick else (DAY, RATES)
    for fused, bound in ((True, 10.0), (False, 5.0)):
        kind = "fused" if fused else "apart"
        day_of(RATES[0], fused, 600.0)  # compiles
        cpu = {rate: day_of(rate, fused, seconds) for rate in rates}
        steady = cpu[RATES[0]]
        progress(f"a day of 20 hosts, {kind}: " + ", ".join(f"{each:.1f} s at {rate:,}/s" for rate, each in cpu.items()))
        report.at_most(f"CPU of a simulated day of 20 hosts, {kind}, s", max(cpu.values()), bound, SOURCE)
        report.at_most(f"that at 2 million records/s over that at 2,000, {kind}", cpu[RATES[-1]] / steady, 1.2, SOURCE)
        varying = day_of(RATES[0], fused, seconds, SpeedWalk()) / steady
        report.at_most(f"CPU of a day on hosts that vary over that on steady ones, {kind}", varying, 2.0, "this benchmark")
        report.figures[f"day_{kind}_cpu_seconds"] = {str(rate): each for rate, each in cpu.items()}


def large_plant() -> SimulatedPlant:
    operators: list[Operator] = []
    edges: list[Edge] = []
    for chain in range(CHAINS):
        names = [f"source_{chain}", *(f"work_{chain}_{step}" for step in range(LENGTH)), f"sink_{chain}"]
        operators.append(Operator(names[0], Kind.SOURCE))
        operators += [
            Operator(name, Kind.TRANSFORM, (Alternate(name, cost=0.1),), max_duration=1.0, cores=0.5, memory=400.0)
            for name in names[1:-1]
        ]
        operators.append(Operator(names[-1], Kind.SINK))
        edges += [Edge(a, b) for a, b in pairwise(names)]
    minute = np.arange(1440)
    loads = {
        f"source_{chain}": Emissions.every(
            60.0, np.round(60 * RECORDS_PER_SECOND * (1 + 0.4 * np.sin(2 * np.pi * minute / 1440 + chain))), spread=True
        )
        for chain in range(CHAINS)
    }
    return make_plant(
        lay_out(Graph("large", tuple(operators), tuple(edges)), chained=False),
        host_types=[HostType("vm", cores=4, memory=7000, billing=Billing(3600), start=45.0)],
        loads=loads,
        settings=Settings(monitor=60.0, travel=Travel.COHORTS),
        hosts=HOSTS,
        parallelism={operator.name: EACH for operator in operators if operator.kind is Kind.TRANSFORM},
    )


def observed_for(plant: SimulatedPlant, periods: int) -> float:
    began = time.perf_counter()
    for period in range(periods):
        plant.advance(60.0 * (period + 1))
        plant.observe()
        if period % 120 == 119:
            progress(f"simulated {(period + 1) / 60:.0f} h in {time.perf_counter() - began:.1f} s")
    return time.perf_counter() - began


def measure(arguments: argparse.Namespace) -> Report:
    report = Report()
    days(report, arguments.quick)
    observed_for(large_plant(), 2)  # compiles
    paper, paper_cpu = [], []
    for number in range(2 if arguments.quick else 4):
        case = cases()[0]
        plant = make(case)
        began, cpu = time.perf_counter(), time.process_time()
        simulated(plant, case.policy, period=60.0, until=7200.0)
        if number:  # the first compiles
            paper.append(time.perf_counter() - began)
            paper_cpu.append(time.process_time() - cpu)
            progress(
                f"two hours of {case.pattern} under {case.name}: {paper[-1]:.2f} s for {plant.result().judged:.0f} items"
            )
    report.at_most("two hours of VISP's busiest load, s", min(paper), 1.0, SOURCE)
    wanted = cases(("stepwise",) if arguments.quick else PATTERNS, (1,) if arguments.quick else (1, 2, 3), policies=RULES)
    runs, seconds = run_all(
        run_case, wanted, ExperimentOptions(workers=2), str, warm=lambda case: make(case).advance(MONITORING)
    )
    progress(f"{len(runs)} runs on two cores: {seconds:.1f} s")
    bound = 10.0 if arguments.quick else 60.0
    report.at_most(f"{len(runs)} runs of the experiment on two cores, s", seconds, bound, SOURCE)
    experiment = seconds
    periods = 60 if arguments.quick else 1440
    plant = large_plant()
    cpu = time.process_time()
    seconds = observed_for(plant, periods)
    cpu = time.process_time() - cpu
    report.at_most("a day of 10,000 hosts and 50,000 instances, s", seconds * 1440 / periods, 60.0, SOURCE)
    report.figures |= {
        "paper_seconds": paper,
        "paper_cpu_seconds": paper_cpu,
        "runs": len(runs),
        "runs_seconds": experiment,
        "items": plant.result().judged,
        "day_seconds": seconds * 1440 / periods,
        "day_cpu_seconds": cpu * 1440 / periods,
        "extrapolated": periods < 1440,
    }
    return report


if __name__ == "__main__":
    main("simulator", __doc__, measure)
