"""Defaults that subclasses may replace by a property, class attribute or dataclass field."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    overridable = property
else:

    class overridable:
        """A property without a setter that does not get in the way of fields.

        `property` does: a dataclass takes an inherited one for the default of a field of that name, and refuses to set the
        attribute.
        """

        def __init__(self, get: Callable[[Any], Any]) -> None:
            self._get, self.__doc__ = get, get.__doc__

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                raise AttributeError("a default is an instance's")
            return self._get(instance)
