"""Check of a user object's members without a base class."""

import inspect
from collections.abc import Callable, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    overridable = property
else:

    class overridable:
        """A property without a setter that fields can override.

        A `property` prevents that: a dataclass takes an inherited one for the default of a field of that name, and refuses
        to set the attribute.
        """

        def __init__(self, get: Callable[[Any], Any]) -> None:
            self._get, self.__doc__ = get, get.__doc__

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                raise AttributeError("a default is an instance's")
            return self._get(instance)


# type of each attribute, or number of arguments of a method
Members = Mapping[str, type | UnionType | int]

_ABSENT = object()


def missing_member(value: object, members: Members) -> str:
    if isinstance(value, type):
        return "it is a class, and no object of it"
    for name, expected in members.items():
        if (member := getattr(value, name, _ABSENT)) is _ABSENT:
            return f"it has no {name!r}"
        if not isinstance(expected, int):
            if not isinstance(member, expected):
                return f"its {name!r} is {member!r}, not {getattr(expected, '__name__', expected)}"
        elif not callable(member):
            return f"its {name!r} is {member!r}, which cannot be called"
        else:
            try:
                inspect.signature(member).bind(*range(expected))
            except TypeError:
                return f"its {name!r} does not take {expected} argument{'s' * (expected > 1)}"
            except ValueError:  # built-in callables may have no signature to look at
                continue
    return ""
