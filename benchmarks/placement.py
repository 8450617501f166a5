"""Planning time of placement: OTD and Elastic Allocator's greedy matching for 50,000 tasks on 2,000 hosts. 5 minutes.

OTD is timed in cases 1 and 3, over an exchange with twenty partners a task. Seconds are of processor time. On small cases,
the matching and its search are compared with the exact placement if the solver proves it.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from _common import Report, main, progress

from elastream.core.frames import Floats, Integers
from elastream.core.observation import Exchange
from elastream.errors import InputError
from elastream.policies.elastic_allocator.policy import allocate, deviation
from elastream.policies.otd import Case, OtdRules, Workers, otd_round
from elastream_papers.elastic_allocator.exact import least_deviation

TASKS, HOSTS, PARTNERS = 50_000, 2_000, 20
BAR = 1.0


def exchanging(random: np.random.Generator, tasks: int) -> Exchange:
    source = np.repeat(np.arange(tasks), PARTNERS)
    return Exchange(source, random.integers(0, tasks, source.size), random.exponential(1e4, source.size))


def timed(rounds: int, plan: Callable[[int], object]) -> tuple[float, float]:
    cpu, wall = [], []
    for number in range(rounds + 1):
        began, began_wall = time.process_time(), time.perf_counter()
        plan(number)
        if number:
            cpu.append(time.process_time() - began)
            wall.append(time.perf_counter() - began_wall)
    return statistics.median(cpu), statistics.median(wall)


def measure_otd(case: Case, rounds: int, tasks: int, hosts: int) -> dict[str, float]:
    random = np.random.default_rng(1)
    exchange = exchanging(random, tasks)
    place: Integers = random.integers(0, hosts, tasks)
    load = random.exponential(0.02, tasks)
    used = random.uniform(0.2, 0.69, hosts)
    if case is Case.BALANCE:
        used[:: max(2, hosts // 20)] = 0.99
    workers = Workers(np.arange(hosts), used, np.full(hosts, np.nan), np.ones(hosts, dtype=np.bool_))

    def plan(number: int) -> None:
        pair = otd_round(workers, place, load, exchange, OtdRules())
        assert pair.case is case
        assert pair.task >= 0
        place[pair.task] = pair.worker

    cpu, wall = timed(rounds, plan)
    return {"tasks": tasks, "hosts": hosts, "pairs that exchange": len(exchange), "seconds": cpu, "wall seconds": wall}


def measure_matching(rounds: int, tasks: int, hosts: int) -> dict[str, float]:
    random = np.random.default_rng(2)
    sizes = random.choice([1.0, 2.0], (hosts, 1)) * np.ones((hosts, 2))
    base = random.uniform(0.0, 0.2, (hosts, 2)) * sizes
    needs = [
        (each := random.gamma(2.0, 1.0, (tasks, 2))) * (0.45 * sizes.sum(axis=0) / each.sum(axis=0))
        for _ in range(rounds + 1)
    ]
    found = []
    cpu, wall = timed(rounds, lambda n: found.append(allocate(needs[n], base, sizes, search=False)))
    held = base.copy()
    np.add.at(held, found[-1].place, needs[-1])
    at_random = base.copy()
    np.add.at(at_random, random.integers(0, hosts, tasks), needs[-1])
    return {
        "tasks": tasks,
        "hosts": hosts,
        "placed as best as could be": found[-1].rest,
        "deviation": deviation(held, sizes),
        "deviation, random": deviation(at_random, sizes),
        "seconds": cpu,
        "wall seconds": wall,
    }


def against_exact(cases: int) -> dict[str, float]:
    random = np.random.default_rng(3)
    ratios: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(cases):
        hosts, tasks = int(random.integers(2, 5)), int(random.integers(4, 10))
        needs = random.uniform(0.02, 0.25, (tasks, 2)) * hosts / tasks * 4
        base, sizes = random.uniform(0.0, 0.3, (hosts, 2)), np.ones((hosts, 2))
        try:
            best = least_deviation(needs, base, sizes, seconds=5.0)
        except InputError:
            continue  # not all tasks fit
        if best.optimal:
            for search, found in ratios.items():
                found.append(_even(allocate(needs, base, sizes, search=search).place, needs, base) / best.value)
    return {
        "cases": cases,
        "proven": len(ratios[True]),
        "worst ratio": max(ratios[True]),
        "median ratio": statistics.median(ratios[True]),
        "worst ratio, without search": max(ratios[False]),
    }


def _even(place: Integers, needs: Floats, base: Floats) -> float:
    held = base.copy()
    np.add.at(held, place, needs)
    return deviation(held, np.ones(base.shape))


def measure(arguments: argparse.Namespace) -> Report:
    report = Report()
    rounds = 3 if arguments.quick else 7
    tasks, hosts = TASKS, HOSTS
    rows = {
        "OTD, case 1": measure_otd(Case.BALANCE, rounds, tasks, hosts),
        "OTD, case 3": measure_otd(Case.COMMUNICATION, rounds, tasks, hosts),
        "greedy matching": measure_matching(rounds, tasks, hosts),
    }
    for name, row in rows.items():
        progress(f"{name}: {row['seconds']:.3f} s of CPU ({row['wall seconds']:.3f} by the clock)")
        report.at_most(f"{name}, {tasks:,} tasks on {hosts:,} hosts, s of CPU", row["seconds"], BAR)
    exact = against_exact(10 if arguments.quick else 40)
    report.at_most("matching and search over the exact placement, worst of small cases", exact["worst ratio"], 1.05)
    report.figures = {**rows, "small cases": exact}
    return report


if __name__ == "__main__":
    main("placement", __doc__, measure)
