"""The one table of metrics: what is observed, in which unit, of which rows, and which plant measures it how.

How a value is written for people, what Prometheus exports, the reference page and the conformance suite all derive from
it. A new metric is an entry of the table, a member of `Metric`, and the place that measures it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from functools import cache
from typing import TypeAlias

from elastream.dataflow.endpoints import Files, Records, TextFiles
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Form, Kind, Operator, emits_as_many
from elastream.dataflow.stages import Layout


class Quantity(Enum):
    """What kind of value a metric has: its unit, Prometheus' name of the base unit, how many of that one unit is, and the
    most that can be.

    What is more, or less than nothing, is no value: an overflow, a counter that was set back, a clock from 1970. The bounds
    lie some orders above the largest installations that publish figures (LinkedIn's Kafka: 7e12 records a day, 8e7 a
    second), and below 2^63 and the seconds since 1970.
    """

    RATE = ("records/s", "records_per_second", 1.0, 1e12)
    RECORDS = ("records", "records", 1.0, 1e16)
    SECONDS = ("s", "seconds", 1.0, 1e9)
    FRACTION = ("fraction", "ratio", 1.0, 1e3)
    SPEED = ("times the standard core", "ratio", 1.0, 1e3)
    CORES = ("cores", "cores", 1.0, 1e9)
    COUNT = ("number", "", 1.0, 1e12)
    MEGABYTES = ("MB", "bytes", 1e6, 1e12)
    BYTE_RATE = ("bytes/s", "bytes_per_second", 1.0, 1e15)
    MONEY = ("money", "", 1.0, 1e12)

    def __init__(self, unit: str, base_unit: str, base_units: float, most: float) -> None:
        self.unit = unit
        self.base_unit = base_unit
        self.base_units = base_units
        self.most = most


class Rows(StrEnum):
    """What a row of a frame of an `Observation` describes."""

    APPLICATION = "application"
    OPERATOR = "operator"
    ALTERNATE = "alternate"
    HOST = "host"
    TASK = "task"
    LINK = "link"


class PlantKind(StrEnum):
    """Plants that differ in what they can measure."""

    DATAFLOW = "dataflow on Spark"
    WATCHED = "watched queries on Spark"
    APART = "simulated, operators apart"
    FUSED = "simulated, fused"
    REDUCERS = "simulated, ring of reducers"


PLANTS: Mapping[str, PlantKind] = dict(zip("SWAFR", PlantKind, strict=True))
"""Plants by their letters in tables."""


class Given(StrEnum):
    """Conditions of a promise, as the reference writes them."""

    LOAD = "a source with a declared load"
    FILES = "the source reads local files"
    COUNTED = "each source has a declared load, reads local files, or reports how far it is behind"
    NATIVE = "the operator is column expressions"
    AS_MANY = "none of its expressions explodes a record into several"
    TOLD = "the operators before it say what they emit"
    SET = "its number is set: of a source with a load, a durable edge or a keyed operator; or a Python function runs in it"
    TARGET = "a target latency is set"
    LEVELS = "no target latency is set and operators have a `max_duration`"
    LEVEL = "the operator has a `max_duration`"
    PYTHON = "the operator is a Python function"
    DURABLE = "a durable edge leads to the operator"
    FIRST = "the operator is the first of its stage"
    LEADS = "the operator is the first of its query"
    WALKED = "a Python function runs in its query, or the dataflow has no keyed operator"
    BEHIND = "the source reports how far it is behind"
    METERED = "a Python function runs before it in its query"
    UP = "the host is up"
    PROBED = "executors run the Python daemon of Elastream"
    SHUFFLES = "shuffles are measured"
    SIZES = "record sizes are declared"
    LIMITED = "the link has a declared bandwidth"
    WIDTH = "the operator is the first of a stage with a parallelism of its own, or waits"
    MEASURED = "the provider of hosts measures it"
    NETWORKS = "hosts have networks of their own"
    QUEUES = "each instance has a queue of its own"
    UPDATED = "alternates, branches or key tables have changed while it ran"
    LENIENT = "an `on_error` other than `fail` is set"
    COPIED = "copies of state are kept (`replicas`)"
    DELTAS = "its state store writes changes, in files that the driver can list"

    def holds(self, layout: Layout, target_latency: float | None, operator: Operator | None = None) -> bool | None:
        """Whether it is met, for `operator` or for the application; None where only the running plant can tell."""
        graph = layout.graph
        match self:
            case Given.TARGET:
                return target_latency is not None
            case Given.LEVELS:
                return target_latency is None and any(each.max_duration is not None for each in graph.operators)
            case Given.LENIENT:
                return any(each.lenient for each in graph.operators) if operator is None else operator.lenient
            case Given.COUNTED:
                known = [each.load is not None or _reads_local_files(each) for each in graph.sources]
                return all(known) or None
            case Given.LOAD:
                return bool(graph.loads) if operator is None else operator.load is not None
        if operator is None:
            return None
        match self:
            case Given.LEVEL:
                return operator.max_duration is not None
            case Given.PYTHON:
                return all(each.form not in NATIVE for each in operator.alternates)
            case Given.FILES:
                return operator.load is None and _reads_local_files(operator)
            case Given.NATIVE:
                return any(each.form is Form.COLUMNS for each in operator.alternates)
            case Given.SET:
                stage = layout.stage_of[operator.name]
                lead = graph.operator(stage.operators[0])
                files = any(edge.durable == "parquet" for edge in graph.inputs[lead.name])
                walked = (graph.operator(name) for name in stage.operators)
                return stage.keyed or lead.load is not None or files or any(map(_is_python, walked))
            case Given.AS_MANY:
                return emits_as_many(operator)
            case Given.TOLD:
                return _told(layout.graph, operator)
            case Given.DURABLE:
                return any(edge.durable for edge in graph.inputs[operator.name])
            case Given.FIRST:
                return layout.stage_of[operator.name].name == operator.name
            case Given.WIDTH:
                stage = layout.stage_of[operator.name]
                followed = operator.kind is Kind.SOURCE and operator.load is None  # Spark's own readers set their width
                return operator.waits or (not stage.keyed and stage.name == operator.name and not followed)
            case Given.LEADS:
                return layout.stage_of[operator.name].segment == operator.name
        return None


def _is_python(operator: Operator) -> bool:
    return bool(operator.alternates) and all(each.form not in NATIVE for each in operator.alternates)


def _told(graph: Graph, operator: Operator) -> bool:
    """Whether it is known what comes to `operator`: from durable edges, or from operators that say what they emit."""

    def emits(before: Operator) -> bool:
        forms = {alternate.form for alternate in before.alternates}
        if Form.COLUMNS in forms:
            return emits_as_many(before) and _told(graph, before)
        return before.kind is Kind.SOURCE or not forms & {Form.AGGREGATE, Form.NONE}

    return all(edge.durable or emits(graph.operator(edge.source)) for edge in graph.inputs[operator.name])


def _reads_local_files(operator: Operator) -> bool:
    """Whether Spark's file source reads for it, from this machine's file system."""
    match operator.reads:
        case TextFiles(path) | Files(path):
            return "://" not in path
    return isinstance(operator.reads, Records)


NATIVE = (Form.COLUMNS, Form.AGGREGATE, Form.NONE)
"""Forms of alternates that run in the JVM, or not at all."""
KINDS: Mapping[str, frozenset[Kind]] = {
    **{kind.value: frozenset({kind}) for kind in Kind},
    "working": frozenset({Kind.TRANSFORM, Kind.KEYED}),
    "reading": frozenset(Kind) - {Kind.SINK},
    "fed": frozenset(Kind) - {Kind.SOURCE},
}
"""Sets of kinds of operator, as the table names them."""


@dataclass(frozen=True, slots=True)
class Promise:
    """How a plant measures a metric, for which kinds of operator, and under which conditions, all of which must hold."""

    how: str
    kinds: frozenset[Kind] = frozenset(Kind)
    given: tuple[Given, ...] = ()


Promises: TypeAlias = dict[tuple[Rows, PlantKind], tuple[Promise, ...]]


def read_table(text: str) -> dict[str, tuple[Quantity, str, Promises]]:
    """Quantity, meaning and promises of each metric in the table of `elastream.core.metrics`, by name."""
    found: dict[str, tuple[Quantity, str, Promises]] = {}
    promises: Promises = {}
    for line in text.strip().splitlines():
        terms, _, said = line.partition(" | ")
        first, second, *conditions = terms.split()
        if not line.startswith(" "):
            promises = {}
            found[first] = (Quantity[second.upper()], said, promises)
        elif first == "as":
            promises |= found[second][2]
        else:
            kinds = KINDS[conditions.pop(0)] if conditions and conditions[0] in KINDS else frozenset(Kind)
            promise = Promise(said, kinds, tuple(Given[each.upper()] for each in conditions))
            for cell in ((Rows(first), PLANTS[letter]) for letter in second):
                promises[cell] = (*promises.get(cell, ()), promise)
    return found


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

_TABLE = read_table(f"""
arrival_rate rate | Records that became due at an operator, queued or not; of a source and of the application, the \
offered load.
  operator S source | the declared load now; without one, what came in the last 10 s, as far as the source shows it
  operator S transform python | {_METER}
  operator S transform native told | what the operators before it emitted
  operator S keyed told | what the operators before it emitted
  operator S fed durable | records written to its durable edges
  operator W source | {_LATELY}, and what it holds more, as far as it tells
  operator A reading | counted in the monitoring period
  operator F source | counted in the monitoring period
  operator F working first | what its query's batches took
  application SWAFR | sum over the sources
  operator R source | counted in the monitoring period
  operator R keyed | tuples that mappers make of the records, counted in the monitoring period
processed_rate rate | Records that an operator or a task finished.
  operator S source | {_TAKEN}
  operator S transform python | {_METER}
  operator S transform native told | what the operators before it emitted
  operator S keyed python | {_METER}
  operator S keyed told | what the operators before it emitted
  operator W source | {_LATELY}
  operator A reading | counted in the monitoring period; of a source, records passed on to the operators it feeds
  operator F reading first | {_TAKEN}
  task SW | records read from shuffles, {_WINDOW}
  operator R source | counted in the monitoring period
  operator R keyed | counted in the monitoring period
  task R | counted in the monitoring period
emitted_rate rate | Records that an operator emitted.
  operator S source | {_TAKEN}
  operator S working python | {_METER}
  operator S transform native told as_many | as many as it takes
  operator A reading | counted in the monitoring period
  operator F reading first | {_TAKEN}
  operator R source | counted in the monitoring period
  operator R keyed | counted in the monitoring period
backlog records | Records queued at an operator (VISP's o_queue). A fused operator has no queue of its own; its query's \
source has.
  operator S source load | due by the load and taken by no batch
  operator S source files | files that no batch has taken, by their sizes and the records per byte of those taken
  operator SW source behind | as the source reports with its last batch
  operator S fed durable | written to its durable edges and taken by no batch
  operator A working | records in the queue now
  operator F reading leads | records that wait for the next batch
  application S counted | sum over sources and durable edges
  application W behind | sum over the queries
  task A queues | records in its queue now
  task SW counted | its part of what waits at the sources: what it took lately, for as long as its query has work waiting
  operator R keyed | tuples in the queues of its hosts now
  task R | tuples of its keys in its host's queue now
duration seconds | Time from a record being queued at the operator to having passed it, mean (VISP's o_d).
  operator S source | from the moment from which the record's latency counts to the start of the batch
  operator S transform python | busy time of a task in the batch
  operator S keyed metered | from the end of the Python stage to the commit
  operator S fed durable | from being written to the durable edge to the commit
  operator A working | records that passed in the monitoring period
  operator F reading leads | from being queued to the commit
  operator R keyed | from being emitted by a mapper to being processed, counted in the monitoring period
duration_p50 seconds | Median of `duration`.
  as duration
duration_p99 seconds | 99th percentile of `duration`.
  as duration
service_time seconds | Core-seconds that an operator works on one record.
  operator S transform python | {_METER}
  operator S keyed python | {_METER_AND_REST}
  operator S keyed told | {_METER_AND_REST}
  operator S source walked | the same
  operator A working | counted in the monitoring period
  operator F reading first | counted in the monitoring period
  alternate S python | {_OWN}
  alternate A | as its operator's is counted; of several that run at once, in the ratio of their costs
  alternate F | as declared or calibrated, on hosts as fast as those of the moment
  operator R keyed | core-seconds of its hosts over tuples processed, counted in the monitoring period
selectivity count | Records that an alternate emits for each that it takes.
  alternate S python | {_OWN}
  alternate A | as its operator's is counted; of several that run at once, in the ratio of theirs
  alternate F | as declared or calibrated
age seconds | Time since what is known of an alternate was taken: since records of it were committed last.
  alternate S python | since the end of the newest batch in which it ran
  alternate A | since the end of the newest monitoring period in which it ran
  alternate F | since the newest commit of its query, while it runs there
utilisation fraction | Of an operator: busy core-seconds over what its instances had. Of a task: part of the time for \
which it was busy.
  operator S transform python | {_METER}, over all usable cores
  operator S keyed | as for `busy_cores`, over all usable cores
  operator S source walked | the same
  operator A working | counted in the monitoring period
  operator F reading first | its `busy_cores`, over all usable cores
  task SW | part of the time for which it kept a slot, {_WINDOW}
  task A | counted in the monitoring period
  task F | an equal part of its operator's `busy_cores`
  operator R keyed | of the cores of the hosts on the ring, counted in the monitoring period
busy_cores cores | Core-seconds spent a second.
  operator S transform python | {_METER}
  operator S keyed | {_METER_AND_REST}
  operator S source walked | the same
  operator W keyed | sum over its tasks
  operator W source | an equal part of what executors use and no stage with state is charged with
  operator A working | counted in the monitoring period
  operator F reading first | mean over the last 3 s
  task SW | CPU time, with Python the time in its slot less waiting; median of the last seven batches, \
or of those since work moved to other partitions
  task A queues | counted in the monitoring period
  task F | an equal part of its operator's
  operator R keyed | counted in the monitoring period
  task R | tuples processed, by the cost of one
busy_cores_error cores | Standard error of `busy_cores` where it is an estimate from samples: noise that no decision \
should rest on.
  task SW | spread of the last seven batches
parallelism count | Instances of an operator, or tasks of its stage.
  operator S set | tasks of its stage: by the composition, of a keyed stage its state partitions, else in the last batch
  operator W keyed | state partitions
  operator A working | instances now
  operator F reading first | tasks now
  operator R keyed | state partitions
scalings count | Changes of an operator's parallelism so far, up and down (VISP's o_s).
  operator S width | changes that were applied
  operator A working | counted since the start
  operator F reading first | counted since the start
cpu fraction | Part of a host's cores that is in use (E2DF's U_n).
  host SW up | CPU time of its processes, over 3 s or whole batches; where unknown, part of its slots that tasks take
  host A up | counted in the monitoring period
  host F up | mean over the last 3 s
  host R up | counted in the monitoring period
memory megabytes | Memory in use on a host or by a task.
  host SW measured | memory of its processes
  host A | what its tasks declare
  task A | what its operator declares
speed speed | What each core of a host's type is worth now: work a second, relative to the standard core.
  host S up | that of its type, times the least CPU seconds of a fixed piece of work on any host over those on it (a probe \
beside its Python workers, every 5 s, median of the last five), times the part of its cores that quotas and hypervisor leave
  host W probed | the same
  host AF up | its type's, as it varies now
  host R up | its type's
tasks count | Tasks placed on a host (E2DF's A_n).
  host SW | state partitions placed there
  host A | instances placed there
  host F | state partitions placed there
  host R | state partitions that it owns
bandwidth byte_rate | Of a host: what it exchanges with others, both directions. Of a link: what it can carry.
  host SW shuffles | sum of `traffic` over its links
  host AF sizes | emitted records by their size, between hosts
  link S networks | what the host's network is limited to
  link AF limited | as declared; under a trace as it is now, and only between hosts of neighbouring operators
network_latency seconds | Time one way over a link.
  link S networks | half of an ICMP echo's round trip between hosts
  link AF | as declared for the regions of the two hosts; under a trace as it is now, and only between hosts of \
neighbouring operators
traffic byte_rate | Bytes exchanged over a link, or read by a task from shuffles.
  task SW | shuffle bytes read, {_WINDOW}
  link SW shuffles | shuffle bytes between two hosts, {_WINDOW}
latency_p50 seconds | Of the application: time from a record being due to its result being committed, median.
  application S | {_FROM}
  application W | {_POLL}, median of the slowest query
  application A | records that reached a sink in the monitoring period
  application F | {_DUE}
  application R | from being emitted by a mapper to being processed, of the tuples of the monitoring period
latency_p99 seconds | 99th percentile of the same.
  application S | {_LONGEST}
  application W | {_POLL}, longest of the slowest query
  application A | records that reached a sink in the monitoring period
  application F | {_DUE}
  application R | from being emitted by a mapper to being processed, of the tuples of the monitoring period
latency seconds | Mean of the same (E2DF's response time).
  application S | {_FROM}
  application W | {_POLL}, mean of the slowest query
  application A | records that reached a sink in the monitoring period
  application F | {_DUE}
  application R | from being emitted by a mapper to being processed, of the tuples of the monitoring period
throughput rate | Of the application: records taken from its sources and committed.
  application S | {_TAKEN}
  application W | {_LATELY}, sum over the queries
  application A | counted in the monitoring period
  application F | {_TAKEN}
  application R | tuples processed, counted in the monitoring period
compliance fraction | Part of the records that passed within the service level.
  operator A working level | counted in the monitoring period
  operator F reading leads level | counted in the monitoring period
  application S target | latencies up to the target, {_BATCHES}
  application W target | latencies up to the target, of the last seven batches; a lower bound, as latencies are upper ones
  application A target | latencies up to the target
  application A levels | sum over the operators
  application F target | latencies up to the target, {_BATCHES}
  application R target | latencies up to the target
batch_duration seconds | Duration of a micro-batch.
  application S | median of {_BATCHES}
  application W | last batch of the slowest query
  application F | median of {_BATCHES}
update_latency seconds | From the request of a change of alternates, branches or key tables until the last batch under an \
older composition was committed (thesis, p. 50): of the newest change that is in force.
  application S updated | over the queries that hold what it changes
  application AF updated | over all queries
mixed_records records | Records so far that passed one changed operator under an older composition and another under a \
newer.
  application S updated | followed over durable edges by the batches that wrote them
  application AF updated | counted at the change, of what is under way
left_out records | Records so far that an operator left out, because its function raised on them (`on_error`).
  operator S working lenient | of committed batches, as their tasks told
  application S lenient | sum over the operators
state_size megabytes | State of an operator or a task, as its newest checkpoint holds it.
  operator SW keyed deltas | files of its state partitions: the newest snapshot, and what was written since; an upper bound
  operator R keyed | of the keys met so far, expected
  task SW deltas | the same, of its partition
  task R | the same, of its partition
checkpoint_delta fraction | Size of what the newest checkpoint wrote over the size of the whole state (thesis, Fig. 6.12).
  operator SW keyed deltas | files of changes of the newest committed batch over `state_size`
  operator R keyed copied | of the host that made the newest one
copies_memory megabytes | Memory that copies of other hosts' state take on a host.
  host SW copied | as its executor reports
  host R up | state of the copies, and tuples kept since
standby_lag count | Checkpoints that the copy of a task's state which would take over has not taken in yet.
  task SW copied | committed batches that the copy furthest ahead has not replayed
  task R copied | those sent and not taken in
cost money | Money paid for hosts since the start.
  application SWAFR | leases in whole billing time units, or what a pool charges
""")
"""Of each metric its name, kind of value and meaning (with the papers' symbols), then a promise a line: of which rows, by
which plants (`PLANTS`), for which kinds of operator and under which conditions (`Given`), and how.
"""


class Metric(StrEnum):
    """Every quantity that is observed."""

    __hash__ = str.__hash__  # that of Enum is a Python call, and metrics are the keys of every frame

    quantity: Quantity
    meaning: str
    promises: Promises

    def __new__(cls, name: str) -> "Metric":
        """The entry `name` of the table."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.quantity, member.meaning, member.promises = _TABLE[name]
        return member

    def promised(self, rows: Rows, plant: PlantKind, operator: Operator | None = None) -> tuple[Promise, ...]:
        """What `plant` promises of this metric for `rows`, those that are not for `operator`'s kind left out."""
        found = self.promises.get((rows, plant), ())
        return found if operator is None else tuple(each for each in found if operator.kind in each.kinds)

    ARRIVAL_RATE = auto()
    PROCESSED_RATE = auto()
    EMITTED_RATE = auto()
    BACKLOG = auto()
    DURATION = auto()
    DURATION_P50 = auto()
    DURATION_P99 = auto()
    SERVICE_TIME = auto()
    SELECTIVITY = auto()
    AGE = auto()
    UTILISATION = auto()
    BUSY_CORES = auto()
    BUSY_CORES_ERROR = auto()
    PARALLELISM = auto()
    SCALINGS = auto()
    CPU = auto()
    MEMORY = auto()
    SPEED = auto()
    TASKS = auto()
    BANDWIDTH = auto()
    NETWORK_LATENCY = auto()
    TRAFFIC = auto()
    LATENCY_P50 = auto()
    LATENCY_P99 = auto()
    LATENCY = auto()
    THROUGHPUT = auto()
    COMPLIANCE = auto()
    BATCH_DURATION = auto()
    UPDATE_LATENCY = auto()
    MIXED_RECORDS = auto()
    LEFT_OUT = auto()
    STATE_SIZE = auto()
    CHECKPOINT_DELTA = auto()
    COPIES_MEMORY = auto()
    STANDBY_LAG = auto()
    COST = auto()


@cache
def of_application() -> frozenset[Metric]:
    """Metrics that some plant promises of a whole application: guards read them by their names."""
    plants = tuple(PLANTS.values())
    return frozenset(metric for metric in Metric if any(metric.promised(Rows.APPLICATION, plant) for plant in plants))


Needs: TypeAlias = frozenset[tuple[Rows, Metric]]
"""Metrics without which a policy cannot decide; a policy may declare them as `needs`, for `elastream check`."""

FIGURES: Mapping[str, Quantity] = {
    "usable_cores": Quantity.CORES,
    "longest batch": Quantity.SECONDS,
    "owed": Quantity.MONEY,
    "update latency": Quantity.SECONDS,
    "longest update": Quantity.SECONDS,
    "mixed records": Quantity.RECORDS,
    "left out": Quantity.RECORDS,
}
"""Figures of decisions and runs that are no metric, by name; every other that is no metric is a plain number."""


def quantity_of(name: str) -> Quantity:
    """What kind of value the metric or figure called `name` has."""
    metric = Metric.__members__.get(name.upper())
    return FIGURES.get(name, Quantity.COUNT) if metric is None else metric.quantity
