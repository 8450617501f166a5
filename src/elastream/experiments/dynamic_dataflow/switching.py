"""How the application is switched: update latency against consistency (p. 50, which gives no figures), simulated.

The queries of demand response in a row, and plans that switch the forecast in one of them and the branch in another
together: a record that meets both may meet one before and one after the switch. `consistency` runs the modes.
"""

import random
from collections.abc import Sequence

from elastream.core.hosts import HostType
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate
from elastream.dataflow.stages import lay_out
from elastream.experiments.dynamic_dataflow.consistency import Consequence, consistency_table, switches_at_random
from elastream.experiments.dynamic_dataflow.methods import METHODS
from elastream.experiments.page import Table
from elastream.loads import constant
from elastream.simulator import Settings

RATE, SECONDS = 350.0, 120.0
"""Records/s, which keep the hosts busy for two thirds of the time, and how long they come."""
BATCH = 1.0
"""Seconds from one micro-batch to the next, at least: what Spark's governor aims at."""
SWITCHES, FEWER = 20, 6
COSTS = {"arima": 2e-3, "regression_tree": 3e-3}
"""Core-seconds of a forecast; of the other methods COST."""
COST = 1e-3
HOST = HostType("station", cores=1.0, slots=2)
HOSTS = 2
SEED = 1


def nothing(*_: object) -> None:
    """What operators do where they are simulated only."""


def application() -> Graph:
    """What is simulated: as `examples/demand_response.py`, with a forecast for each record and without the comparison."""
    flow = Dataflow("demand_response")
    meters = flow.source(None, load=constant(RATE, SECONDS), name="meters", cores=0)
    integrated = meters.map(
        [Alternate("integrate", nothing, cost=COST, selectivity=1.0)], returns="kw double", name="integrate"
    )
    methods = [Alternate(name, nothing, cost=COSTS.get(name, COST), selectivity=1.0) for name in METHODS]
    forecasts = (
        integrated.durable().key_by("customer").apply(methods, returns="kw double", state="past binary", name="forecast")
    )
    total = [Alternate("demand", nothing, cost=COST, selectivity=1.0)]
    demand = forecasts.durable().key_by("hour").apply(total, returns="kw double", state="kw double", name="demand")
    peak = demand.choice("demand_response")
    peak.nothing(name="nothing")
    peak.map([Alternate("curtail", nothing, cost=COST, selectivity=1.0)], returns="kw double", name="curtail").sink(None)
    return flow.graph


def consequences(quick: bool = False) -> tuple[Consequence, ...]:
    """The same plans under the same load in each mode."""
    graph = application()
    number = FEWER if quick else SWITCHES
    draw = random.Random(SEED)
    times = [draw.uniform(0.1, 0.9) * SECONDS for _ in range(number)]
    return consistency_table(
        lay_out(graph),
        [HOST],
        {},
        switches_at_random(graph, times, SEED),
        hosts=HOSTS,
        settings=Settings(batch_interval=BATCH),
        seconds=2 * SECONDS,
    )


def figures_of(rows: Sequence[Consequence]) -> dict[str, dict[str, float]]:
    """Figures by mode."""
    return {
        str(row.mode): {
            "update latency, s": round(row.latency, 3),
            "in force after, s": round(row.delay, 3),
            "mixed records": round(row.mixed_records, 1),
            "updates": len(row.latencies),
        }
        for row in rows
    }


def table_of(rows: Sequence[Consequence]) -> Table:
    """A row for each mode."""
    header = ("mode", "update latency, mean, s", "in force after, mean, s", "mixed records, of all updates", "updates")
    shown = tuple(
        (
            str(row.mode), f"{row.latency:.2f}", f"{row.delay:.2f}", f"{row.mixed_records:,.0f}", str(len(row.latencies)),
        )
        for row in rows
    )  # fmt: skip
    return Table("Update latency against consistency, simulated (p. 50 gives no figures)", header, shown)
