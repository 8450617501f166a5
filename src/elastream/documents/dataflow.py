"""Dataflows in YAML: the graph of the Python API, with policy, cloud and run settings.

Paths and `file.py:name` are relative to the document. A policy, cloud, source or sink may be the user's class,
`module:Class` or `file.py:Class`. Every error names file, line and field in one sentence.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, ValidationInfo, create_model, field_validator, model_validator

from elastream.core.hosts import HostType
from elastream.dataflow import endpoints
from elastream.dataflow.builder import MAX_UNROLLED_ROUNDS, Dataflow, Tap, port_of, switching
from elastream.dataflow.functions import Loop, Receiver, port_name, shares_of
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable, selection_of
from elastream.dataflow.natives import Native, Sql, Where
from elastream.dataflow.operators import NATIVE, REPEATABLE, Alternate, Delivery, Form, Kind, OnError, Operator
from elastream.dataflow.windows import Pairs, Timeout, Window
from elastream.documents.key_table_files import load_key_table
from elastream.documents.located import Loc, Located, read_yaml
from elastream.documents.registry import CLOUD, DEFAULT_POLICY, POLICY, SINK, SOURCE, Registry, made
from elastream.documents.schema import (
    Columns,
    Cores,
    Duration,
    FunctionName,
    HostTypeKeys,
    Keys,
    Memory,
    NamedParameters,
    Names,
    ScalingKeys,
    Schema,
    at_most_one,
    belongs,
    chosen,
    declared_types,
    exactly_one,
    key_of,
    named,
    scaling_rules,
)
from elastream.documents.user_code import ProgramError, References, near
from elastream.errors import DataflowError, ElastreamError
from elastream.loads import pattern_from
from elastream.settings import PathOf, RunSettings, Setting, settings_of
from elastream.units import duration, truth

# Keys for the function of a stateless operator, as in the Python API.
FORMS: Mapping[str, Form] = {
    "map": Form.MAP,
    "flat_map": Form.FLAT_MAP,
    "filter": Form.FILTER,
    "map_arrow": Form.ARROW,
    "map_pandas": Form.PANDAS,
    "map_stream": Form.STREAM,
    "switch": Form.SWITCH,
    "select": Form.COLUMNS,
    "where": Form.FRAME,
    "sql": Form.FRAME,
    "transform": Form.FRAME,
}
# Keys whose value is the text of a native operator, not the name of a function.
TEXTS: Mapping[str, Callable[[str], Native]] = {"where": Where, "sql": Sql}
# Keys whose functions a loop may repeat, and those whose functions workers call.
REPEATED = tuple(key for key, form in FORMS.items() if form in REPEATABLE)
CALLED = tuple(key for key, form in FORMS.items() if form not in NATIVE)
SOURCES = ("text_files", "files", "records", "kafka")
SINKS = ("parquet", "collect", "kafka")
KEYED_FORMS: Mapping[str, Form] = {"aggregate": Form.AGGREGATE, "apply": Form.STATE}
# Keys that group records, and the form of a function that `apply` names beside them.
GROUPINGS: Mapping[str, Form] = {"key_by": Form.STATE, "group_by": Form.WINDOW, "join": Form.JOIN}


def _endpoint(value: object) -> object:
    if value in ("simulated", "nothing"):
        return {value: True}
    if isinstance(value, str | Mapping) and isinstance(mapping := named(value), Mapping) and len(mapping) == 1:
        return {"own": mapping} if ":" in next(iter(mapping)) else value
    return value


def _truth_or_text(value: object) -> object:
    with suppress(ElastreamError):
        return truth(value)
    return value


True_ = Annotated[Literal[True], BeforeValidator(_truth_or_text)]


def _nested_under(key: str) -> BeforeValidator:
    return BeforeValidator(lambda value: value if value is None or isinstance(value, Mapping) else {key: value})


def _edges(value: object) -> object:
    return [
        {"operator": each} if isinstance(each, str) else each for each in (value if isinstance(value, list) else [value])
    ]


class FunctionKeys(Keys):
    """A function of records in one of several forms, and its cost."""

    map: FunctionName | None = None
    flat_map: FunctionName | None = None
    filter: FunctionName | None = None
    map_arrow: FunctionName | None = None
    map_pandas: FunctionName | None = None
    map_stream: FunctionName | None = None
    switch: FunctionName | None = None
    select: Columns | None = None
    where: str | None = None
    sql: Annotated[str, Field(pattern=r"\{stream\}")] | None = None
    transform: FunctionName | None = None
    cost: Duration | None = None
    selectivity: float | None = Field(None, ge=0)


class EndpointKeys(Keys):
    """Keys of sources and sinks: `simulated`, Kafka with its options, or `own` for a class of the user's."""

    simulated: True_ | None = None
    own: dict[str, dict[str, Any]] | None = None
    kafka: str | None = None
    servers: str = "127.0.0.1:9092"
    options: dict[str, str] = Field(default_factory=dict)


class EdgeKeys(Keys):
    operator: str
    port: str | None = None
    delivery: Literal["duplicate", "round_robin"] = Delivery.DUPLICATE.value
    durable: Literal["parquet", "kafka"] | None = None
    choice: str | None = None
    value: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _branch(self) -> "EdgeKeys":
        if self.value is not None and self.choice is None:
            raise ValueError("a value is that of a branch: name its 'choice'")
        return self

    @property
    def source(self) -> str:
        return self.operator if self.port is None else port_name(self.operator, self.port)


class AlternateKeys(FunctionKeys):
    """One implementation of an operator: at most one function, its value and its cost."""

    apply: FunctionName | None = None
    aggregate: Any = None
    state: Schema | None = None
    returns: Schema = ""
    value: float = Field(1.0, ge=0, le=1)

    @model_validator(mode="after")
    def _one_function(self) -> "AlternateKeys":
        if self.aggregate is not None:
            raise ValueError(
                "native aggregates cannot be alternates, because Spark cannot change them in a running query: write "
                "functions with state, with 'apply'"
            )
        at_most_one(self, (*FORMS, "apply"), "function")
        if self.state is not None and self.apply is None:
            raise ValueError("'state' goes with 'apply' alone")
        return self


class WindowKeys(Keys):
    """Windows of time, count or landmarks. `every` counts seconds or records, as the window does."""

    seconds: Duration | None = None
    count: int | None = None
    landmark: str | None = None
    every: Duration | None = None
    by: str = ""
    late: Duration = 0.0

    @field_validator("every", mode="before")
    @classmethod
    def _counted(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, str) and info.data.get("count") is not None:
            raise ValueError(f"{value!r} is not a whole number of records, as those that 'count' counts")
        return value

    def built(self) -> Window:
        return Window(**self.model_dump())


class TimeoutKeys(Keys):
    seconds: Duration
    by: str = ""
    late: Duration = 0.0
    emits: FunctionName | None = None


class DiagnosticKeys(Keys):
    """A signal that is the aggregate of a diagnostic branch. By default it has the name of the operator."""

    aggregate: str
    name: str = ""
    stale: Annotated[Duration, Field(gt=0)] = math.inf
    trace: str | dict[str | float, float | bool | str | None] | None = None


class SourceKeys(EndpointKeys):
    text_files: str | None = None
    files: str | None = None
    format: Literal["parquet", "json", "csv"] = "parquet"
    records: list[dict[str, Any]] | None = None
    schema_: Schema | None = Field(None, alias="schema")
    group: str = ""

    @model_validator(mode="after")
    def _one(self) -> "SourceKeys":
        if self.own is not None:
            return self
        kind = exactly_one(self, (*SOURCES, "simulated"), "source")
        of_kafka = {"servers": ("kafka",), "options": ("kafka",), "group": ("kafka",)}
        owners = {"format": ("files",), "schema_": ("files", "records"), **of_kafka}
        belongs(self, owners, kind)
        if kind in ("files", "records") and self.schema_ is None:
            raise ValueError(f"a source of {kind} needs a schema, such as 'word string, n long'")
        return self


class SinkKeys(EndpointKeys):
    """Output of a sink. `parquet: true` writes into the run's folder, `nothing` nowhere."""

    nothing: True_ | None = None
    parquet: Annotated[str | Literal[True] | None, BeforeValidator(_truth_or_text)] = None
    collect: str | None = None

    @model_validator(mode="after")
    def _one(self) -> "SinkKeys":
        if self.own is not None:
            return self
        kind = exactly_one(self, (*SINKS, "nothing", "simulated"), "sink")
        belongs(self, {"servers": ("kafka",), "options": ("kafka",)}, kind)
        return self


# One of these keys determines an operator; only a join may have a function or alternates beside it.
KINDS = ("source", "sink", "signal", *FORMS, "alternates", *KEYED_FORMS, "join", "zip")


class OperatorKeys(FunctionKeys):
    from_: Annotated[list[EdgeKeys], BeforeValidator(_edges)] = Field(default_factory=list, alias="from")
    source: Annotated[SourceKeys | None, BeforeValidator(_endpoint)] = None
    sink: Annotated[SinkKeys | None, BeforeValidator(_endpoint)] = None
    signal: Annotated[DiagnosticKeys | None, _nested_under("aggregate")] = None
    load: Any = None
    alternates: dict[str, AlternateKeys] | None = None
    key_by: Names | None = None
    group_by: Names | None = None
    join: Annotated[list[EdgeKeys], BeforeValidator(_edges)] | None = None
    on: Names | None = None
    zip: Annotated[list[EdgeKeys], BeforeValidator(_edges)] | None = None
    window: WindowKeys | None = None
    aggregate: Columns | None = None
    apply: FunctionName | None = None
    state: Schema | None = None
    own_state: bool = False
    timeout: Annotated[TimeoutKeys | None, _nested_under("seconds")] = None
    select_by: Names | None = None
    sequential: bool = False
    unrolled: int | None = Field(None, ge=1, le=MAX_UNROLLED_ROUNDS)
    until: FunctionName | None = None
    at_most: int | None = Field(None, ge=1)
    ports: Any = None
    message: Any = None
    returns: Schema = ""
    max_duration: Annotated[Duration, Field(gt=0)] | None = None
    cores: Annotated[Cores, Field(ge=0)] | None = None
    memory: Memory = 0.0
    image: Memory = 0.0
    waits: bool = False
    record_bytes: float | None = Field(None, ge=0)
    on_error: OnError = OnError.FAIL

    @property
    def kind(self) -> str:
        """The key that determines the operator; `cost` for one that is only simulated."""
        kinds = tuple(each for each in KINDS if each != "join") if chosen(self, KINDS) != "join" else KINDS
        if self.cost is not None and chosen(self, KINDS) is None:
            return "cost"
        return exactly_one(self, kinds, "operator")

    @property
    def grouping(self) -> str | None:
        return chosen(self, GROUPINGS)

    @model_validator(mode="after")
    def _one_kind(self) -> "OperatorKeys":
        kind = self.kind
        if kind == "source" and "from_" in self.model_fields_set:
            raise ValueError("a source has no 'from': records arrive there from outside")
        if kind != "source" and not self.from_:
            raise ValueError("'from' is missing: it names the operator (or operators) whose records arrive here")
        self._check_grouping(kind)
        self._check_window()
        functions = (*(each for each in FORMS if each != "switch"), "alternates", "apply")
        owners: dict[str, tuple[str, ...]] = {"load": ("source",), "state": ("apply", "alternates"), "returns": functions}
        owners |= dict.fromkeys(("until", "at_most"), (*REPEATED, "alternates"))
        owners |= {"ports": ("switch", "alternates"), "message": (*CALLED, "alternates", "apply")}
        costs = ("cost", *FORMS, *KEYED_FORMS, "join", "zip")  # alternates have their own
        owners |= dict.fromkeys(("cost", "selectivity"), costs)
        owners |= {"own_state": ("alternates",), "select_by": ("alternates",), "unrolled": ("cost", *functions)}
        owners |= {
            "timeout": ("alternates", "apply", "join", "cost"),
            "sequential": ("source", "cost", *FORMS, "alternates"),
        }
        belongs(self, owners, kind)
        self._check_schemas(kind)
        self._check_functions(kind)
        return self

    def _check_functions(self, kind: str) -> None:
        if (self.until is None) != (self.at_most is None):
            missing = "'at_most' is missing: the largest number of rounds"
            raise ValueError(missing if self.at_most is None else "'at_most' goes with 'until' alone")
        if kind == "switch" or any(each.switch for each in (self.alternates or {}).values()):
            if self.ports is None:
                raise ValueError("'ports' is missing: the names that 'switch' returns")
        elif self.ports is not None:
            raise ValueError("'ports' goes with 'switch' alone")

    def _check_grouping(self, kind: str) -> None:
        at_most_one(self, GROUPINGS, "operator")
        written = [each for alternate in (self.alternates or {}).values() if (each := chosen(alternate, (*FORMS, "apply")))]
        plain = next((each for each in written if each != "apply"), None)
        keyed = kind in KEYED_FORMS or (kind == "alternates" and "apply" in written)
        if keyed and plain is not None:
            raise ValueError(f"its alternates have 'apply' and {plain!r}: functions by key or of single records, not both")
        if keyed and self.grouping is None:
            raise ValueError("'key_by' is missing: the columns of the key")
        if self.grouping is not None and not keyed and (plain is not None or kind not in ("alternates", "join", "cost")):
            raise ValueError(f"{self.grouping!r} is for 'aggregate' and 'apply'; this operator has {plain or kind!r}")
        if self.grouping == "join" and kind == "aggregate":
            raise ValueError("a join gives pairs of records, or what 'apply' makes of them: put 'aggregate' behind it")
        if (self.on is None) != (self.join is None):
            missing = "'on' is missing: the columns in which a left and a right record are equal"
            raise ValueError(missing if self.on is None else "'on' goes with 'join' alone")

    def _check_window(self) -> None:
        windowed = self.grouping in ("group_by", "join")
        if windowed and self.window is None:
            raise ValueError(
                f"{self.grouping!r} needs a 'window', such as {{count: 10}}: without one no group is ever complete; "
                "functions with state and running aggregates go with 'key_by'"
            )
        if self.window is not None and not windowed:
            raise ValueError("'window' goes with 'group_by' or 'join'")

    def _check_schemas(self, kind: str) -> None:
        if kind not in ("apply", "alternates") or self.grouping is None:
            return
        if self.grouping != "key_by" and "state" in self.model_fields_set:
            raise ValueError(f"'state' goes with 'key_by': with {self.grouping!r} a function is (key, rows) -> rows")
        alternates = [each for each in (self.alternates or {}).values() if each.apply]
        state = self.state or (alternates and all(each.state for each in alternates)) or self.grouping != "key_by"
        returns = self.returns or (alternates and all(each.returns for each in alternates))
        if (kind == "apply" or alternates) and not (state and returns):
            both = "a schema for both" if self.grouping == "key_by" else "the schema of what it gives"
            raise ValueError(f"{'state' if returns else 'returns'!r} is missing: 'apply' needs {both}")


class DocumentKeys(Keys):
    """A whole document. `document_keys` adds the run settings."""

    dataflow: str
    operators: dict[str, OperatorKeys]
    policy: NamedParameters | None = None
    cloud: NamedParameters | None = None
    tables: dict[str, str] = Field(default_factory=dict)
    host_types: dict[str, HostTypeKeys] = Field(default_factory=dict)
    scaling: Keys = Field(default_factory=ScalingKeys)

    @field_validator("policy", "cloud")
    @classmethod
    def _one_name(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and len(value) != 1:
            raise ValueError(f"{len(value)} names are given; exactly one is needed, with its parameters below it")
        return value

    @property
    def run_settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SETTINGS if name in self.model_fields_set}


SETTINGS: Mapping[str, Setting] = {name: each for name, each in settings_of(RunSettings).items() if each.key}


@cache
def document_keys() -> type[DocumentKeys]:
    defaults = {each.name: each.default for each in fields(RunSettings)}
    own: dict[str, Any] = {name: (key_of(each, defaults[name]), defaults[name]) for name, each in SETTINGS.items()}
    return create_model(
        "DocumentKeys", __base__=DocumentKeys, scaling=(ScalingKeys, Field(default_factory=ScalingKeys)), **own
    )


@dataclass(frozen=True)
class ObjectSpec:
    """A policy, cloud, source or sink that the document names. `build` imports its class."""

    name: str
    parameters: Mapping[str, Any]
    _registry: Registry
    _place: Loc
    _file: Located = field(repr=False)
    _references: References = field(repr=False)

    def build(self) -> Any:
        def refusal(path: tuple[str, ...], sentence: str) -> DataflowError:
            return self._file.error((*self._place, *path), sentence)

        try:
            return made(self._registry, self.name, self.parameters, self._references, refusal)
        except ProgramError as error:
            raise self._file.error(self._place, str(error)) from error


@dataclass(frozen=True)
class Document:
    """A checked document: the dataflow and its run settings."""

    path: Path
    flow: Dataflow
    policy: ObjectSpec  # the default one if the document names none
    cloud: ObjectSpec | None = None
    host_types: Mapping[str, HostType] = field(default_factory=dict)  # declared host types by name
    settings: Mapping[str, Any] = field(default_factory=dict)  # further settings of `RunSettings`
    file: Located | None = field(default=None, repr=False)

    @contextmanager
    def placing(self, *replaced: str) -> Iterator[None]:
        """Add file, line and field to errors raised inside; `replaced`: top-level keys whose values are not used."""
        try:
            yield
        except ElastreamError as error:
            about = error.at if error.at and error.at[0] not in replaced else ()
            if self.file is None or not (place := self.file.written(about)):
                raise
            raise self.file.error(place, str(error)) from error

    @property
    def graph(self) -> Graph:
        return self.flow.graph


def load_document(path: Path | str) -> Document:
    """Read the document in the YAML file `path`.

    Raises:
        InputError: The file cannot be read.
        DataflowError: A value is wrong; names file, line and field.
        ProgramError: A file of functions that it names fails by itself.
    """
    file = read_yaml(Path(path))
    keys: DocumentKeys = file.validate(document_keys())
    references = References(file.path.parent)
    host_types = declared_types(file, ("host_types",), keys.host_types)
    flow = _flow(file, keys, references)
    return Document(
        path=file.path,
        flow=flow,
        policy=_named(file, ("policy",), keys.policy or {DEFAULT_POLICY: {}}, POLICY, references),
        cloud=None if keys.cloud is None else _named(file, ("cloud",), keys.cloud, CLOUD, references, host_types),
        host_types=host_types,
        settings={
            **_resolve_paths(file, keys.run_settings),
            "tables": tuple(_table(file, name, place, flow.graph) for name, place in keys.tables.items()),
            "scaling": scaling_rules(file, keys.scaling),
        },
        file=file,
    )


def _resolve_paths(file: Located, settings: Mapping[str, Any]) -> dict[str, Any]:
    paths = {name for name, value in settings.items() if isinstance(SETTINGS[name].kind, PathOf) and value is not None}
    return {name: file.path.parent / value if name in paths else value for name, value in settings.items()}


def _flow(file: Located, keys: DocumentKeys, references: References) -> Dataflow:
    flow = Dataflow(keys.dataflow)
    for name, operator in keys.operators.items():
        _check_inputs(file, keys, name)
        taps, built = _taps(operator), _operator(file, name, operator, references)
        delivery = Delivery.KEYED if built.kind is Kind.KEYED else None
        for number in range(1, operator.unrolled or 1):  # the rounds before the last, which has the name
            flow.add(_round(built, f"{name}_{number}"), taps, delivery)
            taps = [Tap(f"{name}_{number}", taps[0].delivery, taps[0].durable)]
        flow.add(built, taps, delivery)
    for (switch, port), share in _ports_used(keys):
        flow.add(port_of(switch, port, share), (Tap(switch),))
    try:
        _ = flow.graph
    except DataflowError as error:
        place = file.written(error.at)
        if len(place) < 2:
            # The error may quote the operator that is at fault.
            culprit = next((name for name in keys.operators if repr(name) in str(error).partition(": ")[2]), None)
            place = ("operators", culprit) if culprit else ("operators",)
        raise file.error(place, str(error)) from None
    return flow


def _table(file: Located, operator: str, place: str, graph: Graph) -> KeyTable:
    with file.at(("tables", operator)):
        return load_key_table(file.path.parent / place, selection_of(graph, operator))


def _taps(keys: OperatorKeys) -> list[Tap]:
    """Return the inputs. `from` feeds the first port, `join` the second, and each of `zip` one more."""
    edges = [(edge, 0) for edge in keys.from_]
    edges += [(edge, 1) for edge in keys.join or ()]
    edges += [(edge, port) for port, edge in enumerate(keys.zip or (), 1)]
    return [
        Tap(e.source, Delivery(e.delivery), e.durable, e.choice, 1.0 if e.value is None else e.value, port)
        for e, port in edges
    ]


def _ports_used(keys: DocumentKeys) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield switch and port of each used port, with its share of records."""
    each_edge = (edge for operator in keys.operators.values() for edge in _inputs(operator))
    used = dict.fromkeys((edge.operator, edge.port) for edge in each_edge if edge.port is not None)
    for switch, port in used:
        yield (switch, port), shares_of(switch, _plain(keys.operators[switch].ports))[port]


def _inputs(keys: OperatorKeys) -> list[EdgeKeys]:
    return [*keys.from_, *(keys.join or ()), *(keys.zip or ())]


def _round(operator: Operator, name: str) -> Operator:
    alternates = operator.alternates
    if [each.name for each in alternates] == [operator.name]:
        alternates = (replace(alternates[0], name=name),)
    return replace(operator, name=name, alternates=alternates)


def _check_inputs(file: Located, keys: DocumentKeys, name: str) -> None:
    sources: dict[str, tuple[str, int]] = {}
    operator = keys.operators[name]
    ways = {"from": operator.from_, "join": operator.join, "zip": operator.zip}
    for key, position, edge in ((key, *each) for key, edges in ways.items() for each in enumerate(edges or ())):
        place = file.written(("operators", name, key, position))
        if edge.operator not in keys.operators:
            raise file.error(place, f"there is no operator {edge.operator!r}{near(edge.operator, keys.operators)}")
        if keys.operators[edge.operator].kind in ("sink", "signal"):
            raise file.error(place, f"{edge.operator!r} is a {keys.operators[edge.operator].kind}: nothing comes out of it")
        _check_port(file, place, edge, keys.operators[edge.operator])
        first = sources.setdefault(edge.source, (key, position))
        if first[0] != key:
            way = "give one of them an operator of its own, such as one with 'select' and other names for its columns"
            raise file.error(place, f"{edge.operator!r} is on both sides of {name!r}: {way}")
        if first[1] != position:
            raise file.error(place, f"{edge.operator!r} is listed twice")


def _check_port(file: Located, place: Loc, edge: EdgeKeys, before: OperatorKeys) -> None:
    if before.ports is None:
        if edge.port is not None:
            raise file.error(place, f"{edge.operator!r} is not a switch and has no port {edge.port!r}")
        return
    with file.at(("operators", edge.operator, "ports")):
        ports = shares_of(edge.operator, _plain(before.ports))
    if edge.port not in ports:
        named_so = "name one" if edge.port is None else f"there is no {edge.port!r}"
        raise file.error(place, f"{edge.operator!r} is a switch with the ports {', '.join(ports)}: {named_so}")


def _operator(file: Located, name: str, keys: OperatorKeys, references: References) -> Operator:
    place: Loc = ("operators", name)
    kind, returns = Kind.TRANSFORM, keys.returns or next((a.returns for a in (keys.alternates or {}).values()), "")
    reads = writes = None
    if keys.source is not None:
        kind, reads = Kind.SOURCE, _source(file, place, keys, references)
        returns = reads.schema if reads is not None else ""
    elif keys.sink is not None:
        kind, writes = Kind.SINK, _sink(file, place, keys.sink, references)
    elif keys.signal is not None:
        kind, writes = Kind.SINK, _signal(file, place, name, keys.signal, references)
    elif keys.grouping is not None or keys.zip is not None:
        kind = Kind.KEYED
    with file.at((*place, "window")):
        window = None if keys.window is None else keys.window.built()
    return Operator(
        name=name,
        kind=kind,
        alternates=_called(file, place, name, keys, references, _alternates(file, place, name, keys, references)),
        returns=returns,
        key=tuple(keys.key_by or keys.group_by or keys.on or ()),
        max_duration=keys.max_duration,
        cores=keys.cores if keys.cores is not None else float(kind is not Kind.SINK),
        memory=keys.memory,
        image=keys.image,
        waits=keys.waits,
        record_bytes=keys.record_bytes,
        reads=reads,
        writes=writes,
        state=keys.state,
        own_state=keys.own_state or any(each.state for each in (keys.alternates or {}).values()),
        selects=tuple(keys.select_by or ()),
        window=window,
        timeout=_timeout(file, place, keys.timeout, references),
        sequential=keys.sequential,
        on_error=keys.on_error,
    )


def _alternates(file: Located, place: Loc, name: str, keys: OperatorKeys, references: References) -> tuple[Alternate, ...]:
    grouped = GROUPINGS.get(keys.grouping or "", Form.NONE)
    if keys.alternates is not None:
        alternates = []
        for label, each in keys.alternates.items():
            function, form = _function(file, (*place, "alternates", label), each, references, grouped)
            alternates.append(
                Alternate(label, function, form, each.value, each.cost, each.selectivity, each.state, each.returns)
            )
        return tuple(alternates)
    if keys.kind in ("source", "sink", "signal"):
        return ()
    function, form = _function(file, place, keys, references, grouped)
    if keys.kind == "zip":
        form = Form.ZIP
    if keys.kind == "join":
        function, form = Pairs(tuple(keys.on or ())), Form.JOIN
    return (Alternate(name, function, form, cost=keys.cost, selectivity=keys.selectivity),)


def _called(
    file: Located, place: Loc, name: str, keys: OperatorKeys, references: References, alternates: tuple[Alternate, ...]
) -> tuple[Alternate, ...]:
    """Return `alternates` as receivers, loops and switches, as `keys` says."""
    if "message" in keys.model_fields_set:
        with file.at((*place, "message")):
            alternates = tuple(
                replace(a, function=Receiver(cast(Any, a.function), _plain(keys.message))) for a in alternates
            )
    if keys.until is not None:
        with file.at((*place, "until")):
            until, rounds = references.find(keys.until), keys.at_most or 1
            alternates = tuple(replace(a, function=Loop(cast(Any, a.function), until, rounds)) for a in alternates)
    if keys.ports is not None:
        with file.at((*place, "ports")):
            alternates = switching(alternates, shares_of(name, _plain(keys.ports)))
    return alternates


def _function(
    file: Located, place: Loc, keys: OperatorKeys | AlternateKeys, references: References, grouped: Form
) -> tuple[Callable[..., Any] | Mapping[str, str] | Native | None, Form]:
    forms = {**FORMS, **KEYED_FORMS, "apply": grouped}
    key = chosen(keys, forms)
    if key is None:
        return None, Form.NONE
    written = getattr(keys, key)
    if isinstance(written, Mapping):
        return dict(written), forms[key]
    if key in TEXTS:
        return TEXTS[key](str(written)), forms[key]
    with file.at((*place, key)):
        return references.find(written), forms[key]


def _source(file: Located, place: Loc, keys: OperatorKeys, references: References) -> endpoints.SourceSpec | None:
    assert keys.source is not None
    load = None
    if keys.load is not None:
        if keys.source.own is not None or keys.source.kafka is not None:
            allowed = "text_files, files or records, or 'simulated'"
            raise file.error((*place, "load"), f"a load needs records to draw from: {allowed}")
        with file.at((*place, "load")):
            load = pattern_from(_plain(keys.load), file.path.parent)
    source, folder = keys.source, file.path.parent
    if source.own is not None:
        reader: endpoints.SourceSpec = _named(file, (*place, "source"), source.own, SOURCE, references).build()
        return reader
    if source.text_files is not None:
        return endpoints.TextFiles(_relative(source.text_files, folder), load)
    if source.files is not None:
        return endpoints.Files(_relative(source.files, folder), str(source.schema_), source.format, load)
    if source.records is not None:
        return endpoints.Records(tuple(_plain(row) for row in source.records), str(source.schema_), load)
    if source.kafka is not None:
        return endpoints.KafkaTopic(source.kafka, source.servers, source.options, group=source.group)
    return None if load is None else endpoints.Simulated(load)


def _signal(file: Located, place: Loc, name: str, keys: DiagnosticKeys, references: References) -> endpoints.DomainSignal:
    with file.at((*place, "signal")):
        trace = None
        if isinstance(keys.trace, str):
            trace = references.find(keys.trace)
        elif keys.trace is not None:
            samples = sorted(((duration(time), value) for time, value in keys.trace.items()), key=lambda each: each[0])
            trace = endpoints.Trace(tuple(time for time, _ in samples), tuple(value for _, value in samples))
        return endpoints.domain_signal(keys.name or name, keys.aggregate, stale=keys.stale, trace=trace)


def _timeout(file: Located, place: Loc, keys: TimeoutKeys | None, references: References) -> Timeout | None:
    if keys is None:
        return None
    with file.at((*place, "timeout")):
        function = None if keys.emits is None else references.find(keys.emits)
        return Timeout(keys.seconds, keys.by, keys.late, function)


def _sink(file: Located, place: Loc, keys: SinkKeys, references: References) -> endpoints.SinkSpec | None:
    if keys.own is not None:
        writer: endpoints.SinkSpec = _named(file, (*place, "sink"), keys.own, SINK, references).build()
        return writer
    if keys.parquet is not None:
        folder = () if keys.parquet is True else (_relative(keys.parquet, file.path.parent),)
        return endpoints.ParquetSink(*folder)
    if keys.nothing is not None:
        return endpoints.Nothing()
    if keys.collect is not None:
        return endpoints.Collected(keys.collect)
    if keys.kafka is not None:
        return endpoints.KafkaTopic(keys.kafka, keys.servers, keys.options)
    return None


def _named(
    file: Located,
    place: Loc,
    written: Mapping[str, Mapping[str, Any]],
    registry: Registry,
    references: References,
    host_types: Mapping[str, HostType] | None = None,
) -> ObjectSpec:
    ((name, parameters),) = written.items()
    place = file.written((*place, name)) or place
    if name not in registry.known and ":" not in name:
        raise file.error(place, f"there is no {registry.what} {name!r}{near(name, registry.known)}")
    arguments, types = {parameter: _plain(value) for parameter, value in parameters.items()}, host_types or {}
    if isinstance(arguments.get("host_type"), Mapping):
        raise file.error((*place, "host_type"), "a host type is named here: declare it under 'host_types', by its name")
    if (named := str(arguments.get("host_type"))) in types:
        arguments["host_type"] = types[named]
    if isinstance(several := arguments.get("host_types"), list) and types:
        arguments["host_types"] = tuple(types.get(str(each), each) for each in several)
    return ObjectSpec(name, arguments, registry, place, file, references)


def _relative(path: str, folder: Path) -> str:
    return path if "://" in path else str(folder / path)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return next((kind(value) for kind in (bool, int, float, str) if isinstance(value, kind)), value)
