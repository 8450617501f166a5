"""The simulated plant keeps the contract that every plant keeps."""

from conformance.suite import PlantCase, conformance_suite
from elastream.core.hosts import HostType
from elastream.core.promises import PlantKind
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.operators import Alternate
from elastream.dataflow.stages import lay_out
from elastream.simulator import Emissions, Settings, SimulatedPlant, make_plant
from support.simulated_plants import SMALL, Queues, queueing

BIG = HostType("big", cores=4.0, memory=4000.0, price=3.0, start=4.0, stop=2.0)


def words() -> Dataflow:
    """Source > words (two alternates, counted by a signal) > count > either of two sinks."""
    flow = Dataflow("words")
    lines = flow.source(None)
    split = lines.map(
        [Alternate("split", str.lower, cost=0.004), Alternate("fast", str.lower, cost=0.001)],
        returns="word string",
        name="words",
    )
    split.signal("words_seen", "count()", trace=lambda now: 20.0 * now)
    counts = split.key_by("word").count(cores=0.5, memory=200).choice("where")
    counts.sink(None, name="table")
    counts.sink(None, name="archive")
    return flow


def plant(queues: Queues = Queues.ITEMS, hosts: int = 2, **varies) -> SimulatedPlant:
    return make_plant(
        lay_out(words().graph, chained=False),
        host_types=[BIG, SMALL],
        loads={"source": Emissions.every(1.0, [20] * 600, spread=True)},
        **queueing(
            queues,
            monitor=1.0,
            services={"count": Settings().service("count").costing(0.002)},
            record_bytes={"source": 80.0, "words": 10.0},
            **varies,
        ),
        hosts=hosts,
    )


TestItems = conformance_suite(PlantCase("items", plant, PlantKind.UNCHAINED, settle=30.0))
TestCohorts = conformance_suite(PlantCase("cohorts", lambda: plant(Queues.COHORTS), PlantKind.UNCHAINED, settle=30.0))
TestTasks = conformance_suite(PlantCase("tasks", lambda: plant(Queues.TASKS), PlantKind.UNCHAINED, settle=30.0))
TestOneHost = conformance_suite(PlantCase("one host", lambda: plant(hosts=1), PlantKind.UNCHAINED, settle=30.0))
