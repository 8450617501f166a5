"""Public namespaces whose names are imported when first used."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    namespace: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a namespace.

    Args:
        namespace: Name of the module that offers the names.
        homes: Names by the module that defines them. A module stands for itself under its last part's name where its
            tuple of names is empty.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    modules = {home.rpartition(".")[2]: home for home, names in homes.items() if not names}

    def get(name: str) -> Any:
        if name in modules:
            return import_module(modules[name])
        if name not in home_of:
            raise AttributeError(f"module {namespace!r} has no attribute {name!r}")
        try:
            return getattr(import_module(home_of[name]), name)
        except ModuleNotFoundError as error:
            from elastream.errors import missing

            if sentence := missing(error, name):
                raise ImportError(sentence, name=error.name) from error
            raise

    names = sorted([*home_of, *modules])
    return get, lambda: names, names
