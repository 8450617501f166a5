"""Dataflows and plants that tests of the simulation share."""

import math
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np

from elastream.core.hosts import Billing, HostType
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Delivery, Edge, Kind, Operator
from elastream.dataflow.stages import Layout, lay_out
from elastream.simulator import Emissions, Settings, SimulatedPlant, Travel, make_plant
from elastream_papers.tasks import TaskNetwork, TaskSettings

SHARE = 1024
"""CPU shares of one core, as container engines count them."""

TABLE_2 = {
    "O1": (1.5, 660, 452, 89, 3.0),
    "O2": (0.6, 131, 524, 68, 1 / 50),
    "O3": (0.75, 100, 430, 68, 1.0),
    "O4": (0.75, 83, 502, 68, 1.0),
    "O5": (0.75, 77, 527, 68, 1.0),
    "O6": (0.6, 65, 440, 68, 1 / 100),
    "O7": (0.7, 46, 464, 68, 1 / 3),
    "O8": (0.5, 74, 466, 68, 1.0),
    "O9": (1.3, 47, 452, 70, 1 / 300),
}
"""VISP Table 2: duration (s), CPU shares, memory (MB), image (MB), items out per item in."""

EDGES = {
    "S1": ["O2"], "S2": ["O1"], "S3": ["O6"], "O1": ["O3", "O4", "O5"], "O3": ["O7"], "O4": ["O7"], "O5": ["O7"],
    "O7": ["O9"], "O2": ["O8"], "O6": ["O8"], "O9": ["O8"], "O8": ["out"],
}  # fmt: skip
"""VISP, Figure 1."""


VM = HostType("vm", cores=4, memory=7000, billing=Billing(600.0), start=45.0, stop=10.0, slots=16)
SMALL = HostType("small", cores=1, memory=1000, billing=Billing(60.0), start=4.0, stop=2.0)


def operator(name, seconds, cores=1.0, selectivity=1.0, memory=0.0, image=0.0, limit=None) -> Operator:
    """An operator whose instance takes `seconds` an item on a core of speed 1."""
    alternate = Alternate(name, cost=seconds * cores, selectivity=selectivity)
    return Operator(name, Kind.TRANSFORM, (alternate,), max_duration=limit, cores=cores, memory=memory, image=image)


def manufacturing() -> Layout:
    """The nine operators of VISP, every one apart; O1 deals its three results to O3, O4 and O5."""
    operators = [Operator(name, Kind.SOURCE) for name in ("S1", "S2", "S3")]
    for name, (seconds, shares, memory, image, selectivity) in TABLE_2.items():
        operators.append(operator(name, seconds, shares / SHARE, selectivity, memory, image, seconds))
    operators.append(Operator("out", Kind.SINK))
    edges = [
        Edge(source, target, Delivery.ROUND_ROBIN if source == "O1" else Delivery.DUPLICATE)
        for source, targets in EDGES.items()
        for target in targets
    ]
    return lay_out(Graph("manufacturing", tuple(operators), tuple(edges)), chained=False)


def machines(levels, seconds_each=240.0) -> dict[str, Emissions]:
    """Loads of `levels` machines in turn, emitting every 480 ms as in VISP Table 1."""
    counts = np.repeat(levels, round(seconds_each / 0.48))
    return {name: Emissions.every(0.48, counts * rate) for name, rate in (("S1", 5), ("S2", 1), ("S3", 10))}


def line(name: str, *operators: Operator) -> Graph:
    """Operators one after the other."""
    return Graph(name, operators, tuple(Edge(a.name, b.name) for a, b in pairwise(operators)))


def between_ends(*operators: Operator, name: str = "chain") -> Graph:
    """Source > operators > sink."""
    return line(name, Operator("source", Kind.SOURCE), *operators, Operator("sink", Kind.SINK))


def chain(*operators: Operator, name: str = "chain") -> Layout:
    """Source > operators > sink, every one apart."""
    return lay_out(between_ends(*operators, name=name), chained=False)


def one_queue(times, seconds, instances=1, *, settings=None, limit=1.0, seed=0, **options) -> SimulatedPlant:
    """A single operator before `instances` instances of one core each, fed at `times`."""
    kind = HostType("big", cores=float(max(instances, 4)), memory=1e6, start=30.0)
    return make_plant(
        chain(operator("work", seconds, limit=limit)),
        host_types=[kind],
        loads={"source": Emissions.at(times)},
        settings=settings or Settings(),
        parallelism={"work": instances},
        seed=seed,
        **options,
    )


def travelling(travel: Travel) -> dict[str, Any]:
    """Settings by which items travel so; in cohorts, however few they are."""
    return {"travel": travel, "cohorts_above": 0}


class Queues(StrEnum):
    """Ways to simulate the queues of operators that run apart."""

    ITEMS = "items"
    COHORTS = "cohorts"
    TASKS = "tasks"


def queueing(queues: Queues, **settings: Any) -> dict[str, Any]:
    """Options of `make_plant` for `queues`; every operator in cohorts, however few items it has."""
    if queues is Queues.TASKS:
        return {"settings": TaskSettings(**settings), "network": TaskNetwork}
    travel = Travel.COHORTS if queues is Queues.COHORTS else Travel.SINGLE
    return {"settings": Settings(**travelling(travel), **settings)}


def run_out(plant: SimulatedPlant, step: float = 60.0, limit: float = math.inf) -> SimulatedPlant:
    """Let time pass until the plant has finished."""
    while not plant.finished and plant.time < limit:
        plant.advance(plant.time + step)
    return plant
