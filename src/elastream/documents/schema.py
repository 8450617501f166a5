"""Defines the keys of a YAML dataflow: their types, and which exclude each other.

This module validates fields and converts units to numbers; `elastream.documents.dataflow` resolves names to operators,
functions and loads.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from elastream.documents.located import Loc, Located
from elastream.model import units
from elastream.model.cloud import Billing, HostType
from elastream.model.errors import ElastreamError
from elastream.model.graph import Delivery, Form

__all__ = [
    "FORMS",
    "KEYED_FORMS",
    "AlternateKeys",
    "DocumentKeys",
    "EdgeKeys",
    "HostTypeKeys",
    "OperatorKeys",
    "SinkKeys",
    "SourceKeys",
    "chosen",
    "declared_types",
]

FORMS: Mapping[str, Form] = {
    "map": Form.MAP,
    "flat_map": Form.FLAT_MAP,
    "filter": Form.FILTER,
    "map_arrow": Form.ARROW,
    "map_pandas": Form.PANDAS,
    "select": Form.COLUMNS,
}
"""Keys for the function of a stateless operator, named as in the Python API."""

SOURCES = ("text_files", "files", "records", "kafka")
SINKS = ("parquet", "collect", "kafka")
KEYED_FORMS: Mapping[str, Form] = {"aggregate": Form.AGGREGATE, "apply": Form.STATE}


def _quantity(parse: Callable[[float | str], object], example: str) -> BeforeValidator:
    def convert(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"write a {parse.__name__.replace('_', ' ')} such as {example!r}")
        try:
            return parse(value)
        except ElastreamError as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(convert)


def _listed(value: object) -> object:
    """Wrap a single value in a list."""
    return value if isinstance(value, list) else [value]


def _named(value: object) -> object:
    """Normalise a name alone, or with nothing below it, to a mapping without parameters."""
    if isinstance(value, str):
        return {value: {}}
    if isinstance(value, Mapping):
        return {name: {} if below is None else below for name, below in value.items()}
    return value


def _endpoint(value: object) -> object:
    """`simulated`, and a class of the user's with or without parameters, as the keys for them."""
    if value == "simulated":
        return {"simulated": True}
    if isinstance(value, str | Mapping) and isinstance(named := _named(value), Mapping) and len(named) == 1:
        return {"own": named} if ":" in next(iter(named)) else value
    return value


def _edges(value: object) -> object:
    return [
        {"operator": each} if isinstance(each, str) else each for each in (value if isinstance(value, list) else [value])
    ]


Duration = Annotated[float, _quantity(units.duration, "50ms")]
Memory = Annotated[float, _quantity(units.memory, "512 MB")]
Price = Annotated[tuple[float, float | None], _quantity(units.price, "0.04/h")]
Bandwidth = Annotated[float, _quantity(units.bytes_per_second, "100mbit")]
Columns = Annotated[dict[str, str], Field(min_length=1)]
Names = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]


class Keys(BaseModel):
    """A mapping that forbids unknown keys."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, populate_by_name=False)


class FunctionKeys(Keys):
    """A function of records, of which one form may be given, and its cost if known."""

    map: str | None = None
    flat_map: str | None = None
    filter: str | None = None
    map_arrow: str | None = None
    map_pandas: str | None = None
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


class AlternateKeys(FunctionKeys):
    """One implementation of an operator: at most one function, its value, and its cost if known."""

    value: float = Field(1.0, ge=0, le=1)

    @model_validator(mode="after")
    def _one_function(self) -> "AlternateKeys":
        _at_most_one(self, FORMS, "function")
        return self


class SourceKeys(EndpointKeys):
    """What a source reads."""

    text_files: str | None = None
    files: str | None = None
    format: Literal["parquet", "json", "csv"] = "parquet"
    records: list[dict[str, Any]] | None = None
    schema_: str | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _one(self) -> "SourceKeys":
        if self.own is not None:
            return self
        kind = _exactly_one(self, (*SOURCES, "simulated"), "source")
        owners = {"format": ("files",), "servers": ("kafka",), "options": ("kafka",), "schema_": ("files", "records")}
        _belongs(self, owners, kind)
        if kind in ("files", "records") and self.schema_ is None:
            raise ValueError(f"a source of {kind} needs a schema, such as 'word string, n long'")
        return self


class SinkKeys(EndpointKeys):
    """What a sink writes."""

    parquet: str | None = None
    collect: str | None = None

    @model_validator(mode="after")
    def _one(self) -> "SinkKeys":
        if self.own is not None:
            return self
        kind = _exactly_one(self, (*SINKS, "simulated"), "sink")
        _belongs(self, {"servers": ("kafka",), "options": ("kafka",)}, kind)
        return self


class OperatorKeys(FunctionKeys):
    """An operator: a source, a sink, a function of records, or a function of records by key."""

    from_: Annotated[list[EdgeKeys], BeforeValidator(_edges)] = Field(default_factory=list, alias="from")
    source: Annotated[SourceKeys | None, BeforeValidator(_endpoint)] = None
    sink: Annotated[SinkKeys | None, BeforeValidator(_endpoint)] = None
    load: Any = None
    alternates: dict[str, AlternateKeys] | None = None
    key_by: Names | None = None
    aggregate: Columns | None = None
    apply: str | None = None
    state: str | None = None
    returns: str = ""
    max_duration: Annotated[Duration, Field(gt=0)] | None = None
    cores: float | None = Field(None, ge=0)
    memory: Memory = 0.0
    image: Memory = 0.0
    waits: bool = False
    record_bytes: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _one_kind(self) -> "OperatorKeys":
        forms = ("source", "sink", *FORMS, "alternates", *KEYED_FORMS)
        if self.cost is not None and chosen(self, forms) is None:  # for the simulator, which needs no function
            forms = ("cost",)
        kind = _exactly_one(self, forms, "operator")
        given = self.model_fields_set
        if kind == "source" and "from_" in given:
            raise ValueError("a source has no 'from': records arrive there from outside")
        if kind != "source" and not self.from_:
            raise ValueError("'from' is missing: it names the operator (or operators) whose records arrive here")
        if (kind in KEYED_FORMS) != ("key_by" in given):
            missing = "'key_by' is missing: the columns of the key" if kind in KEYED_FORMS else None
            raise ValueError(missing or f"'key_by' is for 'aggregate' and 'apply'; this operator has {kind!r}")
        belongs = {"load": ("source",), "state": ("apply",), "returns": (*FORMS, "alternates", "apply")}
        belongs |= dict.fromkeys(("cost", "selectivity"), ("cost", *FORMS, *KEYED_FORMS))  # alternates have their own
        _belongs(self, belongs, kind)
        if kind == "apply" and not (self.state and self.returns):
            raise ValueError(f"{'state' if self.returns else 'returns'!r} is missing: 'apply' needs a schema for both")
        return self


class HostTypeKeys(Keys):
    """A type of host that can be leased; `btu` is its billing time unit, paid in whole. price: of one, unless it says."""

    cores: float
    memory: Memory = 4000.0
    speed: float = 1.0
    bandwidth: Bandwidth | None = None
    price: Price = (1.0, None)
    btu: Duration = 3600.0
    minimum: Duration = 0.0
    slots: int = 0
    region: str = "local"
    start: Duration = 60.0
    stop: Duration = 10.0

    def built(self, name: str) -> HostType:
        """Build the host type `name`. Raises CloudError for invalid values."""
        amount, seconds = self.price
        price = amount if seconds is None else amount * self.btu / seconds
        rest = self.model_dump(exclude={"btu", "minimum", "price"})
        return HostType(name, **rest, price=price, billing=Billing(self.btu, self.minimum))


def declared_types(file: Located, loc: Loc, keys: Mapping[str, HostTypeKeys]) -> dict[str, HostType]:
    """The host types below `loc`, by name; raises DataflowError with the line of an invalid one."""
    found = {}
    for name, each in keys.items():
        with file.at((*loc, name)):
            found[name] = each.built(name)
    return found


Setting = Annotated[dict[str, dict[str, Any]], BeforeValidator(_named)]


class DocumentKeys(Keys):
    """A whole document."""

    dataflow: str
    operators: dict[str, OperatorKeys]
    target_latency: Annotated[Duration, Field(gt=0)] | None = None
    policy: Setting | None = None
    cloud: Setting | None = None
    host_types: dict[str, HostTypeKeys] = Field(default_factory=dict)

    @field_validator("policy", "cloud")
    @classmethod
    def _one_name(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and len(value) != 1:
            raise ValueError(f"{len(value)} names are given; exactly one is needed, with its parameters below it")
        return value


def chosen(keys: BaseModel, names: Any) -> str | None:
    """The first of `names` with a value, or None."""
    return next((name for name in names if getattr(keys, name) is not None), None)


def _at_most_one(keys: BaseModel, names: Any, what: str) -> None:
    written = [name for name in names if getattr(keys, name) is not None]
    if len(written) > 1:
        raise ValueError(f"{' and '.join(repr(name) for name in written)} exclude each other: this is one {what}")


def _exactly_one(keys: BaseModel, names: Any, what: str) -> str:
    _at_most_one(keys, names, what)
    kind = chosen(keys, names)
    if kind is None:
        raise ValueError(f"this {what} needs one of {', '.join(names)}")
    return kind


def _belongs(keys: BaseModel, owners: Mapping[str, tuple[str, ...]], kind: str) -> None:
    for name in keys.model_fields_set & owners.keys():
        if kind not in owners[name]:
            field = type(keys).model_fields[name].alias or name
            raise ValueError(f"{field!r} does not go with {kind!r} (only with {', '.join(owners[name])})")
