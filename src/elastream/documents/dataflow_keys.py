"""Defines the keys of a YAML dataflow: operators, their alternates and edges, windows, signals, sources and sinks.

`elastream.documents.schema` has what all documents share; `elastream.documents.dataflow` resolves names to operators,
functions and loads.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, create_model, field_validator, model_validator

from elastream.dataflow.builder import MAX_UNROLLED_ROUNDS
from elastream.dataflow.operators import Delivery, Form, OnError
from elastream.dataflow.windows import Window
from elastream.documents.schema import (
    Columns,
    Duration,
    HostTypeKeys,
    Keys,
    Memory,
    Names,
    ScalingKeys,
    Setting,
    at_most_one,
    belongs,
    chosen,
    exactly_one,
    key_of,
    named,
)
from elastream.settings import RunSettings, settings_of
from elastream.settings import Setting as RunSetting

FORMS: Mapping[str, Form] = {
    "map": Form.MAP,
    "flat_map": Form.FLAT_MAP,
    "filter": Form.FILTER,
    "map_arrow": Form.ARROW,
    "map_pandas": Form.PANDAS,
    "map_stream": Form.STREAM,
    "select": Form.COLUMNS,
}
"""Keys for the function of a stateless operator, named as in the Python API."""

SOURCES = ("text_files", "files", "records", "kafka")
SINKS = ("parquet", "collect", "kafka")
KEYED_FORMS: Mapping[str, Form] = {"aggregate": Form.AGGREGATE, "apply": Form.STATE}
"""Keys for the function of a keyed operator; `apply` is of another form in windows, by `GROUPINGS`."""
GROUPINGS: Mapping[str, Form] = {"key_by": Form.STATE, "group_by": Form.WINDOW, "join": Form.JOIN}
"""Keys that group records, and the form of the function that `apply` then names."""


def _endpoint(value: object) -> object:
    """`simulated`, `nothing`, and a class of the user's with or without parameters, as the keys for them."""
    if value in ("simulated", "nothing"):
        return {value: True}
    if isinstance(value, str | Mapping) and isinstance(mapping := named(value), Mapping) and len(mapping) == 1:
        return {"own": mapping} if ":" in next(iter(mapping)) else value
    return value


def _under(key: str) -> BeforeValidator:
    """Normalise a single value to the mapping that has it under `key`."""
    return BeforeValidator(lambda value: value if value is None or isinstance(value, Mapping) else {key: value})


def _edges(value: object) -> object:
    return [
        {"operator": each} if isinstance(each, str) else each for each in (value if isinstance(value, list) else [value])
    ]


class FunctionKeys(Keys):
    """A function of records, of which one form may be given, and its cost if known."""

    map: str | None = None
    flat_map: str | None = None
    filter: str | None = None
    map_arrow: str | None = None
    map_pandas: str | None = None
    map_stream: str | None = None
    select: Columns | None = None
    cost: Duration | None = None
    selectivity: float | None = Field(None, ge=0)


class EndpointKeys(Keys):
    """What sources and sinks have in common: `simulated`; Kafka with its options; or `own`, a class of the user's."""

    simulated: Literal[True] | None = None
    own: dict[str, dict[str, Any]] | None = None
    kafka: str | None = None
    servers: str = "127.0.0.1:9092"
    options: dict[str, str] = Field(default_factory=dict)


class EdgeKeys(Keys):
    """An input of an operator, with the delivery of its records."""

    operator: str
    delivery: Literal["duplicate", "round_robin"] = Delivery.DUPLICATE.value
    durable: Literal["parquet", "kafka"] | None = None
    choice: str | None = None
    value: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _branch(self) -> "EdgeKeys":
        if self.value is not None and self.choice is None:
            raise ValueError("a value is that of a branch: name its 'choice'")
        return self


class AlternateKeys(FunctionKeys):
    """One implementation of an operator: at most one function, its value, and its cost if known."""

    apply: str | None = None
    aggregate: Any = None
    state: str | None = None
    returns: str = ""
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
    """Windows of time, count or landmarks; `every` counts seconds or records, as the window does."""

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
        """Build the window. Raises DataflowError for what is none."""
        return Window(**self.model_dump())


class TimeoutKeys(Keys):
    """When the state of a key ends, and the function that then emits."""

    seconds: Duration
    by: str = ""
    late: Duration = 0.0
    emits: str | None = None


class DiagnosticKeys(Keys):
    """A diagnostic branch: a signal is the aggregate of its records. name: of the signal; empty: that of the operator."""

    aggregate: str
    name: str = ""
    stale: Annotated[Duration, Field(gt=0)] = math.inf
    trace: str | dict[str | float, float | bool | str | None] | None = None


class SourceKeys(EndpointKeys):
    """What a source reads."""

    text_files: str | None = None
    files: str | None = None
    format: Literal["parquet", "json", "csv"] = "parquet"
    records: list[dict[str, Any]] | None = None
    schema_: str | None = Field(None, alias="schema")
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
    """What a sink writes; `nothing` is that of an empty branch, `parquet: true` writes into the run's folder."""

    nothing: Literal[True] | None = None
    parquet: str | Literal[True] | None = None
    collect: str | None = None

    @model_validator(mode="after")
    def _one(self) -> "SinkKeys":
        if self.own is not None:
            return self
        kind = exactly_one(self, (*SINKS, "nothing", "simulated"), "sink")
        belongs(self, {"servers": ("kafka",), "options": ("kafka",)}, kind)
        return self


KINDS = ("source", "sink", "signal", *FORMS, "alternates", *KEYED_FORMS, "join", "zip")
"""Keys of which one says what an operator is; a join may have its function, or alternates, beside it."""


class OperatorKeys(FunctionKeys):
    """An operator: a source, a sink or signal, a function of records, or one of records by key, window or both."""

    from_: Annotated[list[EdgeKeys], BeforeValidator(_edges)] = Field(default_factory=list, alias="from")
    source: Annotated[SourceKeys | None, BeforeValidator(_endpoint)] = None
    sink: Annotated[SinkKeys | None, BeforeValidator(_endpoint)] = None
    signal: Annotated[DiagnosticKeys | None, _under("aggregate")] = None
    load: Any = None
    alternates: dict[str, AlternateKeys] | None = None
    key_by: Names | None = None
    group_by: Names | None = None
    join: Annotated[list[EdgeKeys], BeforeValidator(_edges)] | None = None
    on: Names | None = None
    zip: Annotated[list[EdgeKeys], BeforeValidator(_edges)] | None = None
    window: WindowKeys | None = None
    aggregate: Columns | None = None
    apply: str | None = None
    state: str | None = None
    own_state: bool = False
    timeout: Annotated[TimeoutKeys | None, _under("seconds")] = None
    select_by: Names | None = None
    sequential: bool = False
    unrolled: int | None = Field(None, ge=1, le=MAX_UNROLLED_ROUNDS)
    returns: str = ""
    max_duration: Annotated[Duration, Field(gt=0)] | None = None
    cores: float | None = Field(None, ge=0)
    memory: Memory = 0.0
    image: Memory = 0.0
    waits: bool = False
    record_bytes: float | None = Field(None, ge=0)
    on_error: OnError = OnError.FAIL

    @property
    def kind(self) -> str:
        """The key that says what it is; `cost` for one that is only simulated."""
        kinds = tuple(each for each in KINDS if each != "join") if chosen(self, KINDS) != "join" else KINDS
        if self.cost is not None and chosen(self, KINDS) is None:
            return "cost"
        return exactly_one(self, kinds, "operator")

    @property
    def grouping(self) -> str | None:
        """The key that groups its records, if one does."""
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
        functions = (*FORMS, "alternates", "apply")
        owners: dict[str, tuple[str, ...]] = {"load": ("source",), "state": ("apply", "alternates"), "returns": functions}
        costs = ("cost", *FORMS, *KEYED_FORMS, "join", "zip")  # alternates have their own
        owners |= dict.fromkeys(("cost", "selectivity"), costs)
        owners |= {"own_state": ("alternates",), "select_by": ("alternates",), "unrolled": ("cost", *functions)}
        owners |= {
            "timeout": ("alternates", "apply", "join", "cost"),
            "sequential": ("source", "cost", *FORMS, "alternates"),
        }
        belongs(self, owners, kind)
        self._check_schemas(kind)
        return self

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
    """A whole document. `document_keys` adds the run settings that have a key of their own."""

    dataflow: str
    operators: dict[str, OperatorKeys]
    policy: Setting | None = None
    cloud: Setting | None = None
    tables: dict[str, str] = Field(default_factory=dict)
    host_types: dict[str, HostTypeKeys] = Field(default_factory=dict)
    scaling: ScalingKeys = Field(default_factory=ScalingKeys)

    @field_validator("policy", "cloud")
    @classmethod
    def _one_name(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and len(value) != 1:
            raise ValueError(f"{len(value)} names are given; exactly one is needed, with its parameters below it")
        return value

    @property
    def settings(self) -> dict[str, Any]:
        """Run settings that the document names by a key of their own."""
        return {name: getattr(self, name) for name in SETTINGS if name in self.model_fields_set}


SETTINGS: Mapping[str, RunSetting] = {name: each for name, each in settings_of(RunSettings).items() if each.key}
"""Run settings that have a key at the top of a document, by name."""


@cache
def document_keys() -> type[DocumentKeys]:
    """Return the keys of a document, run settings included."""
    defaults = {each.name: each.default for each in fields(RunSettings)}
    own: dict[str, Any] = {name: (key_of(each, defaults[name]), defaults[name]) for name, each in SETTINGS.items()}
    return create_model("DocumentKeys", __base__=DocumentKeys, **own)
