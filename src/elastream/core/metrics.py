"""Vocabulary of metrics: names, quantities and meanings.

A new metric is a member of `Metric`, its entry in `elastream.core.promises`, and code that measures it.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import TypeAlias


class Quantity(Enum):
    """Kind of a metric's value: unit, Prometheus base unit, factor to it, and largest plausible value.

    Larger and negative values are unknown, such as overflows or reset counters.
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
        self.unit, self.base_unit, self.base_units, self.most = unit, base_unit, base_units, most


class Rows(StrEnum):
    """Subject of the rows of an `Observation`'s frame."""

    APPLICATION = "application"
    OPERATOR = "operator"
    ALTERNATE = "alternate"
    HOST = "host"
    TASK = "task"
    LINK = "link"


class Metric(StrEnum):
    """Observed quantities."""

    __hash__ = str.__hash__  # that of Enum is a Python call, and metrics are the keys of every frame

    quantity: Quantity
    meaning: str

    def __new__(cls, name: str, quantity: Quantity = Quantity.COUNT, meaning: str = "") -> "Metric":
        member = str.__new__(cls, name)
        member._value_ = name
        member.quantity, member.meaning = quantity, meaning
        return member

    ARRIVAL_RATE = (
        "arrival_rate",
        Quantity.RATE,
        "Records that became due at an operator, queued or not; of a source and of the application, the offered load.",
    )
    PROCESSED_RATE = ("processed_rate", Quantity.RATE, "Records that an operator or a task finished.")
    EMITTED_RATE = ("emitted_rate", Quantity.RATE, "Records that an operator emitted.")
    BACKLOG = (
        "backlog",
        Quantity.RECORDS,
        ("Records queued at an operator. A chained operator has no queue of its own; its query's source has."),
    )
    DURATION = (
        "duration",
        Quantity.SECONDS,
        "Mean time of a record from entering the operator's queue to leaving the operator.",
    )
    DURATION_P50 = ("duration_p50", Quantity.SECONDS, "Median of `duration`.")
    DURATION_P99 = ("duration_p99", Quantity.SECONDS, "99th percentile of `duration`.")
    SERVICE_TIME = ("service_time", Quantity.SECONDS, "Core-seconds that an operator works on one record.")
    SELECTIVITY = ("selectivity", Quantity.COUNT, "Records that an alternate emits for each record in.")
    AGE = ("age", Quantity.SECONDS, "Time since records of an alternate were last committed: the age of its figures.")
    UTILISATION = (
        "utilisation",
        Quantity.FRACTION,
        "Of an operator: busy core-seconds over those of its instances. Of a task: share of the time in which it was busy.",
    )
    BUSY_CORES = ("busy_cores", Quantity.CORES, "Core-seconds spent per second.")
    BUSY_CORES_ERROR = (
        "busy_cores_error",
        Quantity.CORES,
        "Standard error of `busy_cores` if it is estimated from samples: noise that no decision should rest on.",
    )
    PARALLELISM = ("parallelism", Quantity.COUNT, "Instances of an operator, or tasks of its stage.")
    SCALINGS = ("scalings", Quantity.COUNT, "Changes of an operator's parallelism so far, up and down.")
    CPU = ("cpu", Quantity.FRACTION, "Share of a host's cores in use.")
    MEMORY = ("memory", Quantity.MEGABYTES, "Memory in use on a host or by a task.")
    SPEED = ("speed", Quantity.SPEED, "Work per second of a host's core now, relative to the standard core.")
    TASKS = ("tasks", Quantity.COUNT, "Tasks placed on a host.")
    BANDWIDTH = (
        "bandwidth",
        Quantity.BYTE_RATE,
        "Of a host: its traffic with others, both directions. Of a link: its capacity.",
    )
    NETWORK_LATENCY = ("network_latency", Quantity.SECONDS, "Time one way over a link.")
    TRAFFIC = ("traffic", Quantity.BYTE_RATE, "Bytes exchanged over a link, or read by a task from shuffles.")
    LATENCY_P50 = (
        "latency_p50",
        Quantity.SECONDS,
        "Of the application: median time from a record's due time to the commit of its result.",
    )
    LATENCY_P99 = (
        "latency_p99",
        Quantity.SECONDS,
        "Of the application: 99th percentile of the time from a record's due time to the commit of its result.",
    )
    LATENCY = (
        "latency",
        Quantity.SECONDS,
        "Of the application: mean time from a record's due time to the commit of its result.",
    )
    THROUGHPUT = ("throughput", Quantity.RATE, "Of the application: records taken from its sources and committed.")
    COMPLIANCE = ("compliance", Quantity.FRACTION, "Share of the records that passed within the service level.")
    BATCH_DURATION = ("batch_duration", Quantity.SECONDS, "Duration of a micro-batch.")
    UPDATE_LATENCY = (
        "update_latency",
        Quantity.SECONDS,
        (
            "Time from the request of a change of alternates, branches or key tables until the last batch under an older "
            "composition was committed; for the newest change in force."
        ),
    )
    MIXED_RECORDS = (
        "mixed_records",
        Quantity.RECORDS,
        "Records so far that passed one changed operator under an older composition and another under a newer one.",
    )
    LEFT_OUT = (
        "left_out",
        Quantity.RECORDS,
        "Records so far that an operator dropped because its function raised on them (`on_error`).",
    )
    STATE_SIZE = ("state_size", Quantity.MEGABYTES, "State of an operator or a task in its newest checkpoint.")
    CHECKPOINT_DELTA = (
        "checkpoint_delta",
        Quantity.FRACTION,
        "Size of the newest checkpoint's changes over the size of the whole state.",
    )
    STATE_ROWS = ("state_rows", Quantity.RECORDS, "Rows of state of an operator or a task.")
    STATE_HEAP = (
        "state_heap",
        Quantity.MEGABYTES,
        "State of an operator in executors' heap. Plans divide it among partitions by `state_size`.",
    )
    STATE_OFF_HEAP = (
        "state_off_heap",
        Quantity.MEGABYTES,
        "State of an operator in RocksDB's memtables, block cache and index.",
    )
    STATE_DISK = ("state_disk", Quantity.MEGABYTES, "Files of an operator's RocksDB on executors' disks.")
    HEAP = (
        "heap",
        Quantity.MEGABYTES,
        "Heap that a host needs: its state, other live data, and the third that some collectors keep for new objects.",
    )
    HEAP_LIMIT = ("heap_limit", Quantity.MEGABYTES, "Most heap that a host's executor may take.")
    OFF_HEAP = ("off_heap", Quantity.MEGABYTES, "Memory of a host's JVM outside its heap, without RocksDB.")
    PYTHON_MEMORY = ("python_memory", Quantity.MEGABYTES, "Memory of a host's Python workers.")
    MEMORY_LIMIT = (
        "memory_limit",
        Quantity.MEGABYTES,
        "Memory above which a host's executor is killed.",
    )
    GC_TIME = ("gc_time", Quantity.FRACTION, "Share of time in which a host's JVM collects garbage.")
    WATERMARK_LAG = (
        "watermark_lag",
        Quantity.SECONDS,
        "Time by which a watermark trails the clock; of several, the longest.",
    )
    COPIES_MEMORY = ("copies_memory", Quantity.MEGABYTES, "Memory of standby replicas on a host.")
    STANDBY_LAG = ("standby_lag", Quantity.COUNT, "Checkpoints that the standby replica next in line for a task lacks.")
    COST = ("cost", Quantity.MONEY, "Money paid for hosts since the start.")


# Metrics without which a policy cannot decide.
Needs: TypeAlias = frozenset[tuple[Rows, Metric]]

# Figures of decisions and runs that are not metrics; any other name is a plain number's.
FIGURES: Mapping[str, Quantity] = {
    "usable_cores": Quantity.CORES,
    "longest batch": Quantity.SECONDS,
    "owed": Quantity.MONEY,
    "update latency": Quantity.SECONDS,
    "longest update": Quantity.SECONDS,
    "mixed records": Quantity.RECORDS,
    "left out": Quantity.RECORDS,
}


def quantity_of(name: str) -> Quantity:
    metric = Metric.__members__.get(name.upper())
    return FIGURES.get(name, Quantity.COUNT) if metric is None else metric.quantity
