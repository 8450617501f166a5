"""Skewed keys: how near the best packing Autopilot's policy comes, on loads by Zipf's law."""

import statistics
from typing import Any

import numpy as np
from _common import Report

from elastream import HostType
from elastream.core.action import MoveTask
from elastream.core.frames import Frame, TaskFrame
from elastream.core.hosts import HostState, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Context, Observation
from elastream.policies.by_load import ByLoad
from elastream.spark.queries.watched import layout_of
from elastream_papers.elastic_allocator.exact import pack

SOURCE = "the project's bar for Autopilot"


def zipf(seed: int, partitions: int = 64, keys: int = 20_000, exponent: float = 1.2) -> np.ndarray[Any, Any]:
    """What partitions take whose keys are drawn by Zipf's law and hashed, as shares of one core."""
    weights = np.arange(1, keys + 1) ** -exponent
    return np.bincount(np.random.default_rng(seed).integers(0, partitions, keys), weights / weights.sum(), partitions)


def observed_stages(
    stages: tuple[str, ...], place: np.ndarray[Any, Any], busy: np.ndarray[Any, Any], hosts: int
) -> Observation:
    """Partitions of `stages`, as many of each, at `place`, that take `busy` cores, on equal hosts."""
    layout = layout_of((("q", stages),))
    names = tuple(layout.graph.by_name)
    kind = HostType("executor", cores=1.0)
    leases = {
        f"h{n}": Lease(f"h{n}", kind, 0.0).to(HostState.STARTING, 0.0).to(HostState.RUNNING, 0.0) for n in range(hosts)
    }
    width = len(place) // len(stages)
    operators = np.repeat([names.index(stage) for stage in stages], width)
    tasks = TaskFrame(operators, np.tile(np.arange(width), len(stages)), place, names, {Metric.BUSY_CORES: busy})
    return Observation(1.0, Context(layout), Frame(names), hosts=Frame(tuple(leases)), tasks=tasks, leases=leases)


def measure_skew(report: Report, quick: bool) -> None:
    """The busiest executor after six rounds over the best packing, worst of all cases; loads are measured 2 % off."""
    worst, moves, random = 0.0, [], np.random.default_rng(1)
    for hosts in (2, 4, 8):
        for seed in range(3 if quick else 20):
            weights = zipf(seed)
            place = np.zeros(len(weights), dtype=np.int64) if seed % 2 else np.arange(len(weights)) % hosts
            moved = 0
            for _ in range(6):
                noisy = weights * random.normal(1.0, 0.02, len(weights)).clip(0.9, 1.1)
                for action in ByLoad(worth=0.0).plan(observed_stages(("q/s",), place, noisy, hosts)).actions:
                    assert isinstance(action, MoveTask)
                    place[action.task.index] = int(action.host[1:])
                    moved += 1
            best = float(pack(weights, [1.0] * hosts, seconds=5.0).bound)
            worst = max(worst, float(np.bincount(place, weights, hosts).max()) / best)
            moves.append(moved)
    report.figures["skew (simulated loads)"] = {
        "worst over the solver's bound": worst,
        "moves, mean": statistics.mean(moves),
    }
    name = "busiest executor after 6 rounds over the best packing (Zipf 1.2, 64 partitions, simulated)"
    report.at_most(name, worst, 1.05, SOURCE)
