"""Parts of the schemas of all documents: checked keys, quantities with units, host types."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from elastream import settings, units
from elastream.core.hosts import Billing, HostType
from elastream.core.scaling import DURATIONS, MONEY, ScalingRules
from elastream.documents.located import Loc, Located, shown
from elastream.errors import ElastreamError


def _quantity(parse: Callable[[float | str], object], example: str) -> BeforeValidator:
    def convert(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            name = parse.__name__.replace("_", " ")
            raise ValueError(f"write {name if name.endswith('s') else f'a {name}'} such as {example!r}")
        try:
            return parse(value)
        except ElastreamError as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(convert)


def _text(what: str) -> BeforeValidator:
    def check(value: object) -> object:
        if not isinstance(value, str):
            raise ValueError(f"{shown(value)} is not {what}")
        return value

    return BeforeValidator(check)


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


def named(value: object) -> object:
    if isinstance(value, str):
        return {value: {}}
    if isinstance(value, Mapping):
        return {name: {} if below is None else below for name, below in value.items()}
    return value


Duration = Annotated[float, _quantity(units.duration, "50ms")]
Memory = Annotated[float, _quantity(units.memory, "512 MB")]
Cores = Annotated[float, _quantity(units.cores, "500m")]
Price = Annotated[tuple[float, float | None], _quantity(units.price, "0.04/h")]
Bandwidth = Annotated[float, _quantity(units.bytes_per_second, "100mbit")]
FunctionName = Annotated[str, _text("the name of a function, such as 'words.py:split'")]
Schema = Annotated[str, _text("a schema, such as 'word string, n long'")]
Columns = Annotated[dict[str, str], Field(min_length=1)]
Names = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]


class Keys(BaseModel):
    """A mapping that forbids unknown keys. Those that begin with `x-` are the user's own, such as for anchors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, populate_by_name=False)

    @model_validator(mode="before")
    @classmethod
    def _without_own_keys(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {key: each for key, each in value.items() if not str(key).startswith("x-")}

    @field_validator("*", mode="before")
    @classmethod
    def _reject_boolean(cls, value: object, info: ValidationInfo) -> object:
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and kind in (int, float, int | None, float | None):
            raise ValueError(f"{value!r} is not a {'number' if kind in (float, float | None) else 'whole number'}")
        return value


class HostTypeKeys(Keys):
    """A host type. `btu` is its billing time unit; a price without a unit of time is that of one BTU."""

    cores: Cores
    memory: Memory = 4000.0
    speed: float = 1.0
    bandwidth: Bandwidth | None = None
    price: Price = (1.0, None)
    btu: Duration = 3600.0
    minimum: Duration = 0.0
    slots: int = 0
    region: str = "local"
    zone: str = ""
    start: Duration = 60.0
    stop: Duration = 10.0

    def built(self, name: str) -> HostType:
        amount, seconds = self.price
        price = amount if seconds is None else amount * self.btu / seconds
        rest = self.model_dump(exclude={"btu", "minimum", "price"})
        return HostType(name, **rest, price=price, billing=Billing(self.btu, self.minimum))


class RepartitionKeys(Keys):
    when: str
    longest_pause: Annotated[Duration, Field(gt=0)]


def _rules() -> dict[str, Any]:
    own: dict[str, Any] = dict.fromkeys(DURATIONS, Duration | None)
    own |= dict.fromkeys(MONEY, Any)  # the rules check money themselves
    own["excluded_periods"] = Annotated[tuple[str, ...], BeforeValidator(_listed)]
    return {each.name: (own.get(each.name, each.type), each.default) for each in fields(ScalingRules) if each.init}


# Rules for the number of hosts, as in `ScalingRules`.
ScalingKeys = create_model("ScalingKeys", __base__=Keys, **_rules())


def scaling_rules(file: Located, keys: BaseModel) -> ScalingRules:
    try:
        return ScalingRules(**keys.model_dump())
    except ElastreamError as error:
        raise file.error(file.written(error.at), str(error).partition(": ")[2]) from error


def declared_types(file: Located, loc: Loc, keys: Mapping[str, HostTypeKeys]) -> dict[str, HostType]:
    types = {}
    for name, each in keys.items():
        with file.at((*loc, name)):
            types[name] = each.built(name)
    return types


NamedParameters = Annotated[dict[str, dict[str, Any]], BeforeValidator(named)]


def key_of(setting: settings.Setting, default: object) -> Any:
    kind: Any
    match setting.kind:
        case settings.Whole(least=least):  # with None inside: `Keys` looks for these types to refuse a truth value
            return Annotated[int if default is not None else int | None, Field(ge=least)]
        case settings.Seconds():
            kind = Annotated[Duration, Field(gt=0)]
        case settings.Choice(names=names):
            kind = Literal[names]
        case settings.Flag():
            kind = bool
        case settings.Repartitions():
            kind = Annotated[RepartitionKeys, AfterValidator(RepartitionKeys.model_dump)]
        case settings.SparkSettings():
            kind = dict[str, str | int | float | bool]
        case settings.Text() | settings.PathOf():
            kind = str
        case other:
            raise TypeError(f"no key of a document has a value of the kind {type(other).__name__}")
    return kind if default is not None else kind | None


def chosen(keys: BaseModel, names: Any) -> str | None:
    """Return the first of `names` with a value, or None."""
    return next((name for name in names if getattr(keys, name) is not None), None)


def at_most_one(keys: BaseModel, names: Any, what: str) -> None:
    written = [name for name in names if getattr(keys, name) is not None]
    if len(written) > 1:
        raise ValueError(f"{' and '.join(repr(name) for name in written)} exclude each other: this is one {what}")


def exactly_one(keys: BaseModel, names: Any, what: str) -> str:
    """Return the one of `names` that has a value, or raise ValueError."""
    at_most_one(keys, names, what)
    kind = chosen(keys, names)
    if kind is None:
        if empty := next((name for name in names if name in keys.model_fields_set), None):
            raise ValueError(f"{empty!r} has no value")
        raise ValueError(f"this {what} needs one of {', '.join(names)}")
    return kind


def belongs(keys: BaseModel, owners: Mapping[str, tuple[str, ...]], kind: str) -> None:
    """Raise ValueError for a key that does not go with `kind`. `owners` lists the kinds of each key."""
    for name in sorted(keys.model_fields_set & owners.keys()):
        if kind not in owners[name]:
            field = type(keys).model_fields[name].alias or name
            raise ValueError(f"{field!r} does not go with {kind!r} (only with {', '.join(owners[name])})")
