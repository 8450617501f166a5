"""Execution of cases in several processes; reuses stored results.

Results are pickled: read only files of your own.
"""

import hashlib
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

import elastream
from elastream.errors import EnvironmentProblem, InputError
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.trials import run_beside

MAGIC = "elastream results"  # first in a file, before the digest of the code


class KeptResults:
    """Results of one function in one file.

    Raises InputError for a file of other code, EnvironmentProblem if it is not accessible.
    """

    def __init__(self, path: Path, run: Callable[..., Any]) -> None:
        self.path = path
        self._mark = (MAGIC, _code(run.__module__.partition(".")[0]))
        self._results: dict[str, Any] = {}
        try:
            self._file: IO[bytes] = path.open("r+b" if path.exists() else "x+b")
            end = self._read()
            self._file.seek(end)
            self._file.truncate()
            if not end:
                self._append(self._mark)
        except OSError as error:
            raise EnvironmentProblem(f"cannot keep results in {path}: {error.strerror or error}") from None

    def __len__(self) -> int:
        return len(self._results)

    def has(self, run: Callable[..., Any], case: object) -> bool:
        return _named(run, case) in self._results

    def of(self, run: Callable[..., Any], case: object) -> Any:
        return self._results[_named(run, case)]

    def add(self, run: Callable[..., Any], case: object, result: object) -> None:
        name = _named(run, case)
        self._results[name] = result
        self._append((name, result))

    def close(self) -> None:
        self._file.close()

    def _append(self, row: tuple[str, Any]) -> None:
        self._file.write(pickle.dumps(row))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> int:
        end, first = 0, True
        while True:
            try:
                name, value = pickle.load(self._file)
            except EOFError:
                return end
            except Exception as error:
                if first:
                    raise InputError(f"{self.path} is not a file of results: {error}") from None
                return end
            if first and (name, value) != self._mark:
                raise InputError(f"{self.path} has results of other code: remove it, or give another file")
            if not first:
                self._results[name] = value
            end, first = self._file.tell(), False


@cache
def _code(package: str) -> str:
    digest = hashlib.sha256()
    for module in {"elastream": elastream, package: sys.modules[package]}.values():
        file = Path(str(module.__file__))
        for path in sorted(file.parent.rglob("*.py")) if hasattr(module, "__path__") else [file]:
            digest.update(str(path.relative_to(file.parent)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _named(run: Callable[..., Any], case: object) -> str:
    digest = hashlib.sha256()
    for part in _parts((f"{run.__module__}.{run.__qualname__}", case)):
        digest.update(part + b"\0")
    return digest.hexdigest()


def _parts(value: object) -> Iterable[bytes]:
    if isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value).__qualname__.encode()
        for each in fields(value):
            yield from _parts(getattr(value, each.name))
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield from _parts((key, value[key]))
    elif isinstance(value, tuple | list):
        yield str(len(value)).encode()
        for item in value:
            yield from _parts(item)
    elif value is None or isinstance(value, str | bytes | int | float | Enum):
        yield repr(value).encode()
    else:
        raise TypeError(f"a case says {value!r}, which cannot be told from others")


C = TypeVar("C")
R = TypeVar("R")


def run_all(
    run: Callable[[C], R],
    cases: Sequence[C],
    options: ExperimentOptions,
    label: Callable[[C], str],
    warm: Callable[[C], object] = lambda _: None,
) -> tuple[list[R], float]:
    """Run all `cases` without stored results; return all results in order, and the seconds that this took."""
    begun = time.monotonic()
    with nullcontext() if options.resume is None else closing(KeptResults(options.resume, run)) as keep:
        results = {} if keep is None else {n: keep.of(run, case) for n, case in enumerate(cases) if keep.has(run, case)}
        if results:
            options.say(f"{len(results):,} results taken from {options.resume}")
        left = [number for number in range(len(cases)) if number not in results]

        def ended(number: int, result: R) -> None:
            case = cases[left[number]]
            results[left[number]] = result
            if keep is not None:
                keep.add(run, case, result)
            options.progress(label(case), len(results), len(cases))

        if left:
            warm(cases[left[0]])
            run_beside(lambda case, _: run(case), [cases[number] for number in left], options.workers, ended=ended)
    return [results[number] for number in range(len(cases))], time.monotonic() - begun
