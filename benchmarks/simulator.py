"""Speed of simulations, in four minutes alone on two cores; --quick has a sixth of each day, extrapolated.

A day of 20 hosts at three rates and under `horizon`, one of the default document, VISP's busiest load, 48 runs of it, a day
of 10,000 hosts, and the time that `horizon` plans.
"""

import argparse
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from _common import Report, main, progress

from elastream.cli.program import declared
from elastream.core.hosts import Billing, HostType
from elastream.core.observation import Observation
from elastream.core.plant import Plan, Policy
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.evaluation.cases import run_all
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.simulate import simulate
from elastream.evaluation.trials import simulated
from elastream.loads import SpeedSource, SpeedWalk, ramp
from elastream.policies.horizon.policy import Horizon
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
THRESHOLD = Threshold()
DAY, EVERY = 86_400.0, 15.0  # seconds of a day, and between two plans
USED = 13.0
"""Cores that the mean load of those days keeps busy; it swings by 40 %, so that a policy has 12 to 26 of them to lease."""


def chain(
    names: Sequence[str], cost: float, ends: float = 1.0, **needs: Any
) -> tuple[tuple[Operator, ...], tuple[Edge, ...]]:
    """Return a source and a sink of `ends` cores, with operators of `cost` core-seconds per record and `needs` between."""
    works = (Operator(name, Kind.TRANSFORM, (Alternate("a", cost=cost),), **needs) for name in names[1:-1])
    operators = (Operator(names[0], Kind.SOURCE, cores=ends), *works, Operator(names[-1], Kind.SINK, cores=ends))
    return operators, tuple(Edge(a, b) for a, b in pairwise(names))


def day_of(rate: int, fused: bool, seconds: float, hosts: SpeedSource | None = None, policy: Policy = THRESHOLD) -> float:
    """Return the CPU seconds of a simulated day, extrapolated from `seconds`; `hosts`: how their speeds vary."""
    graph = Graph("day", *chain(("clicks", "enrich", "score", "out"), USED / rate / 2, 0.5, cores=0.5))
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
    simulated(plant, policy, period=EVERY, until=seconds)
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


def under_horizon(report: Report, quick: bool) -> None:
    seconds = DAY / 6 if quick else DAY
    day_of(RATES[0], True, 3600.0, policy=Horizon())  # compiles
    cpu = day_of(RATES[0], True, seconds, policy=Horizon())
    progress(f"a day of 20 hosts under horizon: {cpu:.1f} s")
    report.at_most("CPU of a simulated day of 20 hosts under horizon, s", cpu, 20.0, SOURCE)
    declaration = declared(Path(__file__).parents[1] / "examples" / "word_count.yaml")
    seconds, period = DAY / 24 if quick else DAY, 2.0
    for policy in (declaration.policy, Horizon()):
        load, began = ramp("1k/s", "18k/s", f"{seconds / 2}s").then_back(), time.process_time()
        simulate(
            declaration.graph, policy, cloud=declaration.settings.cloud, load=load, period=period, show=False,
            target_latency=declaration.settings.target_latency,
        )  # fmt: skip
        cpu = (time.process_time() - began) * DAY / seconds
        progress(f"a day of the default document under {policy.name}: {cpu:.1f} s")
        report.at_most(f"CPU of a simulated day of the default document, {policy.name}, s", cpu, 15.0, SOURCE)


class Timed(Horizon):
    """`horizon` that notes the CPU seconds of each plan in `SPENT`."""

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        began = time.process_time()
        plan = super().plan(observation, memory)
        SPENT.append(time.process_time() - began)
        return plan


SPENT: list[float] = []


def planning(report: Report) -> None:
    period, minutes = 2.0, 10
    for operators, hosts, share in ((10, 50, 0.05), (100, 1000, 0.5)):
        for fused in (True, False):
            names = ["source", *(f"work_{number}" for number in range(operators - 2)), "out"]
            graph = Graph("planned", *chain(names, 0.7 * hosts / 1000 / (operators - 2), 0.1, cores=0.1))
            swing = np.round(1000 * period * (1 + 0.4 * np.sin(np.arange(30 * minutes) / 20)))
            instances = {} if fused else dict.fromkeys(names[1:-1], 2 * hosts // operators)
            plant = make_plant(
                lay_out(graph, chained=fused),
                host_types=[HostType("small", cores=1, price=1.0, start=30.0)],
                loads={"source": Emissions.every(period, swing, spread=True)},
                settings=Settings(monitor=period, travel=Travel.COHORTS),
                hosts=hosts, parallelism=instances, max_hosts=2 * hosts, target_latency=30.0,
            )  # fmt: skip
            SPENT.clear()
            simulated(plant, Timed(), period=period, until=60.0 * minutes)
            kind = f"{operators} operators, {hosts} hosts, {'fused' if fused else 'apart'}"
            progress(f"planning for {kind}: {max(SPENT[1:]) / period:.3f} of a period of {period:g} s at most")
            report.at_most(f"planning under horizon, longest share of {period:g} s, {kind}", max(SPENT[1:]) / period, share)


def large_plant() -> SimulatedPlant:
    chains = [
        chain(
            [f"source_{n}", *(f"work_{n}_{step}" for step in range(LENGTH)), f"sink_{n}"],
            0.1, max_duration=1.0, cores=0.5, memory=400.0,
        )
        for n in range(CHAINS)
    ]  # fmt: skip
    operators, edges = (tuple(each for part in parts for each in part) for parts in zip(*chains, strict=True))
    minute = np.arange(1440)
    loads = {
        f"source_{n}": Emissions.every(
            60.0, np.round(60 * RECORDS_PER_SECOND * (1 + 0.4 * np.sin(2 * np.pi * minute / 1440 + n))), spread=True
        )
        for n in range(CHAINS)
    }
    return make_plant(
        lay_out(Graph("large", operators, edges), chained=False),
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
    under_horizon(report, arguments.quick)
    planning(report)
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
