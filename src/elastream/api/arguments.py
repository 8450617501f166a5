"""Refuses arguments of another kind than `run` and `Autopilot` take, before anything starts: one sentence, with the name.

What each value must be within its kind is checked where it is used (`ScalingRules`, `duration`, `refuse_replicas`).
"""

import numbers
from collections.abc import Callable
from typing import Any

from elastream.clouds.provider import lacks_as_provider
from elastream.documents.registry import POLICY
from elastream.errors import ElastreamError, InputError
from elastream.units import duration

OBSERVES = ("started", "observed", "decided", "ended")


def seconds(name: str, value: float | str, read: Callable[[float | str], float] = duration) -> float:
    """Seconds of the argument `name`, as `read` reads it; what is wrong with it is said of that name."""
    try:
        return read(value)
    except ElastreamError as error:
        raise InputError(f"{name}: {error}", (name,)) from error


def refuse_others(name: str, value: object, *kinds: type, wanted: str) -> None:
    """Raise InputError where `value` is of none of `kinds`; None is up to them. A truth value is no number."""
    kinds = (*kinds, numbers.Integral) if int in kinds else kinds  # numpy's, too
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise InputError(f"{name} is {_shown(value)}; it must be {wanted}", (name,))


def _refuse_class(name: str, value: object) -> None:
    """Raise InputError where `value` is a class, and not an object of it."""
    if isinstance(value, type):
        raise InputError(f"{name} is the class {value.__name__}; it must be an object, such as {value.__name__}()", (name,))


def refuse_unplanning(policy: object) -> None:
    """Raise InputError where `policy` is no policy; None stands for the usual one."""
    _refuse_class("policy", policy)
    if policy is not None and (wrong := POLICY.unfit(policy)):
        raise InputError(f"policy is {_shown(policy)}; it must be a policy, such as Threshold(): {wrong}", ("policy",))


def refuse_unreal(cloud: object, *, provider: bool = False) -> None:
    """Raise InputError where `cloud` is no description of hosts, nor, with `provider`, a provider that runs."""
    _refuse_class("cloud", cloud)
    opens: Any = getattr(cloud, "open", None)
    if callable(opens) or (provider and (cloud is None or not lacks_as_provider(cloud))):
        return
    raise InputError(f"cloud is {_shown(cloud)}; it must be a cloud, such as Local()", ("cloud",))


def refuse_unobserving(observers: object) -> None:
    """Raise InputError where one of `observers` is none."""
    refuse_others("observers", observers, list, tuple, wanted="a list of observers")
    assert isinstance(observers, list | tuple)
    for each in observers:
        if missing := [name for name in OBSERVES if not callable(getattr(each, name, None))]:
            raise InputError(f"observers: {_shown(each)} is no observer: it has no {', '.join(missing)}", ("observers",))


def _shown(value: object) -> str:
    said = repr(value)
    return said if len(said) <= 60 else f"a {type(value).__name__}"
