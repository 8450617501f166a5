"""The ring of reducers keeps the contract that every plant keeps."""

from conformance.suite import PlantCase, conformance_suite
from elastream.core.metrics import Metric, Rows
from elastream.core.promises import Condition, Promise
from elastream.dataflow.operators import Kind
from elastream_papers.thesis.resilience.reducers import Protection
from support.reducer_plants import ring

SOURCE, KEYED = frozenset({Kind.SOURCE}), frozenset({Kind.KEYED})


def promise(rows, kinds=frozenset(Kind), *when):
    return Promise(rows, frozenset(), "counted in the monitoring period", kinds, *when)


APPLICATION, HOST, TASK = promise(Rows.APPLICATION), promise(Rows.HOST), promise(Rows.TASK)
READ, REDUCED = promise(Rows.OPERATOR, SOURCE), promise(Rows.OPERATOR, KEYED)
UP = promise(Rows.HOST, frozenset(Kind), Condition.HOST_UP)
PROMISES = {
    Metric.ARRIVAL_RATE: (APPLICATION, READ, REDUCED),
    Metric.PROCESSED_RATE: (READ, REDUCED, TASK),
    Metric.EMITTED_RATE: (READ, REDUCED),
    Metric.BACKLOG: (REDUCED, TASK),
    Metric.BUSY_CORES: (REDUCED, TASK),
    Metric.STATE_SIZE: (REDUCED, TASK),
    **dict.fromkeys((Metric.DURATION, Metric.DURATION_P50, Metric.DURATION_P99), (REDUCED,)),
    **dict.fromkeys((Metric.SERVICE_TIME, Metric.UTILISATION, Metric.PARALLELISM), (REDUCED,)),
    **dict.fromkeys((Metric.CPU, Metric.SPEED, Metric.COPIES_MEMORY), (UP,)),
    **dict.fromkeys((Metric.LATENCY, Metric.LATENCY_P50, Metric.LATENCY_P99), (APPLICATION,)),
    **dict.fromkeys((Metric.THROUGHPUT, Metric.COST), (APPLICATION,)),
    Metric.TASKS: (HOST,),
    Metric.COMPLIANCE: (promise(Rows.APPLICATION, frozenset(Kind), Condition.TARGET_LATENCY),),
    Metric.CHECKPOINT_DELTA: (promise(Rows.OPERATOR, KEYED, Condition.STANDBY),),
    Metric.STANDBY_LAG: (promise(Rows.TASK, frozenset(Kind), Condition.STANDBY),),
}


def plant():
    return ring(hosts=2, rate="500/s", seconds=600.0)


def lose(reducers, host):
    reducers.fail(reducers.reducers.nodes[host], reducers.time)


TestReducers = conformance_suite(PlantCase("reducers", plant, PROMISES, settle=30.0, examples=30, lose=lose))
TestStorm = conformance_suite(
    PlantCase(
        "storm", lambda: ring(hosts=2, rate="500/s", seconds=600.0, protection=Protection.UPSTREAM), PROMISES,
        settle=90.0, examples=20,
    )
)  # fmt: skip
