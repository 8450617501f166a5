"""Pickles functions of modules that are not installed by value, so that workers do not need the user's modules."""

import hashlib
import io
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from pyspark import cloudpickle as untyped_cloudpickle

from elastream.errors import DataflowError, first_line

cloudpickle: Any = untyped_cloudpickle


def pickled(value: object, what: str) -> bytes:
    """Return `value` pickled for workers. Raises DataflowError that names `what` if that fails."""
    with _local_modules_by_value():
        try:
            return bytes(cloudpickle.dumps(value))
        except Exception as error:
            raise DataflowError(
                f"{what} cannot be sent to the workers: {first_line(error)} (a function must not hold an open "
                "file, a lock or a session; open what it needs inside of it)"
            ) from error


def mark_of(value: object) -> str:
    """Return a text that is equal for equal code, wherever it stands; empty if unknown."""
    buffer = io.BytesIO()
    with _local_modules_by_value():
        try:
            _WithoutPlaces(buffer).dump(value)
        except Exception:  # user values may raise anything
            return ""
    return hashlib.sha256(buffer.getvalue()).hexdigest()[:16]


class _WithoutPlaces(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that leaves out files, lines and random ids. Its output cannot be loaded."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer)
        self._classes: set[int] = set()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
            counts = (value.co_argcount, value.co_kwonlyargcount, value.co_posonlyargcount, value.co_flags)
            return tuple, ((value.co_code, value.co_exceptiontable, names, counts, value.co_consts),)
        if isinstance(value, type) and sys.modules.get(value.__module__) in (None, sys.modules["__main__"]):
            if id(value) in self._classes:
                return str, (value.__qualname__,)
            self._classes.add(id(value))
            own = {k: v for k, v in vars(value).items() if not k.startswith("__") or callable(v)}
            return tuple, ((value.__qualname__, value.__bases__, own),)
        return super().reducer_override(value)

    def _function_getnewargs(self, function: Any) -> Any:
        code, _, *others = super()._function_getnewargs(function)
        return code, {}, *others


@contextmanager
def _local_modules_by_value() -> Iterator[None]:
    by_value = cloudpickle.list_registry_pickle_by_value()
    local = [module for module in list(sys.modules.values()) if _is_local(module) and module.__name__ not in by_value]
    for module in local:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in local:
            cloudpickle.unregister_pickle_by_value(module)


def _is_local(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "__main__")
    if not file or name == "__main__" or name.partition(".")[0] == __package__.partition(".")[0]:
        return False
    # A script executed by `runpy` is in sys.modules only while it runs, and cloudpickle requires the name there.
    return sys.modules.get(name) is module and not _is_installed(Path(file))


def _is_installed(file: Path) -> bool:
    return not _LIBRARIES.isdisjoint(file.parts) or any(file.is_relative_to(place) for place in _INSTALLED)


_LIBRARIES = {"site-packages", "dist-packages"}
_INSTALLED = tuple({Path(path) for path in (*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix) if path})
