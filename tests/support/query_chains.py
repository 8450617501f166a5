"""Queries one behind the other over durable edges, on simulated hosts that they share."""

from elastream.core.hosts import HostType
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.operators import Alternate
from elastream.dataflow.stages import lay_out
from elastream.simulator import Emissions, Settings, SimulatedPlant, make_plant


def in_a_row(
    *costs: float,
    rates: tuple[int, ...] = (100,) * 60,
    cores: float = 2.0,
    hosts: int = 1,
    tasks: int = 0,
    target: float | None = None,
    selectivity: float = 1.0,
    **constants: float,
) -> SimulatedPlant:
    """Return a plant of queries with an operator each.

    Args:
        costs: Core-seconds of a record, by query.
        rates: Records of each second.
        tasks: Tasks of each stage; 0: one a core.
        selectivity: Records that each operator makes of one.
    """
    flow = Dataflow("row")
    edge = flow.source(None)
    for number, cost in enumerate(costs):
        way = Alternate("it", str.lower, cost=cost, selectivity=selectivity)
        found = edge.map([way], returns="word string", name=f"o{number}")
        edge = found.durable() if number < len(costs) - 1 else found
    edge.sink(None)
    layout = lay_out(flow.graph)
    return make_plant(
        layout,
        host_types=[HostType("host", cores=cores, start=60.0)],
        loads={"source": Emissions.every(1.0, list(rates), spread=True)},
        settings=Settings(**{"monitor": 1.0, "batch_overhead": 0.1, **constants}),
        hosts=hosts,
        max_hosts=100,
        target_latency=target,
        parallelism={stage.name: tasks or int(cores) * hosts for stage in layout.stages},
    )
