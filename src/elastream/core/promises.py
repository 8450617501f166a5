"""Promises of the plants: metrics that each measures, of which rows, when and how."""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import cache, partial

from elastream.core.metrics import Metric, Rows
from elastream.dataflow.endpoints import Files, Records, TextFiles
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import NATIVE, Form, Kind, Operator, emits_as_many
from elastream.dataflow.stages import Layout

# Forms of alternates that run in the JVM, or not at all.
UNMETERED = NATIVE | {Form.AGGREGATE, Form.NONE}


class PlantKind(StrEnum):
    DATAFLOW = "dataflow on Spark"
    WATCHED = "watched queries on Spark"
    UNCHAINED = "simulated, unchained"
    CHAINED = "simulated, chained"


class Condition(StrEnum):
    """Conditions of a promise, with texts for the reference."""

    DECLARED_LOAD = "a source with a declared load"
    LOCAL_FILES = "the source reads local files"
    SOURCES_COUNTED = "each source has a declared load, reads local files, or reports how far it is behind"
    NATIVE = "the operator is column expressions, or other DataFrame code"
    ONE_TO_ONE = "it is columns of each record, and none explodes a record into several"
    INPUT_METERED = "the operators before it report their output"
    TASKS_FIXED = (
        "its number is set: of a source with a load, a durable edge or a keyed operator; or a Python function runs in it"
    )
    TARGET_LATENCY = "a target latency is set"
    MAX_DURATIONS = "no target latency is set and operators have a `max_duration`"
    MAX_DURATION = "the operator has a `max_duration`"
    PYTHON = "the operator is a Python function"
    DURABLE_INPUT = "a durable edge leads to the operator"
    STAGE_HEAD = "the operator is the first of its stage"
    QUERY_HEAD = "the operator is the first of its query"
    PYTHON_IN_QUERY = "a Python function runs in its query, or the dataflow has no keyed operator"
    LAG_REPORTED = "the source reports how far it is behind"
    PYTHON_BEFORE = "a Python function runs before it in its query"
    HOST_UP = "the host is up"
    PROBED = "executors run the Python daemon of Elastream"
    PYTHON_MEASURED = "executors run the Python daemon of Elastream, or have `spark.executor.processTreeMetrics.enabled`"
    SHUFFLES = "shuffles are measured"
    RECORD_SIZES = "record sizes are declared"
    BANDWIDTH = "the link has a declared bandwidth"
    OWN_PARALLELISM = "the operator is the first of a stage with a parallelism of its own, or waits"
    PROVIDER_MEASURES = "the provider of hosts measures it"
    HOST_NETWORKS = "hosts have networks of their own"
    INSTANCE_QUEUES = "each instance has a queue of its own"
    COMPOSITION_CHANGED = "alternates, branches or key tables have changed while it ran"
    ON_ERROR = "an `on_error` other than `fail` is set"
    STANDBY = "copies of state are kept (`replicas`)"
    STATE_COMMITTED = "a batch is committed"
    HEARTBEAT = "a heartbeat has arrived"
    LIMITED = "a limit is set"
    WATERMARK = "a query has a watermark"
    SNAPSHOTS_COUNTED = "RocksDB counts them"
    STATE_CHANGELOG = "its state store writes changes, in files that the driver can list"

    def holds(self, layout: Layout, target_latency: float | None, operator: Operator | None = None) -> bool | None:
        """Return True if met for `operator` or the application; None if only the running plant knows."""
        if operator is not None and self in _OF_OPERATOR:
            return _OF_OPERATOR[self](layout, operator)
        return _OF_APPLICATION[self](layout.graph, target_latency) if self in _OF_APPLICATION else None


def _is_python(operator: Operator) -> bool:
    return bool(operator.alternates) and all(each.form not in UNMETERED for each in operator.alternates)


def _input_metered(layout: Layout, operator: Operator) -> bool:
    def emits(before: Operator) -> bool:
        forms = {alternate.form for alternate in before.alternates}
        if forms & NATIVE:
            return emits_as_many(before) and _input_metered(layout, before)
        return before.kind is Kind.SOURCE or not forms & {Form.AGGREGATE, Form.NONE}

    graph = layout.graph
    return all(edge.durable or emits(graph.operator(edge.source)) for edge in graph.inputs[operator.name])


def _reads_local_files(operator: Operator) -> bool:
    match operator.reads:
        case TextFiles(path) | Files(path):
            return "://" not in path
    return isinstance(operator.reads, Records)


def _tasks_fixed(layout: Layout, operator: Operator) -> bool:
    graph, stage = layout.graph, layout.stage_of[operator.name]
    lead = graph.operator(stage.operators[0])
    files = any(edge.durable == "parquet" for edge in graph.inputs[lead.name])
    members = (graph.operator(name) for name in stage.operators)
    return stage.keyed or lead.load is not None or files or any(map(_is_python, members))


def _own_parallelism(layout: Layout, operator: Operator) -> bool:
    stage = layout.stage_of[operator.name]
    foreign = operator.kind is Kind.SOURCE and operator.load is None  # Spark's own readers set their number of tasks
    return operator.waits or (not stage.keyed and stage.name == operator.name and not foreign)


_OF_APPLICATION: Mapping[Condition, Callable[[Graph, float | None], bool | None]] = {
    Condition.TARGET_LATENCY: lambda graph, target: target is not None,
    Condition.MAX_DURATIONS: lambda graph, target: (
        target is None and any(each.max_duration is not None for each in graph.operators)
    ),
    Condition.ON_ERROR: lambda graph, target: any(each.lenient for each in graph.operators),
    Condition.SOURCES_COUNTED: lambda graph, target: (
        all(each.load is not None or _reads_local_files(each) for each in graph.sources) or None
    ),
    Condition.DECLARED_LOAD: lambda graph, target: bool(graph.loads),
}
_OF_OPERATOR: Mapping[Condition, Callable[[Layout, Operator], bool]] = {
    Condition.ON_ERROR: lambda layout, operator: operator.lenient,
    Condition.DECLARED_LOAD: lambda layout, operator: operator.load is not None,
    Condition.MAX_DURATION: lambda layout, operator: operator.max_duration is not None,
    Condition.PYTHON: lambda layout, operator: all(each.form not in UNMETERED for each in operator.alternates),
    Condition.LOCAL_FILES: lambda layout, operator: operator.load is None and _reads_local_files(operator),
    Condition.NATIVE: lambda layout, operator: any(each.form in NATIVE for each in operator.alternates),
    Condition.TASKS_FIXED: _tasks_fixed,
    Condition.ONE_TO_ONE: lambda layout, operator: emits_as_many(operator),
    Condition.INPUT_METERED: _input_metered,
    Condition.DURABLE_INPUT: lambda layout, operator: any(e.durable for e in layout.graph.inputs[operator.name]),
    Condition.STAGE_HEAD: lambda layout, operator: layout.stage_of[operator.name].name == operator.name,
    Condition.OWN_PARALLELISM: _own_parallelism,
    Condition.QUERY_HEAD: lambda layout, operator: layout.stage_of[operator.name].segment == operator.name,
}


EVERY = frozenset(Kind)


class Promise:
    """Commitment of plants to measure a metric."""

    def __init__(
        self, rows: Rows, plants: frozenset[PlantKind], how: str, kinds: frozenset[Kind] = EVERY, *when: Condition
    ) -> None:
        self.rows, self.plants, self.how, self.kinds, self.when = rows, plants, how, kinds, when


_application, _operator = partial(Promise, Rows.APPLICATION), partial(Promise, Rows.OPERATOR)
_alternate, _host = partial(Promise, Rows.ALTERNATE), partial(Promise, Rows.HOST)
_task, _link = partial(Promise, Rows.TASK), partial(Promise, Rows.LINK)

ALL = frozenset(PlantKind)
DATAFLOW = frozenset({PlantKind.DATAFLOW})
WATCHED = frozenset({PlantKind.WATCHED})
UNCHAINED = frozenset({PlantKind.UNCHAINED})
CHAINED = frozenset({PlantKind.CHAINED})
SPARK = DATAFLOW | WATCHED
SIMULATED = UNCHAINED | CHAINED

SOURCE = frozenset({Kind.SOURCE})
TRANSFORM = frozenset({Kind.TRANSFORM})
KEYED = frozenset({Kind.KEYED})
WORKING = TRANSFORM | KEYED
READING = EVERY - {Kind.SINK}
FED = EVERY - SOURCE

_BY_STORE = "as Spark's own stores report"
_HEARTBEAT = "newest heartbeat"
_METER = "meter in the Python stage"
_OWN = "meter in the Python stage, of its function alone, in the last batches in which it ran"
_METER_AND_REST = "meter, plus an equal share of host CPU time that no meter saw"
_TAKEN = "records taken by batches"
_LATELY = "records of the batches of the last 10 s, at least two, over the time between them"
_DUE = "commit at a sink less the moment at which the load made the record due"
_FROM = (
    "commit of the batch less the moment from which the record counts: due time of a declared load, timestamp (Kafka), "
    "modification time of its file, else the last poll that did not take it (an upper bound)"
)
_MEDIAN = "as `latency_p50`"
_LONGEST = f"{_MEDIAN}; without a load at least the time since the batch under way was planned"
_POLL = "upper bound, from the last poll that did not take the record to the commit"
_COUNTED = "counted in the monitoring period"
_SINCE_START = "counted since the start"
_UPSTREAM = "records emitted by the operators before it"
_AT_SINKS = "records that reached a sink in the monitoring period"
_BY_COST = "as its operator's is counted; of several that run at once, in the ratio of their costs"
_SPEED = (
    "that of its type, times the least CPU seconds of a fixed piece of work on any host over those on it (a probe "
    "beside its Python workers, every 5 s, median of the last five), times the part of its cores that quotas and "
    "hypervisor leave"
)

_DURATION = (
    _operator(DATAFLOW, "from the moment from which the record's latency counts to the start of the batch", SOURCE),
    _operator(DATAFLOW, "busy time of a task in the batch", TRANSFORM, Condition.PYTHON),
    _operator(DATAFLOW, "from the end of the Python stage to the commit", KEYED, Condition.PYTHON_BEFORE),
    _operator(
        DATAFLOW,
        "from being written to the durable edge to the commit; of the oldest uncommitted record, to now",
        FED,
        Condition.DURABLE_INPUT,
    ),
    _operator(UNCHAINED, "records that passed in the monitoring period", WORKING),
    _operator(CHAINED, "from being queued to the commit", READING, Condition.QUERY_HEAD),
)
PROMISES: Mapping[Metric, tuple[Promise, ...]] = {
    Metric.ARRIVAL_RATE: (
        _operator(
            DATAFLOW,
            "the declared load now; without one, arrivals in the last 10 s, as far as the source reports them",
            SOURCE,
        ),
        _operator(DATAFLOW, _METER, TRANSFORM, Condition.PYTHON),
        _operator(DATAFLOW, _UPSTREAM, TRANSFORM, Condition.NATIVE, Condition.INPUT_METERED),
        _operator(DATAFLOW, _UPSTREAM, KEYED, Condition.INPUT_METERED),
        _operator(DATAFLOW, "records written to its durable edges", FED, Condition.DURABLE_INPUT),
        _operator(WATCHED, f"{_LATELY}, plus the growth of its backlog, if it reports one", SOURCE),
        _operator(UNCHAINED, _COUNTED, READING),
        _operator(CHAINED, _COUNTED, SOURCE),
        _operator(CHAINED, "records taken by its query's batches", WORKING, Condition.STAGE_HEAD),
        _application(ALL, "sum over the sources"),
    ),
    Metric.PROCESSED_RATE: (
        _operator(DATAFLOW, _TAKEN, SOURCE),
        _operator(DATAFLOW, _METER, TRANSFORM, Condition.PYTHON),
        _operator(DATAFLOW, _UPSTREAM, TRANSFORM, Condition.NATIVE, Condition.INPUT_METERED),
        _operator(DATAFLOW, _METER, KEYED, Condition.PYTHON),
        _operator(DATAFLOW, _UPSTREAM, KEYED, Condition.INPUT_METERED),
        _operator(WATCHED, _LATELY, SOURCE),
        _operator(
            UNCHAINED, "counted in the monitoring period; of a source, records passed on to the operators it feeds", READING
        ),
        _operator(CHAINED, _TAKEN, READING, Condition.STAGE_HEAD),
        _task(SPARK, "records read from shuffles"),
    ),
    Metric.EMITTED_RATE: (
        _operator(DATAFLOW, _TAKEN, SOURCE),
        _operator(DATAFLOW, _METER, WORKING, Condition.PYTHON),
        _operator(
            DATAFLOW, "as many as it takes", TRANSFORM, Condition.NATIVE, Condition.INPUT_METERED, Condition.ONE_TO_ONE
        ),
        _operator(UNCHAINED, _COUNTED, READING),
        _operator(CHAINED, _TAKEN, READING, Condition.STAGE_HEAD),
    ),
    Metric.BACKLOG: (
        _operator(DATAFLOW, "due by the load and taken by no batch", SOURCE, Condition.DECLARED_LOAD),
        _operator(
            DATAFLOW,
            "files that no batch has taken, by size and records per byte of files taken",
            SOURCE,
            Condition.LOCAL_FILES,
        ),
        _operator(SPARK, "as the source reports with its last batch", SOURCE, Condition.LAG_REPORTED),
        _operator(DATAFLOW, "written to its durable edges and taken by no batch", FED, Condition.DURABLE_INPUT),
        _operator(UNCHAINED, "records in the queue now", WORKING),
        _operator(CHAINED, "records that wait for the next batch", READING, Condition.QUERY_HEAD),
        _application(DATAFLOW, "sum over sources and durable edges", EVERY, Condition.SOURCES_COUNTED),
        _application(WATCHED, "sum over the queries", EVERY, Condition.LAG_REPORTED),
        _task(UNCHAINED, "records in its queue now", EVERY, Condition.INSTANCE_QUEUES),
        _task(
            SPARK,
            "its part of what waits at the sources: what it took lately, for as long as its query has work waiting",
            EVERY,
            Condition.SOURCES_COUNTED,
        ),
    ),
    Metric.DURATION: _DURATION,
    Metric.DURATION_P50: _DURATION,
    Metric.DURATION_P99: _DURATION,
    Metric.SERVICE_TIME: (
        _operator(DATAFLOW, _METER, TRANSFORM, Condition.PYTHON),
        _operator(DATAFLOW, _METER_AND_REST, KEYED, Condition.PYTHON),
        _operator(DATAFLOW, _METER_AND_REST, KEYED, Condition.INPUT_METERED),
        _operator(DATAFLOW, _METER_AND_REST, SOURCE, Condition.PYTHON_IN_QUERY),
        _operator(UNCHAINED, _COUNTED, WORKING),
        _operator(CHAINED, _COUNTED, READING, Condition.STAGE_HEAD),
        _alternate(DATAFLOW, _OWN, EVERY, Condition.PYTHON),
        _alternate(UNCHAINED, _BY_COST),
        _alternate(CHAINED, "as declared or calibrated, at the present speed of hosts"),
    ),
    Metric.SELECTIVITY: (
        _alternate(DATAFLOW, _OWN, EVERY, Condition.PYTHON),
        _alternate(UNCHAINED, "as its operator's is counted; of several that run at once, in the ratio of theirs"),
        _alternate(CHAINED, "as declared or calibrated"),
    ),
    Metric.AGE: (
        _alternate(DATAFLOW, "since the end of the newest batch in which it ran", EVERY, Condition.PYTHON),
        _alternate(UNCHAINED, "since the end of the newest monitoring period in which it ran"),
        _alternate(CHAINED, "since the newest commit of its query, while it runs there"),
    ),
    Metric.UTILISATION: (
        _operator(DATAFLOW, f"{_METER}, over all usable cores", TRANSFORM, Condition.PYTHON),
        _operator(DATAFLOW, "as for `busy_cores`, over all usable cores", KEYED),
        _operator(DATAFLOW, "as for `busy_cores`, over all usable cores", SOURCE, Condition.PYTHON_IN_QUERY),
        _operator(UNCHAINED, _COUNTED, WORKING),
        _operator(CHAINED, "its `busy_cores`, over all usable cores", READING, Condition.STAGE_HEAD),
        _task(SPARK, "share of the time for which it kept a slot"),
        _task(UNCHAINED, _COUNTED),
        _task(CHAINED, "an equal part of its operator's `busy_cores`"),
    ),
    Metric.BUSY_CORES: (
        _operator(DATAFLOW, _METER, TRANSFORM, Condition.PYTHON),
        _operator(DATAFLOW, _METER_AND_REST, KEYED),
        _operator(DATAFLOW, _METER_AND_REST, SOURCE, Condition.PYTHON_IN_QUERY),
        _operator(WATCHED, "sum over its tasks", KEYED),
        _operator(WATCHED, "an equal share of executor CPU time that no stage with state is charged with", SOURCE),
        _operator(UNCHAINED, _COUNTED, WORKING),
        _operator(CHAINED, "mean over the last 3 s", READING, Condition.STAGE_HEAD),
        _task(
            SPARK,
            "CPU time, with Python the time in its slot less waiting; median of the last seven batches, or of "
            "those since work moved to other partitions",
        ),
        _task(UNCHAINED, _COUNTED, EVERY, Condition.INSTANCE_QUEUES),
        _task(CHAINED, "an equal part of its operator's"),
    ),
    Metric.BUSY_CORES_ERROR: (_task(SPARK, "spread of the last seven batches"),),
    Metric.PARALLELISM: (
        _operator(
            DATAFLOW,
            "tasks of its stage: by the composition, of a keyed stage its state partitions, else in the last batch",
            EVERY,
            Condition.TASKS_FIXED,
        ),
        _operator(WATCHED, "state partitions", KEYED),
        _operator(UNCHAINED, "instances now", WORKING),
        _operator(CHAINED, "tasks now", READING, Condition.STAGE_HEAD),
    ),
    Metric.SCALINGS: (
        _operator(DATAFLOW, "changes that were applied", EVERY, Condition.OWN_PARALLELISM),
        _operator(UNCHAINED, _SINCE_START, WORKING),
        _operator(CHAINED, _SINCE_START, READING, Condition.STAGE_HEAD),
    ),
    Metric.CPU: (
        _host(
            SPARK,
            "CPU time of its processes, over 3 s or whole batches; where unknown, part of its slots that tasks take",
            EVERY,
            Condition.HOST_UP,
        ),
        _host(UNCHAINED, _COUNTED, EVERY, Condition.HOST_UP),
        _host(CHAINED, "mean over the last 3 s", EVERY, Condition.HOST_UP),
    ),
    Metric.MEMORY: (
        _host(SPARK, "memory of its processes", EVERY, Condition.PROVIDER_MEASURES),
        _host(UNCHAINED, "what its tasks declare"),
        _task(UNCHAINED, "what its operator declares"),
    ),
    Metric.SPEED: (
        _host(DATAFLOW, _SPEED, EVERY, Condition.HOST_UP),
        _host(WATCHED, _SPEED, EVERY, Condition.PROBED),
        _host(SIMULATED, "its type's, as it varies now", EVERY, Condition.HOST_UP),
    ),
    Metric.TASKS: (
        _host(SPARK, "state partitions placed there"),
        _host(UNCHAINED, "instances placed there"),
        _host(CHAINED, "state partitions placed there"),
    ),
    Metric.BANDWIDTH: (
        _host(SPARK, "sum of `traffic` over its links", EVERY, Condition.SHUFFLES),
        _host(SIMULATED, "emitted records by their size, between hosts", EVERY, Condition.RECORD_SIZES),
        _link(DATAFLOW, "the limit of the host's network", EVERY, Condition.HOST_NETWORKS),
        _link(
            SIMULATED,
            "as declared; under a trace as it is now, and only between hosts of neighbouring operators",
            EVERY,
            Condition.BANDWIDTH,
        ),
    ),
    Metric.NETWORK_LATENCY: (
        _link(DATAFLOW, "half of an ICMP echo's round trip between hosts", EVERY, Condition.HOST_NETWORKS),
        _link(
            SIMULATED,
            "as declared for the regions of the two hosts; under a trace as it is now, and only between hosts of "
            "neighbouring operators",
        ),
    ),
    Metric.TRAFFIC: (
        _task(SPARK, "shuffle bytes read"),
        _link(SPARK, "shuffle bytes between two hosts", EVERY, Condition.SHUFFLES),
    ),
    Metric.LATENCY_P50: (
        _application(DATAFLOW, _FROM),
        _application(WATCHED, f"{_POLL}, median of the slowest query"),
        _application(UNCHAINED, _AT_SINKS),
        _application(CHAINED, _DUE),
    ),
    Metric.LATENCY_P99: (
        _application(DATAFLOW, _LONGEST),
        _application(WATCHED, f"{_MEDIAN}, longest of the slowest query"),
        _application(UNCHAINED, _AT_SINKS),
        _application(CHAINED, _MEDIAN),
    ),
    Metric.LATENCY: (
        _application(DATAFLOW, _MEDIAN),
        _application(WATCHED, f"{_MEDIAN}, mean of the slowest query"),
        _application(UNCHAINED, _AT_SINKS),
        _application(CHAINED, _MEDIAN),
    ),
    Metric.THROUGHPUT: (
        _application(DATAFLOW, _TAKEN),
        _application(WATCHED, f"{_LATELY}, sum over the queries"),
        _application(UNCHAINED, _COUNTED),
        _application(CHAINED, _TAKEN),
    ),
    Metric.COMPLIANCE: (
        _operator(UNCHAINED, _COUNTED, WORKING, Condition.MAX_DURATION),
        _operator(CHAINED, _COUNTED, READING, Condition.QUERY_HEAD, Condition.MAX_DURATION),
        _application(DATAFLOW, "latencies up to the target", EVERY, Condition.TARGET_LATENCY),
        _application(
            WATCHED,
            "latencies up to the target, of the last seven batches; a lower bound, as latencies are upper ones",
            EVERY,
            Condition.TARGET_LATENCY,
        ),
        _application(UNCHAINED, "latencies up to the target", EVERY, Condition.TARGET_LATENCY),
        _application(UNCHAINED, "sum over the operators", EVERY, Condition.MAX_DURATIONS),
        _application(CHAINED, "latencies up to the target", EVERY, Condition.TARGET_LATENCY),
    ),
    Metric.BATCH_DURATION: (
        _application(DATAFLOW, "median"),
        _application(WATCHED, "last batch of the slowest query"),
        _application(CHAINED, "median"),
    ),
    Metric.UPDATE_LATENCY: (
        _application(DATAFLOW, "over the queries with changed operators", EVERY, Condition.COMPOSITION_CHANGED),
        _application(SIMULATED, "over all queries", EVERY, Condition.COMPOSITION_CHANGED),
    ),
    Metric.MIXED_RECORDS: (
        _application(
            DATAFLOW, "followed over durable edges by the batches that wrote them", EVERY, Condition.COMPOSITION_CHANGED
        ),
        _application(SIMULATED, "counted at the change, among records under way", EVERY, Condition.COMPOSITION_CHANGED),
    ),
    Metric.LEFT_OUT: (
        _operator(DATAFLOW, "of committed batches, as their tasks report", WORKING, Condition.ON_ERROR),
        _application(DATAFLOW, "sum over the operators", EVERY, Condition.ON_ERROR),
    ),
    Metric.STATE_SIZE: (
        _operator(
            SPARK,
            "files of its state partitions: the newest snapshot and later changes; an upper bound",
            KEYED,
            Condition.STATE_CHANGELOG,
        ),
        _task(SPARK, "as for its operator, of its partition", EVERY, Condition.STATE_CHANGELOG),
    ),
    Metric.CHECKPOINT_DELTA: (
        _operator(
            SPARK, "files of changes of the newest committed batch over `state_size`", KEYED, Condition.STATE_CHANGELOG
        ),
    ),
    Metric.STATE_ROWS: (
        _operator(SPARK, _BY_STORE, KEYED, Condition.STATE_COMMITTED),
        _task(SPARK, "newest snapshot; unknown in the memory store", EVERY, Condition.SNAPSHOTS_COUNTED),
    ),
    Metric.STATE_HEAP: (_operator(SPARK, _BY_STORE, KEYED, Condition.STATE_COMMITTED),),
    Metric.STATE_OFF_HEAP: (_operator(SPARK, _BY_STORE, KEYED, Condition.STATE_COMMITTED),),
    Metric.STATE_DISK: (_operator(SPARK, _BY_STORE, KEYED, Condition.STATE_COMMITTED),),
    Metric.HEAP: (
        _host(
            SPARK,
            "state, arriving state, and the least other use since the second-last full collection",
            EVERY,
            Condition.HEARTBEAT,
        ),
    ),
    Metric.HEAP_LIMIT: (_host(SPARK, "`spark.executor.memory`", EVERY, Condition.HOST_UP),),
    Metric.OFF_HEAP: (_host(SPARK, _HEARTBEAT, EVERY, Condition.HEARTBEAT),),
    Metric.PYTHON_MEMORY: (
        _host(SPARK, "set sizes in `/proc`: proportional by the daemon, else resident", EVERY, Condition.PYTHON_MEASURED),
    ),
    Metric.MEMORY_LIMIT: (_host(SPARK, "`memory.max`, or executor memory and overhead", EVERY, Condition.LIMITED),),
    Metric.GC_TIME: (_host(SPARK, "last two heartbeats", EVERY, Condition.HEARTBEAT),),
    Metric.WATERMARK_LAG: (_application(SPARK, "start of a batch less its watermark", EVERY, Condition.WATERMARK),),
    Metric.COPIES_MEMORY: (_host(SPARK, "as its executor reports", EVERY, Condition.STANDBY),),
    Metric.STANDBY_LAG: (
        _task(SPARK, "committed batches that the copy furthest ahead has not replayed", EVERY, Condition.STANDBY),
    ),
    Metric.COST: (_application(ALL, "leases in whole billing time units, or what a pool charges"),),
}


def promised(metric: Metric, rows: Rows, plant: PlantKind, operator: Operator | None = None) -> Iterator[Promise]:
    """Yield the promises of `plant` for a metric of `rows` and, if given, `operator`'s kind."""
    for each in PROMISES[metric]:
        if each.rows is rows and plant in each.plants and (operator is None or operator.kind in each.kinds):
            yield each


@cache
def of_application() -> frozenset[Metric]:
    """Return the application metrics that some plant measures, for guards."""
    return frozenset(metric for metric in Metric if any(each.rows is Rows.APPLICATION for each in PROMISES[metric]))
