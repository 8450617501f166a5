"""Promises of the plants: metrics that each measures, of which rows, when and how."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

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
    REDUCERS = "simulated, ring of reducers"


class Condition(StrEnum):
    """Conditions of a promise, with texts for the reference page."""

    DECLARED_LOAD = "a source with a declared load"
    LOCAL_FILES = "the source reads local files"
    SOURCES_COUNTED = "each source has a declared load, reads local files, or reports how far it is behind"
    NATIVE = "the operator is column expressions, or other DataFrame code"
    ONE_TO_ONE = "it is columns of each record, and none explodes a record into several"
    INPUT_METERED = "the operators before it say what they emit"
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
    STATE_CHANGELOG = "its state store writes changes, in files that the driver can list"

    def holds(self, layout: Layout, target_latency: float | None, operator: Operator | None = None) -> bool | None:
        """Return True if met for `operator` or the application; None if only the running plant knows."""
        if operator is not None and self in _OF_OPERATOR:
            return _OF_OPERATOR[self](layout, operator)
        return _OF_APPLICATION[self](layout.graph, target_latency) if self in _OF_APPLICATION else None


def _sources_counted(graph: Graph, target_latency: float | None) -> bool | None:
    return all(each.load is not None or _reads_local_files(each) for each in graph.sources) or None


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
    Condition.SOURCES_COUNTED: _sources_counted,
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


@dataclass(frozen=True, slots=True)
class Promise:
    """Commitment of plants to measure a metric.

    Attributes:
        how: Method, as a phrase.
        when: Conditions that must all hold.
    """

    rows: Rows
    plants: frozenset[PlantKind]
    how: str
    kinds: frozenset[Kind] = frozenset(Kind)
    when: tuple[Condition, ...] = ()


ALL = frozenset(PlantKind)
DATAFLOW = frozenset({PlantKind.DATAFLOW})
WATCHED = frozenset({PlantKind.WATCHED})
UNCHAINED = frozenset({PlantKind.UNCHAINED})
CHAINED = frozenset({PlantKind.CHAINED})
REDUCERS = frozenset({PlantKind.REDUCERS})
SPARK = DATAFLOW | WATCHED
SIMULATED = UNCHAINED | CHAINED

SOURCE = frozenset({Kind.SOURCE})
TRANSFORM = frozenset({Kind.TRANSFORM})
KEYED = frozenset({Kind.KEYED})
WORKING = TRANSFORM | KEYED
READING = frozenset(Kind) - {Kind.SINK}
FED = frozenset(Kind) - SOURCE

_BATCHES = "the batches of the last 3 s"
_METER = f"meter in the Python stage, {_BATCHES}"
_OWN = f"meter in the Python stage, of its function alone, {_BATCHES} in which it ran; it stays until it runs again"
_METER_AND_REST = "meter, and an equal part of what hosts use and no meter saw"
_TAKEN = f"records taken by {_BATCHES}"
_LATELY = "records of the batches of the last 10 s, at least two, over the time between them"
_WINDOW = "mean over the last seven batches"
_DUE = f"commit of the batch less the moment at which the load made the record due, {_BATCHES}"
_FROM = (
    "commit of the batch less the moment from which the record counts: due time of a declared load, timestamp (Kafka), "
    f"modification time of its file, else the last poll that did not take it (an upper bound); {_BATCHES}"
)
_LONGEST = f"{_FROM}; without a load at least the time since the batch under way was planned"
_POLL = "upper bound, from the last poll that did not take the record to the commit; the last seven batches"
_COUNTED = "counted in the monitoring period"
_SINCE_START = "counted since the start"
_UPSTREAM = "what the operators before it emitted"
_OF_TUPLES = "from being emitted by a mapper to being processed, of the tuples of the monitoring period"
_AT_SINKS = "records that reached a sink in the monitoring period"
_BY_COST = "as its operator's is counted; of several that run at once, in the ratio of their costs"
_SPEED = (
    "that of its type, times the least CPU seconds of a fixed piece of work on any host over those on it (a probe "
    "beside its Python workers, every 5 s, median of the last five), times the part of its cores that quotas and "
    "hypervisor leave"
)

_DURATION = (
    Promise(
        Rows.OPERATOR,
        DATAFLOW,
        "from the moment from which the record's latency counts to the start of the batch",
        SOURCE,
    ),
    Promise(Rows.OPERATOR, DATAFLOW, "busy time of a task in the batch", TRANSFORM, when=(Condition.PYTHON,)),
    Promise(
        Rows.OPERATOR,
        DATAFLOW,
        "from the end of the Python stage to the commit",
        KEYED,
        when=(Condition.PYTHON_BEFORE,),
    ),
    Promise(
        Rows.OPERATOR,
        DATAFLOW,
        "from being written to the durable edge to the commit",
        FED,
        when=(Condition.DURABLE_INPUT,),
    ),
    Promise(Rows.OPERATOR, UNCHAINED, "records that passed in the monitoring period", WORKING),
    Promise(Rows.OPERATOR, CHAINED, "from being queued to the commit", READING, when=(Condition.QUERY_HEAD,)),
    Promise(
        Rows.OPERATOR,
        REDUCERS,
        "from being emitted by a mapper to being processed, counted in the monitoring period",
        KEYED,
    ),
)
PROMISES: Mapping[Metric, tuple[Promise, ...]] = {
    Metric.ARRIVAL_RATE: (
        Promise(
            Rows.OPERATOR,
            DATAFLOW,
            "the declared load now; without one, what came in the last 10 s, as far as the source shows it",
            SOURCE,
        ),
        Promise(Rows.OPERATOR, DATAFLOW, _METER, TRANSFORM, when=(Condition.PYTHON,)),
        Promise(Rows.OPERATOR, DATAFLOW, _UPSTREAM, TRANSFORM, when=(Condition.NATIVE, Condition.INPUT_METERED)),
        Promise(Rows.OPERATOR, DATAFLOW, _UPSTREAM, KEYED, when=(Condition.INPUT_METERED,)),
        Promise(Rows.OPERATOR, DATAFLOW, "records written to its durable edges", FED, when=(Condition.DURABLE_INPUT,)),
        Promise(Rows.OPERATOR, WATCHED, f"{_LATELY}, and what it holds more, as far as it tells", SOURCE),
        Promise(Rows.OPERATOR, UNCHAINED, _COUNTED, READING),
        Promise(Rows.OPERATOR, CHAINED, _COUNTED, SOURCE),
        Promise(Rows.OPERATOR, CHAINED, "what its query's batches took", WORKING, when=(Condition.STAGE_HEAD,)),
        Promise(Rows.APPLICATION, ALL, "sum over the sources"),
        Promise(Rows.OPERATOR, REDUCERS, _COUNTED, SOURCE),
        Promise(
            Rows.OPERATOR,
            REDUCERS,
            "tuples that mappers make of the records, counted in the monitoring period",
            KEYED,
        ),
    ),
    Metric.PROCESSED_RATE: (
        Promise(Rows.OPERATOR, DATAFLOW, _TAKEN, SOURCE),
        Promise(Rows.OPERATOR, DATAFLOW, _METER, TRANSFORM, when=(Condition.PYTHON,)),
        Promise(Rows.OPERATOR, DATAFLOW, _UPSTREAM, TRANSFORM, when=(Condition.NATIVE, Condition.INPUT_METERED)),
        Promise(Rows.OPERATOR, DATAFLOW, _METER, KEYED, when=(Condition.PYTHON,)),
        Promise(Rows.OPERATOR, DATAFLOW, _UPSTREAM, KEYED, when=(Condition.INPUT_METERED,)),
        Promise(Rows.OPERATOR, WATCHED, _LATELY, SOURCE),
        Promise(
            Rows.OPERATOR,
            UNCHAINED,
            "counted in the monitoring period; of a source, records passed on to the operators it feeds",
            READING,
        ),
        Promise(Rows.OPERATOR, CHAINED, _TAKEN, READING, when=(Condition.STAGE_HEAD,)),
        Promise(Rows.TASK, SPARK, f"records read from shuffles, {_WINDOW}"),
        Promise(Rows.OPERATOR, REDUCERS, _COUNTED, SOURCE),
        Promise(Rows.OPERATOR, REDUCERS, _COUNTED, KEYED),
        Promise(Rows.TASK, REDUCERS, _COUNTED),
    ),
    Metric.EMITTED_RATE: (
        Promise(Rows.OPERATOR, DATAFLOW, _TAKEN, SOURCE),
        Promise(Rows.OPERATOR, DATAFLOW, _METER, WORKING, when=(Condition.PYTHON,)),
        Promise(
            Rows.OPERATOR,
            DATAFLOW,
            "as many as it takes",
            TRANSFORM,
            when=(Condition.NATIVE, Condition.INPUT_METERED, Condition.ONE_TO_ONE),
        ),
        Promise(Rows.OPERATOR, UNCHAINED, _COUNTED, READING),
        Promise(Rows.OPERATOR, CHAINED, _TAKEN, READING, when=(Condition.STAGE_HEAD,)),
        Promise(Rows.OPERATOR, REDUCERS, _COUNTED, SOURCE),
        Promise(Rows.OPERATOR, REDUCERS, _COUNTED, KEYED),
    ),
    Metric.BACKLOG: (
        Promise(Rows.OPERATOR, DATAFLOW, "due by the load and taken by no batch", SOURCE, when=(Condition.DECLARED_LOAD,)),
        Promise(
            Rows.OPERATOR,
            DATAFLOW,
            "files that no batch has taken, by their sizes and the records per byte of those taken",
            SOURCE,
            when=(Condition.LOCAL_FILES,),
        ),
        Promise(Rows.OPERATOR, SPARK, "as the source reports with its last batch", SOURCE, when=(Condition.LAG_REPORTED,)),
        Promise(
            Rows.OPERATOR,
            DATAFLOW,
            "written to its durable edges and taken by no batch",
            FED,
            when=(Condition.DURABLE_INPUT,),
        ),
        Promise(Rows.OPERATOR, UNCHAINED, "records in the queue now", WORKING),
        Promise(Rows.OPERATOR, CHAINED, "records that wait for the next batch", READING, when=(Condition.QUERY_HEAD,)),
        Promise(Rows.APPLICATION, DATAFLOW, "sum over sources and durable edges", when=(Condition.SOURCES_COUNTED,)),
        Promise(Rows.APPLICATION, WATCHED, "sum over the queries", when=(Condition.LAG_REPORTED,)),
        Promise(Rows.TASK, UNCHAINED, "records in its queue now", when=(Condition.INSTANCE_QUEUES,)),
        Promise(
            Rows.TASK,
            SPARK,
            "its part of what waits at the sources: what it took lately, for as long as its query has work waiting",
            when=(Condition.SOURCES_COUNTED,),
        ),
        Promise(Rows.OPERATOR, REDUCERS, "tuples in the queues of its hosts now", KEYED),
        Promise(Rows.TASK, REDUCERS, "tuples of its keys in its host's queue now"),
    ),
    Metric.DURATION: _DURATION,
    Metric.DURATION_P50: _DURATION,
    Metric.DURATION_P99: _DURATION,
    Metric.SERVICE_TIME: (
        Promise(Rows.OPERATOR, DATAFLOW, _METER, TRANSFORM, when=(Condition.PYTHON,)),
        Promise(Rows.OPERATOR, DATAFLOW, _METER_AND_REST, KEYED, when=(Condition.PYTHON,)),
        Promise(Rows.OPERATOR, DATAFLOW, _METER_AND_REST, KEYED, when=(Condition.INPUT_METERED,)),
        Promise(Rows.OPERATOR, DATAFLOW, _METER_AND_REST, SOURCE, when=(Condition.PYTHON_IN_QUERY,)),
        Promise(Rows.OPERATOR, UNCHAINED, _COUNTED, WORKING),
        Promise(Rows.OPERATOR, CHAINED, _COUNTED, READING, when=(Condition.STAGE_HEAD,)),
        Promise(Rows.ALTERNATE, DATAFLOW, _OWN, when=(Condition.PYTHON,)),
        Promise(Rows.ALTERNATE, UNCHAINED, _BY_COST),
        Promise(Rows.ALTERNATE, CHAINED, "as declared or calibrated, on hosts as fast as those of the moment"),
        Promise(
            Rows.OPERATOR,
            REDUCERS,
            "core-seconds of its hosts over tuples processed, counted in the monitoring period",
            KEYED,
        ),
    ),
    Metric.SELECTIVITY: (
        Promise(Rows.ALTERNATE, DATAFLOW, _OWN, when=(Condition.PYTHON,)),
        Promise(
            Rows.ALTERNATE,
            UNCHAINED,
            "as its operator's is counted; of several that run at once, in the ratio of theirs",
        ),
        Promise(Rows.ALTERNATE, CHAINED, "as declared or calibrated"),
    ),
    Metric.AGE: (
        Promise(Rows.ALTERNATE, DATAFLOW, "since the end of the newest batch in which it ran", when=(Condition.PYTHON,)),
        Promise(Rows.ALTERNATE, UNCHAINED, "since the end of the newest monitoring period in which it ran"),
        Promise(Rows.ALTERNATE, CHAINED, "since the newest commit of its query, while it runs there"),
    ),
    Metric.UTILISATION: (
        Promise(Rows.OPERATOR, DATAFLOW, f"{_METER}, over all usable cores", TRANSFORM, when=(Condition.PYTHON,)),
        Promise(Rows.OPERATOR, DATAFLOW, "as for `busy_cores`, over all usable cores", KEYED),
        Promise(
            Rows.OPERATOR,
            DATAFLOW,
            "as for `busy_cores`, over all usable cores",
            SOURCE,
            when=(Condition.PYTHON_IN_QUERY,),
        ),
        Promise(Rows.OPERATOR, UNCHAINED, _COUNTED, WORKING),
        Promise(Rows.OPERATOR, CHAINED, "its `busy_cores`, over all usable cores", READING, when=(Condition.STAGE_HEAD,)),
        Promise(Rows.TASK, SPARK, f"part of the time for which it kept a slot, {_WINDOW}"),
        Promise(Rows.TASK, UNCHAINED, _COUNTED),
        Promise(Rows.TASK, CHAINED, "an equal part of its operator's `busy_cores`"),
        Promise(Rows.OPERATOR, REDUCERS, "of the cores of the hosts on the ring, counted in the monitoring period", KEYED),
    ),
    Metric.BUSY_CORES: (
        Promise(Rows.OPERATOR, DATAFLOW, _METER, TRANSFORM, when=(Condition.PYTHON,)),
        Promise(Rows.OPERATOR, DATAFLOW, _METER_AND_REST, KEYED),
        Promise(Rows.OPERATOR, DATAFLOW, _METER_AND_REST, SOURCE, when=(Condition.PYTHON_IN_QUERY,)),
        Promise(Rows.OPERATOR, WATCHED, "sum over its tasks", KEYED),
        Promise(
            Rows.OPERATOR,
            WATCHED,
            "an equal part of what executors use and no stage with state is charged with",
            SOURCE,
        ),
        Promise(Rows.OPERATOR, UNCHAINED, _COUNTED, WORKING),
        Promise(Rows.OPERATOR, CHAINED, "mean over the last 3 s", READING, when=(Condition.STAGE_HEAD,)),
        Promise(
            Rows.TASK,
            SPARK,
            "CPU time, with Python the time in its slot less waiting; median of the last seven batches, or of "
            "those since work moved to other partitions",
        ),
        Promise(Rows.TASK, UNCHAINED, _COUNTED, when=(Condition.INSTANCE_QUEUES,)),
        Promise(Rows.TASK, CHAINED, "an equal part of its operator's"),
        Promise(Rows.OPERATOR, REDUCERS, _COUNTED, KEYED),
        Promise(Rows.TASK, REDUCERS, "tuples processed, by the cost of one"),
    ),
    Metric.BUSY_CORES_ERROR: (Promise(Rows.TASK, SPARK, "spread of the last seven batches"),),
    Metric.PARALLELISM: (
        Promise(
            Rows.OPERATOR,
            DATAFLOW,
            "tasks of its stage: by the composition, of a keyed stage its state partitions, else in the last batch",
            when=(Condition.TASKS_FIXED,),
        ),
        Promise(Rows.OPERATOR, WATCHED, "state partitions", KEYED),
        Promise(Rows.OPERATOR, UNCHAINED, "instances now", WORKING),
        Promise(Rows.OPERATOR, CHAINED, "tasks now", READING, when=(Condition.STAGE_HEAD,)),
        Promise(Rows.OPERATOR, REDUCERS, "state partitions", KEYED),
    ),
    Metric.SCALINGS: (
        Promise(Rows.OPERATOR, DATAFLOW, "changes that were applied", when=(Condition.OWN_PARALLELISM,)),
        Promise(Rows.OPERATOR, UNCHAINED, _SINCE_START, WORKING),
        Promise(Rows.OPERATOR, CHAINED, _SINCE_START, READING, when=(Condition.STAGE_HEAD,)),
    ),
    Metric.CPU: (
        Promise(
            Rows.HOST,
            SPARK,
            "CPU time of its processes, over 3 s or whole batches; where unknown, part of its slots that tasks take",
            when=(Condition.HOST_UP,),
        ),
        Promise(Rows.HOST, UNCHAINED, _COUNTED, when=(Condition.HOST_UP,)),
        Promise(Rows.HOST, CHAINED, "mean over the last 3 s", when=(Condition.HOST_UP,)),
        Promise(Rows.HOST, REDUCERS, _COUNTED, when=(Condition.HOST_UP,)),
    ),
    Metric.MEMORY: (
        Promise(Rows.HOST, SPARK, "memory of its processes", when=(Condition.PROVIDER_MEASURES,)),
        Promise(Rows.HOST, UNCHAINED, "what its tasks declare"),
        Promise(Rows.TASK, UNCHAINED, "what its operator declares"),
    ),
    Metric.SPEED: (
        Promise(Rows.HOST, DATAFLOW, _SPEED, when=(Condition.HOST_UP,)),
        Promise(Rows.HOST, WATCHED, _SPEED, when=(Condition.PROBED,)),
        Promise(Rows.HOST, SIMULATED, "its type's, as it varies now", when=(Condition.HOST_UP,)),
        Promise(Rows.HOST, REDUCERS, "its type's", when=(Condition.HOST_UP,)),
    ),
    Metric.TASKS: (
        Promise(Rows.HOST, SPARK, "state partitions placed there"),
        Promise(Rows.HOST, UNCHAINED, "instances placed there"),
        Promise(Rows.HOST, CHAINED, "state partitions placed there"),
        Promise(Rows.HOST, REDUCERS, "state partitions that it owns"),
    ),
    Metric.BANDWIDTH: (
        Promise(Rows.HOST, SPARK, "sum of `traffic` over its links", when=(Condition.SHUFFLES,)),
        Promise(Rows.HOST, SIMULATED, "emitted records by their size, between hosts", when=(Condition.RECORD_SIZES,)),
        Promise(Rows.LINK, DATAFLOW, "what the host's network is limited to", when=(Condition.HOST_NETWORKS,)),
        Promise(
            Rows.LINK,
            SIMULATED,
            "as declared; under a trace as it is now, and only between hosts of neighbouring operators",
            when=(Condition.BANDWIDTH,),
        ),
    ),
    Metric.NETWORK_LATENCY: (
        Promise(Rows.LINK, DATAFLOW, "half of an ICMP echo's round trip between hosts", when=(Condition.HOST_NETWORKS,)),
        Promise(
            Rows.LINK,
            SIMULATED,
            "as declared for the regions of the two hosts; under a trace as it is now, and only between hosts of "
            "neighbouring operators",
        ),
    ),
    Metric.TRAFFIC: (
        Promise(Rows.TASK, SPARK, f"shuffle bytes read, {_WINDOW}"),
        Promise(Rows.LINK, SPARK, f"shuffle bytes between two hosts, {_WINDOW}", when=(Condition.SHUFFLES,)),
    ),
    Metric.LATENCY_P50: (
        Promise(Rows.APPLICATION, DATAFLOW, _FROM),
        Promise(Rows.APPLICATION, WATCHED, f"{_POLL}, median of the slowest query"),
        Promise(Rows.APPLICATION, UNCHAINED, _AT_SINKS),
        Promise(Rows.APPLICATION, CHAINED, _DUE),
        Promise(Rows.APPLICATION, REDUCERS, _OF_TUPLES),
    ),
    Metric.LATENCY_P99: (
        Promise(Rows.APPLICATION, DATAFLOW, _LONGEST),
        Promise(Rows.APPLICATION, WATCHED, f"{_POLL}, longest of the slowest query"),
        Promise(Rows.APPLICATION, UNCHAINED, _AT_SINKS),
        Promise(Rows.APPLICATION, CHAINED, _DUE),
        Promise(Rows.APPLICATION, REDUCERS, _OF_TUPLES),
    ),
    Metric.LATENCY: (
        Promise(Rows.APPLICATION, DATAFLOW, _FROM),
        Promise(Rows.APPLICATION, WATCHED, f"{_POLL}, mean of the slowest query"),
        Promise(Rows.APPLICATION, UNCHAINED, _AT_SINKS),
        Promise(Rows.APPLICATION, CHAINED, _DUE),
        Promise(Rows.APPLICATION, REDUCERS, _OF_TUPLES),
    ),
    Metric.THROUGHPUT: (
        Promise(Rows.APPLICATION, DATAFLOW, _TAKEN),
        Promise(Rows.APPLICATION, WATCHED, f"{_LATELY}, sum over the queries"),
        Promise(Rows.APPLICATION, UNCHAINED, _COUNTED),
        Promise(Rows.APPLICATION, CHAINED, _TAKEN),
        Promise(Rows.APPLICATION, REDUCERS, "tuples processed, counted in the monitoring period"),
    ),
    Metric.COMPLIANCE: (
        Promise(Rows.OPERATOR, UNCHAINED, _COUNTED, WORKING, when=(Condition.MAX_DURATION,)),
        Promise(Rows.OPERATOR, CHAINED, _COUNTED, READING, when=(Condition.QUERY_HEAD, Condition.MAX_DURATION)),
        Promise(Rows.APPLICATION, DATAFLOW, f"latencies up to the target, {_BATCHES}", when=(Condition.TARGET_LATENCY,)),
        Promise(
            Rows.APPLICATION,
            WATCHED,
            "latencies up to the target, of the last seven batches; a lower bound, as latencies are upper ones",
            when=(Condition.TARGET_LATENCY,),
        ),
        Promise(Rows.APPLICATION, UNCHAINED, "latencies up to the target", when=(Condition.TARGET_LATENCY,)),
        Promise(Rows.APPLICATION, UNCHAINED, "sum over the operators", when=(Condition.MAX_DURATIONS,)),
        Promise(Rows.APPLICATION, CHAINED, f"latencies up to the target, {_BATCHES}", when=(Condition.TARGET_LATENCY,)),
        Promise(Rows.APPLICATION, REDUCERS, "latencies up to the target", when=(Condition.TARGET_LATENCY,)),
    ),
    Metric.BATCH_DURATION: (
        Promise(Rows.APPLICATION, DATAFLOW, f"median of {_BATCHES}"),
        Promise(Rows.APPLICATION, WATCHED, "last batch of the slowest query"),
        Promise(Rows.APPLICATION, CHAINED, f"median of {_BATCHES}"),
    ),
    Metric.UPDATE_LATENCY: (
        Promise(
            Rows.APPLICATION,
            DATAFLOW,
            "over the queries that hold what it changes",
            when=(Condition.COMPOSITION_CHANGED,),
        ),
        Promise(Rows.APPLICATION, SIMULATED, "over all queries", when=(Condition.COMPOSITION_CHANGED,)),
    ),
    Metric.MIXED_RECORDS: (
        Promise(
            Rows.APPLICATION,
            DATAFLOW,
            "followed over durable edges by the batches that wrote them",
            when=(Condition.COMPOSITION_CHANGED,),
        ),
        Promise(
            Rows.APPLICATION,
            SIMULATED,
            "counted at the change, of what is under way",
            when=(Condition.COMPOSITION_CHANGED,),
        ),
    ),
    Metric.LEFT_OUT: (
        Promise(Rows.OPERATOR, DATAFLOW, "of committed batches, as their tasks told", WORKING, when=(Condition.ON_ERROR,)),
        Promise(Rows.APPLICATION, DATAFLOW, "sum over the operators", when=(Condition.ON_ERROR,)),
    ),
    Metric.STATE_SIZE: (
        Promise(
            Rows.OPERATOR,
            SPARK,
            "files of its state partitions: the newest snapshot, and what was written since; an upper bound",
            KEYED,
            when=(Condition.STATE_CHANGELOG,),
        ),
        Promise(Rows.OPERATOR, REDUCERS, "of the keys met so far, expected", KEYED),
        Promise(Rows.TASK, SPARK, "as for its operator, of its partition", when=(Condition.STATE_CHANGELOG,)),
        Promise(Rows.TASK, REDUCERS, "as for its operator, of its partition"),
    ),
    Metric.CHECKPOINT_DELTA: (
        Promise(
            Rows.OPERATOR,
            SPARK,
            "files of changes of the newest committed batch over `state_size`",
            KEYED,
            when=(Condition.STATE_CHANGELOG,),
        ),
        Promise(Rows.OPERATOR, REDUCERS, "of the host that made the newest one", KEYED, when=(Condition.STANDBY,)),
    ),
    Metric.COPIES_MEMORY: (
        Promise(Rows.HOST, SPARK, "as its executor reports", when=(Condition.STANDBY,)),
        Promise(Rows.HOST, REDUCERS, "state of the copies, and tuples kept since", when=(Condition.HOST_UP,)),
    ),
    Metric.STANDBY_LAG: (
        Promise(
            Rows.TASK,
            SPARK,
            "committed batches that the copy furthest ahead has not replayed",
            when=(Condition.STANDBY,),
        ),
        Promise(Rows.TASK, REDUCERS, "those sent and not taken in", when=(Condition.STANDBY,)),
    ),
    Metric.COST: (Promise(Rows.APPLICATION, ALL, "leases in whole billing time units, or what a pool charges"),),
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
