"""Policies on loads without notice, simulated: records in time after the first hour, and mean hosts.

    python benchmarks/elasticity.py [--policy NAME ...] [--quick] [--json FILE]    about 20 minutes on two free cores

One-core hosts, billed by the second, start in 60 s; a record takes 400 us; plans every 15 s; target latency 30 s. Beside
them stands the best constant fleet in hindsight: the smallest one that keeps 99 % in time. Runs begin with one host.
"""

import argparse
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from _common import Report, counting, main, progress

from elastream.core.hosts import Billing, HostType
from elastream.core.plant import Policy
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.operators import Alternate
from elastream.documents.registry import POLICY, made, named_in
from elastream.documents.user_code import References
from elastream.evaluation.cases import run_all
from elastream.evaluation.comparison import Trial
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.simulate import simulate
from elastream.loads.pattern import Pattern, Section
from elastream.policies.static import Static

SOURCE = "the project's bar for the horizon policy"
HOUR, BIN, WORK = 3600.0, 10.0, 400e-6
HOST = HostType("small", 1.0, price=1 / HOUR, billing=Billing(1.0), start=60.0)
IN_TIME, OVER_CONSTANT, MOST_HOSTS = 0.99, 1.03, 60
DEFAULT = ("threshold", "horizon")


def loads(hours: float, seed: int = 0) -> dict[str, np.ndarray]:
    """Return rates (records/s) by load, one for each `BIN` seconds."""
    draw = np.random.default_rng(seed)
    times = np.arange(0, hours * HOUR, BIN)
    size = times.size

    def noise(deviation: float) -> np.ndarray:
        return np.exp(draw.normal(0, deviation, size))

    bursts, at = np.zeros(size), 0
    while at < size:
        idle, busy = int(draw.exponential(18)) + 1, int(draw.exponential(9)) + 1
        bursts[at : at + idle] = draw.uniform(0, 600)
        rows = bursts[at + idle : at + idle + busy]
        rows[:] = draw.uniform(0.3, 1) * 10_000 * np.exp(draw.normal(0, 0.2, rows.size))
        at += idle + busy
    drift = np.zeros(size)
    for row in range(1, size):
        drift[row] = 0.995 * drift[row - 1] + draw.normal(0, 0.03)
    spikes = 9000 * np.exp(drift)
    for row in draw.integers(0, size - 60, 8):
        spikes[row : row + 60] *= 1 + draw.uniform(0.5, 1.5) * np.exp(-np.arange(60) / 20)
    walk = np.empty(size)
    rate = 9000.0
    for row in range(size):
        rate = float(np.clip(rate + draw.choice([-900, 0, 900]), 1000, 20_000)) if row % 6 == 0 else rate
        walk[row] = rate
    levels = [3000, 9000, 15_000, 6000, 12_000, 3000, 18_000, 9000, 4000, 10_000, 16_000, 5000]
    once = np.full(size, 8000.0)
    once[size // 2 : size // 2 + 60] *= 4
    return {
        "wave": 12_000 * (1 + 0.4 * np.sin(2 * np.pi * times / 14_400)) * noise(0.08),
        "on-off": bursts,
        "peaks": (9000 + 9000 * np.sin(2 * np.pi * times / 3100) ** 2) * noise(0.04),
        "spikes": spikes,
        "walk": walk,
        "steps": np.repeat(levels, -(-size // len(levels)))[:size].astype(float),
        "one burst": once,
        "noise": 8000 * noise(0.2),
        "every 8 min": np.where(times % 480 < 120, 15_000.0, 2000.0),
    }


def same(row: Any) -> Any:
    return row


def trial(rates: np.ndarray, policy: Policy) -> tuple[float, float, float, int]:
    """Return in time after the first hour, in time, mean hosts, leases."""
    load = Pattern(tuple(Section(BIN, float(rate), float(rate)) for rate in rates))
    flow = Dataflow("policies")
    flow.source(None, load=load).map([Alternate("work", same, cost=WORK)], returns="row string").sink(None)
    result = simulate(
        flow, {"it": policy}, host_types=[HOST], fused=True, target_latency=30.0, period=15.0, max_hosts=MOST_HOSTS,
        target=IN_TIME, show=False,
    )["it"]  # fmt: skip
    return _late_hours(result), result.compliance or 0.0, result.cost / (rates.size * BIN) * HOUR, result.result.leases


def _late_hours(result: Trial) -> float:
    series = result.result.series
    rows = (series[:, 0] > HOUR) & ~np.isnan(series[:, 5]) & (series[:, 6] > 0)
    return float(np.average(series[rows, 5], weights=series[rows, 6]))


def best_constant(rates: np.ndarray) -> int:
    """Return the smallest fleet that keeps the target, by bisection."""
    below, enough = max(0, int(rates.mean() * WORK) - 1), MOST_HOSTS
    while enough - below > 1:
        middle = (below + enough) // 2
        below, enough = (below, middle) if trial(rates, Static(middle))[1] >= IN_TIME else (middle, enough)
    return enough


def measured(args: argparse.Namespace) -> Report:
    """Simulate every policy on every load."""
    policies: Sequence[str] = args.policy or DEFAULT
    report = Report()

    def case(name: str) -> dict[str, Any]:
        rates = courses[name]
        ways = {each: trial(rates, made(POLICY, *named_in(each, POLICY), References())) for each in policies}
        return {"fill": float(rates.mean() * WORK), "constant": best_constant(rates), "policies": ways}

    courses = loads(2.0 if args.quick else 6.0)
    names = list(courses)[:3] if args.quick else list(courses)
    options = ExperimentOptions(workers=min(os.cpu_count() or 1, len(names)), progress=counting(1, "loads"))
    results, _ = run_all(case, names, options, str)
    for name, figures in zip(names, results, strict=True):
        report.figures[name] = figures
        progress(f"{name}: {figures}")
        if "horizon" in figures["policies"]:
            in_time, _, hosts, _ = figures["policies"]["horizon"]
            report.at_least(f"{name}: in time after the first hour", in_time, IN_TIME, SOURCE)
            report.at_most(
                f"{name}: hosts over the best constant fleet", hosts / figures["constant"], OVER_CONSTANT, SOURCE
            )
    return report


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", action="append", help="a policy as for `elastream simulate`; may be repeated")


if __name__ == "__main__":
    main("elasticity", __doc__, measured, arguments)
