"""Later versions of the operators' code in the workers."""

import pickle
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

from pyspark import cloudpickle

from elastream.dataflow.operators import Alternate
from elastream.recording.paths import AnyPath, names_in, stamp_of, write_whole
from elastream.spark.worker.composition import Digit
from elastream.spark.worker.runner import Implementation


class CodeInUse(NamedTuple):
    """Folder of later versions, and the digit of the one that runs."""

    folder: AnyPath
    version: Digit


class OperatorCode(NamedTuple):
    """Alternates of an operator, and the digit of the one that runs."""

    alternates: tuple[Implementation, ...]
    pick: Digit | None


def publish_code(folder: AnyPath, version: int, content: bytes, digits: Mapping[str, Digit]) -> None:
    """Write a version, whose pickled alternates are `content`, for the workers."""
    write_whole(_place(folder, version), pickle.dumps((dict(digits), content)))


def forget_code(folder: AnyPath, before: int) -> None:
    """Remove the versions before `before`."""
    try:
        names = names_in(folder)
    except FileNotFoundError:
        return
    for name in names:
        if name.endswith(".pickle") and int(name.removesuffix(".pickle")) < before:
            (folder / name).unlink(missing_ok=True)


def later_code(code_in_use: CodeInUse | None, operator: str, code: int) -> OperatorCode | None:
    """Return what runs of `operator` under the composition `code`; None for the code of the start."""
    if code_in_use is None or not (version := code_in_use.version.of(code)):
        return None
    place = _place(code_in_use.folder, version)
    return _loaded(place, *stamp_of(place)).get(operator)


def _place(folder: AnyPath, version: int) -> AnyPath:
    return folder / f"{version:06d}.pickle"


@lru_cache(maxsize=4)
def _loaded(place: AnyPath, _inode: int, _written: int) -> Mapping[str, OperatorCode]:
    # A worker process executes many tasks: user functions and their modules are loaded once.
    digits, content = pickle.loads(place.read_bytes())
    alternates: Mapping[str, tuple[Alternate, ...]] = cloudpickle.loads(content)
    return {
        name: OperatorCode(tuple(Implementation(a.name, a.form, cast(Any, a.function)) for a in each), digits.get(name))
        for name, each in alternates.items()
    }
