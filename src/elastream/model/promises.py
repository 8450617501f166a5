"""What a plant can promise of a metric: kinds of value and of plant, rows, and the conditions under which it is known.

The words of the table in `elastream.model.metrics`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TypeAlias

from elastream.model.endpoints import Files, Records, TextFiles
from elastream.model.graph import Form, Graph, Kind, Operator, emits_as_many
from elastream.model.stages import Layout

__all__ = ["PLANTS", "Given", "PlantKind", "Promise", "Promises", "Quantity", "Rows", "read_table"]


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
    """Quantity, meaning and promises of each metric in the table of `elastream.model.metrics`, by name."""
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
