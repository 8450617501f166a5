"""Policies, clouds, sources, sinks and traces by name: a short one of a table below, `module:Class`, or `file.py:Class`."""

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from elastream.core.members import Members, missing_member
from elastream.core.plant import POLICY_MEMBERS, PlainPolicy
from elastream.documents.user_code import References, near
from elastream.errors import ElastreamError, InputError
from elastream.loads import LinkSource, SpeedSource, recorded_links, recorded_speeds
from elastream.units import cores, duration, truth

# Function that makes an error from the path of keys to the fault and a sentence.
Refusal = Callable[[tuple[str, ...], str], ElastreamError]


@dataclass(frozen=True)
class Registry:
    what: str  # noun for errors
    needs: Members  # members that an object of a user's class must have
    own: Mapping[str, str] = field(default_factory=dict)  # classes of this package by short name
    group: str = ""  # entry points by which other distributions add names
    adapter: str = ""  # function that adds members with defaults to a user's object

    @cached_property
    def known(self) -> Mapping[str, str]:
        """Classes of this package and of installed distributions by short name."""
        added = entry_points(group=self.group) if self.group else ()
        return {**{each.name: each.value for each in added}, **self.own}


POLICY = Registry(
    "policy",
    POLICY_MEMBERS,
    {
        "threshold": "elastream.policies.threshold:Threshold",
        "horizon": "elastream.policies.horizon.policy:Horizon",
        "static": "elastream.policies.static:Static",
        "highest_value": "elastream.policies.highest_value:HighestValue",
        "queue_threshold": "elastream.policies.queue_threshold:QueueThreshold",
        "btu": "elastream.policies.btu:Btu",
        "e2df": "elastream.policies.e2df.policy:E2df",
        "otd": "elastream.policies.otd:Otd",
        "ring": "elastream.policies.ring.policy:RingBalance",
        "elastic_allocator": "elastream.policies.elastic_allocator.policy:ElasticAllocator",
        "ce": "elastream.policies.value_cost.policy:Centralised",
        "sh": "elastream.policies.value_cost.policy:Sharded",
        "plasticc": "elastream.policies.look_ahead.policy:Plasticc",
        "caf": "elastream.policies.look_ahead.policy:Caf",
        "waaf": "elastream.policies.look_ahead.policy:Waaf",
        "wpa": "elastream.policies.look_ahead.policy:Wpa",
        "wpo": "elastream.policies.look_ahead.policy:Wpo",
        "wpp": "elastream.policies.look_ahead.policy:Wpp",
        "even": "elastream.policies.placements:Even",
        "random": "elastream.policies.placements:Random",
        "ds2": "elastream.policies.rivals.ds2:Ds2",
        "hpa": "elastream.policies.rivals.hpa:Hpa",
        "flink": "elastream.policies.rivals.flink:Flink",
        "databricks": "elastream.policies.rivals.databricks:Databricks",
        "dra": "elastream.policies.rivals.dra:Dra",
        "ewma": "elastream.policies.rivals.ewma:Ewma",
        "daedalus": "elastream.policies.rivals.daedalus:Daedalus",
        "contune": "elastream.policies.rivals.contune:ContTune",
    },
    "elastream.policies",
    "elastream.core.plant:as_policy",
)
DEFAULT_POLICY = "horizon"
CLOUD = Registry(
    "cloud",
    {"types": tuple | list, "max_hosts": int, "open": 1},
    {
        "in-process": "elastream.clouds.in_process:InProcess",
        "local": "elastream.clouds.local.local:Local",
        "pool": "elastream.clouds.pool:Pool",
        "standalone": "elastream.clouds.standalone:Standalone",
        "yarn": "elastream.clouds.yarn:Yarn",
        "kubernetes": "elastream.clouds.kubernetes:Kubernetes",
    },
    adapter="elastream.clouds.provider:as_cloud",
)
SPEEDS = Registry(
    "trace of host speeds",
    {"over": 1},
    {
        "walk": "elastream.loads.speeds:SpeedWalk",
        "ec2": "elastream.loads.speeds:Ec2Speeds",
        "spread": "elastream.loads.recorded:SpeedSpread",
    },
)
LINKS = Registry("trace of links", {"over": 1}, {"ec2": "elastream.loads.links:Ec2Links"})
SOURCE = Registry("source", {"read": 1, "schema": str})
SINK = Registry("sink", {"write": 2})

# Parameters that are a mapping in a document and an object in Python.
PARTS: Mapping[str, str] = {
    "network": "elastream.clouds.local.network:Link",
    "weights": "elastream.policies.btu:DownscalingWeights",
}
# Parameters that are named objects themselves.
WITHIN: Mapping[str, Registry] = {"sizing": POLICY}
# By policy, the parameter whose name a command line may omit: `static:4`, `static:peak`.
PLAIN: Mapping[str, str] = {"static": "hosts"}


def imported(target: str) -> Callable[..., Any]:
    module, _, attribute = target.partition(":")
    target_object: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return target_object


def named_in(text: str, registry: Registry) -> tuple[str, dict[str, Any]]:
    """Split `NAME[:key=value,...]` into name and parameters. Raises InputError for other text.

    A first part without a key is the value of the parameter in `PLAIN`.
    """
    name, _, text_of_parameters = text.partition(":")
    if name not in registry.known and text_of_parameters and "=" not in text_of_parameters.partition(":")[0]:
        attribute, _, text_of_parameters = text_of_parameters.partition(":")
        name = f"{name}:{attribute}"
    parameters: dict[str, Any] = {}
    for number, part in enumerate(filter(None, text_of_parameters.split(","))):
        key, equals, value = part.partition("=")
        if not equals and not number and name in PLAIN:
            key, equals, value = PLAIN[name], "=", part
        if not equals:
            raise InputError(f"{part!r} in {text!r} is not key=value")
        parameters[key.strip()] = _number(value.strip())
    return name, parameters


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def made(
    registry: Registry,
    name: str,
    parameters: Mapping[str, Any],
    references: References,
    refusal: Refusal = lambda path, sentence: InputError(f"{'.'.join(path)}: {sentence}" if path else sentence),
) -> Any:
    """Make the object `name` with `parameters`.

    Raises:
        ElastreamError: The error of `refusal` if the name is unknown, a parameter is wrong, or members are missing.
        ProgramError: The user's code is missing or fails.
    """
    own = name not in registry.known
    if own and ":" not in name:
        raise refusal((), f"there is no {registry.what} {name!r}{near(name, registry.known)}")
    factory = references.find(name, registry.what) if own else imported(registry.known[name])
    with references.user_code():
        value = _built(factory, parameters, (), refusal, references)
        # Tests check our own classes; and reading the properties of a pool needs its server.
        wrong = missing_member(value, registry.needs) if own else ""
    if wrong:
        raise refusal((), f"{name} is not a {registry.what}: {wrong}")
    try:
        return imported(registry.adapter)(value) if own and registry.adapter else value
    except InputError as error:
        raise refusal((), str(error)) from error


def parameters_of(value: object) -> dict[str, Any]:
    """Return the parameters from which `made` makes an equal object; empty if it is no dataclass."""
    if isinstance(value, PlainPolicy):
        value = value.own
    if not is_dataclass(value) or isinstance(value, type):
        return {}
    parameters = asdict(value)
    for name in WITHIN.keys() & parameters:
        if (within := getattr(value, name)) is not None:
            parameters[name] = {within.name: parameters_of(within)}
    return parameters


def _named(registry: Registry, value: str | Mapping[str, Any], references: References, refusal: Refusal) -> Any:
    """Make the object of a parameter: `threshold`, `static:4`, or `{threshold: {spare: 1}}`."""
    if isinstance(value, str):
        return made(registry, *named_in(value, registry), references, refusal)
    if len(value) != 1:
        raise refusal((), f"{len(value)} names are given; exactly one is needed, with its parameters below it")
    ((name, parameters),) = value.items()
    if parameters is not None and not isinstance(parameters, Mapping):
        raise refusal((str(name),), f"{parameters!r} is not a mapping of parameters")
    return made(registry, str(name), parameters or {}, references, _below(refusal, str(name)))


def _below(refusal: Refusal, *path: str) -> Refusal:
    return lambda below, sentence: refusal((*path, *below), sentence)


def _built(
    factory: Callable[..., Any],
    parameters: Mapping[str, Any],
    path: tuple[str, ...],
    refusal: Refusal,
    references: References,
) -> Any:
    signature, hints = inspect.signature(factory).parameters, _hints(factory)
    anything = any(each.kind is each.VAR_KEYWORD for each in signature.values())
    arguments = {}
    for name, value in parameters.items():
        if name not in signature and not anything:
            raise refusal((*path, name), f"there is no such parameter{near(name, signature)}")
        if name in PARTS and isinstance(value, Mapping):
            arguments[name] = _built(imported(PARTS[name]), value, (*path, name), refusal, references)
        elif name in WITHIN and isinstance(value, str | Mapping) and str not in _kinds(hints.get(name)):
            arguments[name] = _named(WITHIN[name], value, references, _below(refusal, *path, name))
        else:
            arguments[name] = _fitting(value, hints.get(name), (*path, name), refusal)
    needed = [each.name for each in signature.values() if each.default is each.empty and each.kind not in _VARIADIC]
    if missing := [name for name in needed if name not in arguments]:
        raise refusal(path, f"the parameter {missing[0]!r} is missing, which has no default")
    try:
        return factory(**arguments)
    except (ElastreamError, TypeError, ValueError) as error:
        # The line of the parameter that the sentence names or quotes is more exact.
        named = next((name for name, value in parameters.items() if name in str(error) or repr(value) in str(error)), None)
        raise refusal((*path, named) if named else path, str(error).removeprefix(f"{named}: ")) from error


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _hints(factory: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(factory)
    except (NameError, TypeError):  # a user's annotations may name what is imported for type checkers only
        return {}


def _kinds(hint: Any) -> set[Any]:
    return set(get_args(hint)) or {hint}


def _fitting(value: Any, hint: Any, path: tuple[str, ...], refusal: Refusal) -> Any:
    kinds = _kinds(hint)
    if value is None and NoneType in kinds:
        return value
    try:
        if path[-1] == "cores" and float in kinds:
            return cores(value)
        if bool in kinds and not kinds & {int, float, str}:
            return truth(value)
    except ElastreamError as error:
        raise refusal(path, str(error)) from None
    if str in kinds or not kinds & {int, float}:
        return value
    if isinstance(value, str) and float in kinds:
        try:
            return duration(value)
        except ElastreamError:
            raise refusal(path, f"{value!r} is neither a number nor a duration such as '50ms'") from None
    if isinstance(value, bool) or not isinstance(value, int | (float if float in kinds else int)):
        raise refusal(path, f"{value!r} is not a {'number' if float in kinds else 'whole number'}")
    if not math.isfinite(value):
        raise refusal(path, f"{value!r} is not a finite number")
    return value


def speeds_from(source: SpeedSource | str | Path) -> SpeedSource:
    """Return host speeds from a CSV file (also `.gz`) or from `NAME[:key=value,...]`, such as `walk:seed=3`.

    Other objects are returned unchanged. Raises InputError for a faulty file or name.
    """
    trace: SpeedSource = _trace(source, recorded_speeds, SPEEDS)
    return trace


def links_from(source: LinkSource | str | Path) -> LinkSource:
    """Return links between hosts, from arguments as in `speeds_from`."""
    trace: LinkSource = _trace(source, recorded_links, LINKS)
    return trace


def _trace(source: object, recorded: Callable[[str | Path], Any], registry: Registry) -> Any:
    if not isinstance(source, str | Path):
        return source
    if isinstance(source, Path) or source.lower().endswith((".csv", ".csv.gz")):
        return recorded(source)
    name, parameters = named_in(source, registry)
    try:
        return made(registry, name, parameters, References(Path()))
    except ElastreamError as error:
        raise InputError(f"{source}: {error}") from error
