"""The one table of metrics: what is observed, in which unit, of which rows, and which plant measures it how.

How a value is written for people, what Prometheus exports, the reference page and the conformance suite all derive from
it. A new metric is one member of `Metric` and the place that measures it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

from elastream.model.graph import Operator
from elastream.model.promises import (
    FED,
    KEYED,
    READING,
    SOURCES,
    TRANSFORMS,
    WORKING,
    Given,
    PlantKind,
    Promise,
    Promises,
    Quantity,
    Rows,
    promised_of,
    when,
)

__all__ = ["FIGURES", "Metric", "Needs", "quantity_of"]

_PARTITIONS = "state partitions placed there"
_SUM = "sum over the sources"
_COUNTED = "counted in the monitoring period"
_BATCHES = "the batches of the last 3 s"
_METER = f"meter in the Python stage, {_BATCHES}"
_TAKEN = f"records taken by {_BATCHES}"
_LAST_20 = "records of the last 20 batches over the time between them"
_WINDOW = "mean over the last seven batches"
_DUE = "commit of the batch less the moment at which the load made the record due"
_TASK_TIME = "CPU time, with Python the time in its slot less waiting; median of the last seven batches"
_SPREAD = "spread of the last seven batches"
_CPU = "CPU time of its processes, mean over 3 s; where that is unknown, part of its slots that tasks take"
_LEASES = "leases in whole billing time units, or what a pool charges"

_DURATIONS = promised_of(
    Rows.OPERATOR,
    dataflow=(
        when("from being due to the start of the batch", Given.LOAD, kinds=SOURCES),
        when("busy time of a task in the batch", Given.PYTHON, kinds=TRANSFORMS),
        when("from the end of the Python stage to the commit", Given.METERED, kinds=KEYED),
        when("from being written to the durable edge to the commit", Given.DURABLE, kinds=FED),
    ),
    apart=Promise("records that passed in the monitoring period", WORKING),
    fused=when("from being queued to the commit", Given.LEADS, kinds=READING),
)
_LATENCIES = promised_of(
    Rows.APPLICATION,
    dataflow=when(f"{_DUE}, {_BATCHES}", Given.LOAD),
    apart="records that reached a sink in the monitoring period",
    fused=f"{_DUE}, {_BATCHES}",
)


class Metric(StrEnum):
    """Every quantity that is observed: its name, kind of value, meaning (with the papers' symbols), who measures it how."""

    __hash__ = str.__hash__  # that of Enum is a Python call, and metrics are the keys of every frame

    quantity: Quantity
    meaning: str
    promises: Promises

    def __new__(cls, name: str, quantity: Quantity, meaning: str, *promises: Promises) -> "Metric":
        """A row of the table."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.quantity, member.meaning = quantity, meaning
        member.promises = {key: found for each in promises for key, found in each.items()}
        return member

    def promised(self, rows: Rows, plant: PlantKind, operator: Operator | None = None) -> tuple[Promise, ...]:
        """What `plant` promises of this metric for `rows`, those that are not for `operator`'s kind left out."""
        found = self.promises.get((rows, plant), ())
        return found if operator is None else tuple(each for each in found if operator.kind in each.kinds)

    ARRIVAL_RATE = (
        "arrival_rate",
        Quantity.RATE,
        "Records that became due at an operator, queued or not; of a source and of the application, the offered load.",
        promised_of(
            Rows.OPERATOR,
            dataflow=(
                Promise("the declared load now; without one, what batches took", SOURCES),
                when(_METER, Given.PYTHON, kinds=TRANSFORMS),
                when("what the operators before it emitted", Given.METERED, kinds=KEYED),
                when("records written to its durable edges", Given.DURABLE, kinds=FED),
            ),
            watched=Promise(_LAST_20, SOURCES),
            apart=Promise(_COUNTED, READING),
            fused=(Promise(_COUNTED, SOURCES), when("what its query's batches took", Given.FIRST, kinds=WORKING)),
        ),
        promised_of(Rows.APPLICATION, dataflow=_SUM, simulated=_SUM),
    )
    PROCESSED_RATE = (
        "processed_rate",
        Quantity.RATE,
        "Records that an operator or a task finished.",
        promised_of(
            Rows.OPERATOR,
            dataflow=(
                Promise(_TAKEN, SOURCES),
                when(_METER, Given.PYTHON, kinds=TRANSFORMS),
                when("what the operators before it emitted", Given.METERED, kinds=KEYED),
            ),
            watched=Promise(_LAST_20, SOURCES),
            apart=Promise(_COUNTED, WORKING),
            fused=when(_TAKEN, Given.FIRST, kinds=READING),
        ),
        promised_of(Rows.TASK, spark=f"records read from shuffles, {_WINDOW}"),
    )
    EMITTED_RATE = (
        "emitted_rate",
        Quantity.RATE,
        "Records that an operator emitted.",
        promised_of(
            Rows.OPERATOR,
            dataflow=(Promise(_TAKEN, SOURCES), when(_METER, Given.PYTHON, kinds=WORKING)),
            apart=Promise(_COUNTED, READING),
            fused=when(_TAKEN, Given.FIRST, kinds=READING),
        ),
    )
    BACKLOG = (
        "backlog",
        Quantity.RECORDS,
        "Records queued at an operator (VISP's o_queue). A fused operator has no queue of its own; its query's source has.",
        promised_of(
            Rows.OPERATOR,
            dataflow=(
                when("due by the load and taken by no batch", Given.LOAD, kinds=SOURCES),
                when("as the source reports with its last batch", Given.BEHIND, kinds=SOURCES),
                when("written to its durable edges and taken by no batch", Given.DURABLE, kinds=FED),
            ),
            watched=when("as the source reports with its last batch", Given.BEHIND, kinds=SOURCES),
            apart=Promise("records in the queue now", WORKING),
            fused=when("records that wait for the next batch", Given.LEADS, kinds=READING),
        ),
        promised_of(Rows.APPLICATION, dataflow=when("sum over sources and durable edges", Given.LOADS)),
        promised_of(Rows.TASK, apart=when("records in its queue now", Given.QUEUES)),
    )
    DURATION = (
        "duration",
        Quantity.SECONDS,
        "Time from a record being queued at the operator to having passed it, mean (VISP's o_d).",
        _DURATIONS,
    )
    DURATION_P50 = ("duration_p50", Quantity.SECONDS, "Median of `duration`.", _DURATIONS)
    DURATION_P99 = ("duration_p99", Quantity.SECONDS, "99th percentile of `duration`.", _DURATIONS)
    SERVICE_TIME = (
        "service_time",
        Quantity.SECONDS,
        "Core-seconds that an operator works on one record.",
        promised_of(
            Rows.OPERATOR,
            dataflow=(
                when(_METER, Given.PYTHON, kinds=TRANSFORMS),
                Promise("meter, and an equal part of what hosts use and no meter saw", KEYED),
                when("the same", Given.WALKED, kinds=SOURCES),
            ),
            apart=Promise(_COUNTED, WORKING),
            fused=when(_COUNTED, Given.FIRST, kinds=READING),
        ),
    )
    UTILISATION = (
        "utilisation",
        Quantity.FRACTION,
        "Of an operator: busy core-seconds over what its instances had. Of a task: part of the time for which it was busy.",
        promised_of(
            Rows.OPERATOR,
            dataflow=(
                when(f"{_METER}, over all usable cores", Given.PYTHON, kinds=TRANSFORMS),
                Promise("as for `busy_cores`, over all usable cores", KEYED),
                when("the same", Given.WALKED, kinds=SOURCES),
            ),
            apart=Promise(_COUNTED, WORKING),
        ),
        promised_of(
            Rows.TASK,
            spark=f"part of the time for which it kept a slot, {_WINDOW}",
            apart=_COUNTED,
            fused="an equal part of its operator's `busy_cores`",
        ),
    )
    BUSY_CORES = (
        "busy_cores",
        Quantity.CORES,
        "Core-seconds spent a second.",
        promised_of(
            Rows.OPERATOR,
            dataflow=(
                when(_METER, Given.PYTHON, kinds=TRANSFORMS),
                Promise("meter, and an equal part of what hosts use and no meter saw", KEYED),
                when("the same", Given.WALKED, kinds=SOURCES),
            ),
            watched=(
                Promise("sum over its tasks", KEYED),
                Promise("an equal part of what executors use and no stage with state is charged with", SOURCES),
            ),
            apart=Promise(_COUNTED, WORKING),
            fused=when("mean over the last 3 s", Given.FIRST, kinds=READING),
        ),
        promised_of(
            Rows.TASK, spark=_TASK_TIME, apart=when(_COUNTED, Given.QUEUES), fused="an equal part of its operator's"
        ),
    )
    BUSY_CORES_ERROR = (
        "busy_cores_error",
        Quantity.CORES,
        "Standard error of `busy_cores` where it is an estimate from samples: noise that no decision should rest on.",
        promised_of(Rows.TASK, spark=_SPREAD),
    )
    PARALLELISM = (
        "parallelism",
        Quantity.COUNT,
        "Instances of an operator, or tasks of its stage.",
        promised_of(
            Rows.OPERATOR,
            dataflow="tasks of its stage: by the composition, of a keyed stage its state partitions",
            watched=Promise("state partitions", KEYED),
            apart=Promise("instances now", WORKING),
            fused=when("tasks now", Given.FIRST, kinds=READING),
        ),
    )
    SCALINGS = (
        "scalings",
        Quantity.COUNT,
        "Changes of an operator's parallelism so far, up and down (VISP's o_s).",
        promised_of(
            Rows.OPERATOR,
            dataflow=when("changes that were applied", Given.WIDTH),
            apart=Promise("counted since the start", WORKING),
            fused=when("counted since the start", Given.FIRST, kinds=READING),
        ),
    )
    CPU = (
        "cpu",
        Quantity.FRACTION,
        "Part of a host's cores that is in use (E2DF's U_n).",
        promised_of(
            Rows.HOST,
            spark=when(_CPU, Given.UP),
            apart=when(_COUNTED, Given.UP),
            fused=when("mean over the last 3 s", Given.UP),
        ),
    )
    MEMORY = (
        "memory",
        Quantity.MEGABYTES,
        "Memory in use on a host or by a task.",
        promised_of(Rows.HOST, spark=when("memory of its processes", Given.MEASURED), apart="what its tasks declare"),
        promised_of(Rows.TASK, apart="what its operator declares"),
    )
    SPEED = (
        "speed",
        Quantity.SPEED,
        "Speed of a host's cores relative to the standard core, as measured now.",
        promised_of(Rows.HOST, simulated=when("its type's, as it varies now", Given.UP)),
    )
    TASKS = (
        "tasks",
        Quantity.COUNT,
        "Tasks placed on a host (E2DF's A_n).",
        promised_of(Rows.HOST, spark=_PARTITIONS, apart="instances placed there", fused=_PARTITIONS),
    )
    BANDWIDTH = (
        "bandwidth",
        Quantity.BYTE_RATE,
        "Of a host: what it exchanges with others, both directions. Of a link: what it can carry.",
        promised_of(
            Rows.HOST,
            spark=when("sum of `traffic` over its links", Given.SHUFFLES),
            simulated=when("emitted records by their size, between hosts", Given.SIZES),
        ),
        promised_of(
            Rows.LINK,
            dataflow=when("what the host's network is limited to", Given.NETWORKS),
            simulated=when("as declared", Given.LIMITED),
        ),
    )
    NETWORK_LATENCY = (
        "network_latency",
        Quantity.SECONDS,
        "Time one way over a link.",
        promised_of(
            Rows.LINK,
            dataflow=when("half of an ICMP echo's round trip between hosts", Given.NETWORKS),
            simulated="as declared for the regions of the two hosts",
        ),
    )
    TRAFFIC = (
        "traffic",
        Quantity.BYTE_RATE,
        "Bytes exchanged over a link, or read by a task from shuffles.",
        promised_of(Rows.TASK, spark=f"shuffle bytes read, {_WINDOW}"),
        promised_of(Rows.LINK, spark=when(f"shuffle bytes between two hosts, {_WINDOW}", Given.SHUFFLES)),
    )
    LATENCY_P50 = (
        "latency_p50",
        Quantity.SECONDS,
        "Of the application: time from a record being due to its result being committed, median.",
        _LATENCIES,
    )
    LATENCY_P99 = (
        "latency_p99",
        Quantity.SECONDS,
        "99th percentile of the same.",
        _LATENCIES,
        promised_of(
            Rows.APPLICATION, watched="upper bound, slowest query: time between batches and the longest of the last seven"
        ),
    )
    LATENCY = (
        "latency",
        Quantity.SECONDS,
        "Mean of the same (E2DF's response time).",
        _LATENCIES,
        promised_of(Rows.APPLICATION, watched="upper bound, slowest query: time between batches and their mean duration"),
    )
    THROUGHPUT = (
        "throughput",
        Quantity.RATE,
        "Of the application: records taken from its sources and committed.",
        promised_of(
            Rows.APPLICATION, dataflow=_TAKEN, watched=f"{_LAST_20}, sum over the queries", apart=_COUNTED, fused=_TAKEN
        ),
    )
    COMPLIANCE = (
        "compliance",
        Quantity.FRACTION,
        "Part of the records that passed within the service level.",
        promised_of(
            Rows.OPERATOR,
            apart=when(_COUNTED, Given.LEVEL, kinds=WORKING),
            fused=when(_COUNTED, Given.LEADS, Given.LEVEL, kinds=READING),
        ),
        promised_of(
            Rows.APPLICATION,
            dataflow=when(f"latencies up to the target, {_BATCHES}", Given.TARGET, Given.LOAD),
            apart=(when("latencies up to the target", Given.TARGET), when("sum over the operators", Given.LEVELS)),
            fused=when(f"latencies up to the target, {_BATCHES}", Given.TARGET),
        ),
    )
    BATCH_DURATION = (
        "batch_duration",
        Quantity.SECONDS,
        "Duration of a micro-batch.",
        promised_of(
            Rows.APPLICATION,
            dataflow=f"median of {_BATCHES}",
            watched="last batch of the slowest query",
            fused=f"median of {_BATCHES}",
        ),
    )
    COST = (
        "cost",
        Quantity.MONEY,
        "Money paid for hosts since the start.",
        promised_of(Rows.APPLICATION, spark=_LEASES, simulated=_LEASES),
    )


Needs: TypeAlias = frozenset[tuple[Rows, Metric]]
"""Metrics without which a policy cannot decide; a policy may declare them as `needs`, for `elastream check`."""

FIGURES: Mapping[str, Quantity] = {
    "usable_cores": Quantity.CORES,
    "longest batch": Quantity.SECONDS,
    "owed": Quantity.MONEY,
}
"""Figures of decisions and runs that are no metric, by name; every other that is no metric is a plain number."""


def quantity_of(name: str) -> Quantity:
    """What kind of value the metric or figure called `name` has."""
    metric = Metric.__members__.get(name.upper())
    return FIGURES.get(name, Quantity.COUNT) if metric is None else metric.quantity
