"""Policies, clouds, sources, sinks and traces of machines by name: short names that we give, and classes of the user's own.

A name is a short one, `module:Class`, or `file.py:Class`. The tables hold our own as `module:Class`, so that nothing is
imported before it is used. Documents and the command line find and make them here.
"""

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cached_property
from importlib.metadata import entry_points
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

from elastream.core.plant import PlainPolicy
from elastream.documents.user_code import References, near
from elastream.errors import ElastreamError, InputError
from elastream.units import duration

Refusal = Callable[[tuple[str, ...], str], ElastreamError]
"""Makes the error to raise, from the keys down to what is wrong and a sentence about it."""

_NOTHING = object()


@dataclass(frozen=True)
class Registry:
    """What can be named: what people call it, the attributes that it must have and how each is checked, our own by name.

    needs: by attribute, its type, or the number of arguments that it is called with. group: of entry points by which other
    distributions add names. adapter: gives an object of the user's the members that have defaults.
    """

    what: str
    needs: Mapping[str, type | UnionType | int]
    own: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    adapter: str = ""

    @cached_property
    def known(self) -> Mapping[str, str]:
        """Our own by name, and those that installed distributions add."""
        added = entry_points(group=self.group) if self.group else ()
        return {**{each.name: each.value for each in added}, **self.own}

    def unfit(self, found: object) -> str:
        """What an object of the user's lacks to be one of these; empty where it lacks nothing."""
        if isinstance(found, type):
            return "it is a class, and no object of it"
        for name, wanted in self.needs.items():
            if (value := getattr(found, name, _NOTHING)) is _NOTHING:
                return f"it has no {name!r}"
            if not isinstance(wanted, int):
                if not isinstance(value, wanted):
                    return f"its {name!r} is {value!r}, not {getattr(wanted, '__name__', wanted)}"
            elif not callable(value):
                return f"its {name!r} is {value!r}, which cannot be called"
            else:
                try:
                    inspect.signature(value).bind(*range(wanted))
                except TypeError:
                    return f"its {name!r} does not take {wanted} argument{'s' * (wanted > 1)}"
                except ValueError:  # built-in callables may have no signature to look at
                    continue
        return ""


POLICY = Registry(
    "policy",
    {"name": str, "plan": 2},
    {
        "threshold": "elastream.policies.threshold:Threshold",
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
        "caf": "elastream.policies.look_ahead.policy:Latest",
        "waaf": "elastream.policies.look_ahead.policy:Averaged",
        "wpa": "elastream.policies.look_ahead.policy:Predicted",
        "wpo": "elastream.policies.look_ahead.policy:Optimistic",
        "wpp": "elastream.policies.look_ahead.policy:Pessimistic",
        "even": "elastream.policies.placements:Even",
        "random": "elastream.policies.placements:Random",
    },
    "elastream.policies",
    "elastream.core.plant:as_policy",
)
DEFAULT_POLICY = "threshold"
CLOUD = Registry(
    "cloud",
    {"types": tuple | list, "max_hosts": int, "open": 1},
    {
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

PARTS: Mapping[str, str] = {
    "network": "elastream.clouds.local.network:Link",
    "weights": "elastream.policies.btu:DownscalingWeights",
}
"""Parameters that are a mapping in a document and an object of their own in Python."""


WITHIN: Mapping[str, Registry] = {"sizing": POLICY}
"""Parameters that are named themselves: by a short name or a class, with parameters below it in a document."""
PLAIN: Mapping[str, str] = {"static": "hosts"}
"""Parameters that may be given on a command line by their value alone, by policy: `static:4`, `static:peak`."""


def imported(target: str) -> Callable[..., Any]:
    """What `"module:name"`, as in these tables, names."""
    module, _, attribute = target.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def named_in(text: str, registry: Registry) -> tuple[str, dict[str, Any]]:
    """Name and parameters of `NAME[:key=value,...]`, as a command takes it; raises InputError where it is not that.

    A first part without a key is the value of the parameter that `PLAIN` has for the name.
    """
    name, _, given = text.partition(":")
    if name not in registry.known and given and "=" not in given.partition(":")[0]:
        attribute, _, given = given.partition(":")
        name = f"{name}:{attribute}"
    parameters: dict[str, Any] = {}
    for number, part in enumerate(filter(None, given.split(","))):
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


def _plainly(path: tuple[str, ...], sentence: str) -> ElastreamError:
    return InputError(f"{'.'.join(path)}: {sentence}" if path else sentence)


def made(
    registry: Registry, name: str, parameters: Mapping[str, Any], references: References, refusal: Refusal = _plainly
) -> Any:
    """The object that `name` and `parameters` make.

    Raises what `refusal` makes of a name that there is not, a parameter that it does not take or refuses, and an object
    that is none of the kind; ProgramError where the user's own code is missing or fails.
    """
    own = name not in registry.known
    if own and ":" not in name:
        raise refusal((), f"there is no {registry.what} {name!r}{near(name, registry.known)}")
    factory = references.find(name, registry.what) if own else imported(registry.known[name])
    with references.user_code():
        found = _built(factory, parameters, (), refusal, references)
        # Our own are held by their tests; and a pool's properties ask the pool, which a check must not need.
        wrong = registry.unfit(found) if own else ""
    if wrong:
        raise refusal((), f"{name} is no {registry.what}: {wrong}")
    try:
        return imported(registry.adapter)(found) if own and registry.adapter else found
    except InputError as error:
        raise refusal((), str(error)) from error


def parameters_of(found: object) -> dict[str, Any]:
    """What `made` makes an equal object from; nothing of one that is no dataclass."""
    if isinstance(found, PlainPolicy):
        found = found.own
    if not is_dataclass(found) or isinstance(found, type):
        return {}
    parameters = asdict(found)
    for name in WITHIN.keys() & parameters:
        if (within := getattr(found, name)) is not None:
            parameters[name] = {within.name: parameters_of(within)}
    return parameters


def _named(registry: Registry, value: str | Mapping[str, Any], references: References, refusal: Refusal) -> Any:
    """What a parameter names: `threshold`, `static:4`, or `{threshold: {spare: 1}}`."""
    if isinstance(value, str):
        return made(registry, *named_in(value, registry), references, refusal)
    if len(value) != 1:
        raise refusal((), f"{len(value)} names are given; exactly one is needed, with its parameters below it")
    ((name, parameters),) = value.items()
    if parameters is not None and not isinstance(parameters, Mapping):
        raise refusal((str(name),), f"{parameters!r} is not a mapping of parameters")
    return made(registry, str(name), parameters or {}, references, _below(refusal, str(name)))


def _below(refusal: Refusal, *path: str) -> Refusal:
    """The same for what stands below `path`."""
    return lambda below, sentence: refusal((*path, *below), sentence)


def _built(
    factory: Callable[..., Any],
    parameters: Mapping[str, Any],
    path: tuple[str, ...],
    refusal: Refusal,
    references: References,
) -> Any:
    known, hints = inspect.signature(factory).parameters, _hints(factory)
    anything = any(each.kind is each.VAR_KEYWORD for each in known.values())
    arguments = {}
    for name, value in parameters.items():
        if name not in known and not anything:
            raise refusal((*path, name), f"there is no such parameter{near(name, known)}")
        if name in PARTS and isinstance(value, Mapping):
            arguments[name] = _built(imported(PARTS[name]), value, (*path, name), refusal, references)
        elif name in WITHIN and isinstance(value, str | Mapping) and str not in _kinds(hints.get(name)):
            arguments[name] = _named(WITHIN[name], value, references, _below(refusal, *path, name))
        else:
            arguments[name] = _fitting(value, hints.get(name), (*path, name), refusal)
    needed = [each.name for each in known.values() if each.default is each.empty and each.kind not in _VARIADIC]
    if missing := [name for name in needed if name not in arguments]:
        raise refusal(path, f"the parameter {missing[0]!r} is missing, which has no default")
    try:
        return factory(**arguments)
    except (ElastreamError, TypeError, ValueError) as error:
        # The parameter that the sentence names or quotes, if any, has the better line.
        named = next((name for name, value in parameters.items() if name in str(error) or repr(value) in str(error)), None)
        raise refusal((*path, named) if named else path, str(error).removeprefix(f"{named}: ")) from error


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _hints(factory: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(factory)
    except (NameError, TypeError):  # a user's annotations may name what is imported for type checkers only
        return {}


def _kinds(hint: Any) -> set[Any]:
    """Types that a parameter annotated `hint` takes."""
    return set(get_args(hint)) or {hint}


def _fitting(value: Any, hint: Any, path: tuple[str, ...], refusal: Refusal) -> Any:
    """`value` as a parameter annotated `hint` takes it: numbers may be written as durations."""
    wanted = _kinds(hint)
    if value is None and NoneType in wanted:
        return value
    if str in wanted or not wanted & {int, float}:
        return value
    if isinstance(value, str) and float in wanted:
        try:
            return duration(value)
        except ElastreamError:
            raise refusal(path, f"{value!r} is neither a number nor a duration such as '50ms'") from None
    if isinstance(value, bool) or not isinstance(value, int | (float if float in wanted else int)):
        raise refusal(path, f"{value!r} is not a {'number' if float in wanted else 'whole number'}")
    if not math.isfinite(value):
        raise refusal(path, f"{value!r} is not a finite number")
    return value
