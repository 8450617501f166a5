"""The thesis's synthetic dataflow (Figure 5.2): ten stages of three operators, three inputs.

Page 111 gives size, number of alternates and loads; the rest is assumed. All follows from a seed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from elastream.core.qos import offered_rates
from elastream.dataflow.endpoints import ArrivalPattern, Simulated
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Delivery, Edge, Kind, Operator
from elastream.loads.pattern import Pattern
from elastream_papers.harness.assumptions import assumed
from elastream_papers.thesis.deployed import PRICES, RUN, loads_between

STAGES, WIDE = 10, 3  # stages, and operators of each (Figure 5.2)
# alternates of the thirty operators, drawn in order: 45 in all (Figure 5.2: one to three each)
NUMBERS = (1,) * 18 + (2,) * 9 + (3,) * 3
LOW, HIGH, WAVE = 2.0, 75.0, 24 * 3600.0  # messages/s at trough and peak, and seconds of a wave (p. 111)
NOISE, EVERY = 0.2, 60.0  # largest noise relative to the rate, and its period in seconds (p. 111)


@dataclass(frozen=True)
class SyntheticAssumptions:
    """Values missing in the thesis."""

    work: float = assumed(
        0.1,
        "core-seconds of speed 1 a message",
        "about the mean of the eight operators of Linear Road as they are simulated",
    )
    spread: float = assumed(0.5, "of the work", "operators cost half to one and a half times as much as the mean", most=1.0)
    least_value: float = assumed(0.5, "of the best", "the lowest of Figure 4.5", most=0.95)
    least_cost: float = assumed(0.6, "of the best's", "the lowest of Figure 4.5: 0.3 of 0.5", most=0.95)
    selectivity: float = assumed(
        0.2, "around 1", "alternates emit 0.8 to 1.2 messages for each: rates stay alike over ten stages", most=0.9
    )
    crossing: float = assumed(
        1 / 3,
        "of the operators",
        "one in each stage deals its messages to two of the next, so that the streams mix",
        most=1.0,
    )
    worth: float = assumed(
        2.0, "times what the work costs", "break-even at the highest value: twice the cost of its work, so that a profit "
        "is possible; half of that at the lowest value, as on p. 90"
    )  # fmt: skip
    record: float = assumed(100.0, "bytes a message", "a reading with its name and time")


def streams(seed: int, seconds: float = RUN) -> dict[str, Pattern]:
    """Return three loads: sines of independent phases, with new noise every minute (p. 111)."""
    rng = np.random.default_rng([seed, 52])
    minutes = (np.arange(math.ceil(seconds / EVERY)) + 0.5) * EVERY
    found = {}
    for number in range(WIDE):
        wave = np.sin(2 * np.pi * (minutes / WAVE + rng.uniform()))
        base = LOW + (HIGH - LOW) * (1 + wave) / 2
        found[f"input_{number}"] = loads_between(base * (1 + rng.uniform(-NOISE, NOISE, base.size)), EVERY, seconds)
    return found


def synthetic(assumptions: SyntheticAssumptions, loads: Mapping[str, ArrivalPattern], seed: int) -> Graph:
    """Return the dataflow: `p<stage>_<row>` feeds its row in the next stage, some another one too."""
    rng = np.random.default_rng([seed, 53])
    numbers = iter(rng.permutation(NUMBERS).tolist())
    operators = [
        Operator(name, Kind.SOURCE, reads=Simulated(load), cores=0.0, record_bytes=assumptions.record)
        for name, load in loads.items()
    ]
    edges = [Edge(name, _name(0, row)) for row, name in enumerate(loads)]
    for stage in range(STAGES):
        for row in range(WIDE):
            alternates = _alternates(assumptions, next(numbers), rng)
            operators.append(Operator(_name(stage, row), alternates=alternates, record_bytes=assumptions.record))
            crosses, aside = rng.uniform() < assumptions.crossing, int(rng.integers(1, WIDE))
            if stage == STAGES - 1:
                edges.append(Edge(_name(stage, row), f"output_{row}"))
            elif crosses:
                edges += [
                    Edge(_name(stage, row), _name(stage + 1, (row + more) % WIDE), Delivery.ROUND_ROBIN)
                    for more in (0, aside)
                ]
            else:
                edges.append(Edge(_name(stage, row), _name(stage + 1, row)))
    operators += [Operator(f"output_{row}", Kind.SINK, cores=0.0) for row in range(WIDE)]
    return Graph("synthetic", tuple(operators), tuple(edges))


def _name(stage: int, row: int) -> str:
    return f"p{stage}_{row}"


def _alternates(assumptions: SyntheticAssumptions, number: int, rng: np.random.Generator) -> tuple[Alternate, ...]:
    best = assumptions.work * (1 + rng.uniform(-assumptions.spread, assumptions.spread))
    found = []
    for rank in range(number):
        value, part = (
            (1.0, 1.0)
            if rank == 0
            else (rng.uniform(assumptions.least_value, 1.0), rng.uniform(assumptions.least_cost, 1.0))
        )
        emitted = 1 + rng.uniform(-assumptions.selectivity, assumptions.selectivity)
        found.append(Alternate(f"a{rank}", value=value, cost=max(1e-6, best * part), selectivity=emitted))
    return tuple(found)


def break_even(assumptions: SyntheticAssumptions, graph: Graph) -> tuple[float, float]:
    """Return hourly costs at which the lowest and highest value break even, at the mean rate."""
    best = {each.name: each.alternates[0] for each in graph.operators if each.alternates}
    rates = offered_rates(
        graph,
        {source.name: (LOW + HIGH) / 2 for source in graph.sources},
        {name: alternate.selectivity or 1.0 for name, alternate in best.items()},
    )
    cores = math.fsum(rates[name] * (alternate.cost or 0.0) for name, alternate in best.items())
    _, speed, _, price = PRICES["m1.small"]
    highest = assumptions.worth * cores * price / speed
    return highest / 2, highest
