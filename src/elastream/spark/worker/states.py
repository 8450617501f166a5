"""The form in which Spark stores the state of a key: pickled fields, one per alternate or one for all.

PySpark 4.3 fails on state schemas with lists and maps.
"""

import operator
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from pyspark.sql import types

State: TypeAlias = tuple[Any, ...]
Fit: TypeAlias = Callable[[Any], Any]

_BITS: Mapping[type, int] = {types.ByteType: 8, types.ShortType: 16, types.IntegerType: 32, types.LongType: 64}


class States:
    """The states of one keyed operator, of a schema an alternate. `own`: each alternate has a state of its own."""

    def __init__(self, schemas: Sequence[types.StructType], own: bool) -> None:
        self._schemas, self._own = tuple(schemas), own
        self._fits: dict[int, tuple[Fit, ...]] = {}

    @property
    def schema(self) -> types.StructType:
        """Return the schema of the fields that Spark stores for a key."""
        fields = len(self._schemas) if self._own else 1
        return types.StructType([types.StructField(f"state_{number}", types.BinaryType()) for number in range(fields)])

    def of(self, stored: State | None, alternate: int) -> State | None:
        """Return an alternate's state from the stored fields, or None."""
        content = None if stored is None else stored[alternate if self._own else 0]
        if content is None:
            return None
        state: State = pickle.loads(content)
        return state

    def after(self, stored: State | None, alternate: int, state: Any) -> State | None:
        """Return the fields to store after `alternate` returned `state`, or None. Raises ValueError."""
        at = alternate if self._own else 0
        fields = list(stored) if stored is not None else [None] * len(self.schema)
        fields[at] = None if state is None else pickle.dumps(self._fitted(alternate, state), pickle.HIGHEST_PROTOCOL)
        return None if all(field is None for field in fields) else tuple(fields)

    def _fitted(self, alternate: int, state: Any) -> State:
        alternate = alternate if self._own else 0  # of one state, all alternates have the schema, later ones included
        schema = self._schemas[alternate]
        shown = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
        if isinstance(state, str | bytes | dict) or not hasattr(state, "__len__") or len(state) != len(schema):
            raise ValueError(f"it left a state that is not a tuple of ({shown})")
        fits = self._fits.setdefault(alternate, tuple(fit_of(field.dataType) for field in schema))
        try:
            return tuple(None if value is None else fit(value) for fit, value in zip(fits, state, strict=True))
        except Exception as error:  # user values may raise anything
            raise ValueError(f"it left a state that is not ({shown}): {error}") from error


def fit_of(kind: types.DataType) -> Fit:
    """Return a function that converts values to Python's own types, or raises."""
    if isinstance(kind, types.FloatType | types.DoubleType):
        return _fraction
    if (bits := _BITS.get(type(kind))) is not None:
        return lambda value: _integer(value, bits)
    if isinstance(kind, types.StringType):
        return _text
    if isinstance(kind, types.ArrayType):
        element = _or_none(fit_of(kind.elementType))
        return lambda value: [element(each) for each in _several(value)]
    if isinstance(kind, types.MapType):
        key, each = fit_of(kind.keyType), _or_none(fit_of(kind.valueType))
        return lambda value: {key(name): each(item) for name, item in value.items()}
    if isinstance(kind, types.StructType):
        fields = [(field.name, _or_none(fit_of(field.dataType))) for field in kind]
        return lambda value: _struct(value, fields)
    verify = types._make_type_verifier(kind)

    def verified(value: Any) -> Any:
        verify(plain := _plain(value))
        return plain

    return verified


def _or_none(fit: Fit) -> Fit:
    return lambda value: None if value is None else fit(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if value is pd.NaT:
        return None
    if isinstance(value, pd.Timestamp):
        return value.to_pydatetime(warn=False)
    return value.to_pytimedelta() if isinstance(value, pd.Timedelta) else value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return str(value)


def _integer(value: Any, bits: int) -> int:
    number = operator.index(value)
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise ValueError(f"{number} does not fit into {bits} bits")
    return number


def _fraction(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _several(value: Any) -> Any:
    if isinstance(value, str | bytes | dict):
        raise TypeError(f"{value!r} is not a list")
    return value


def _struct(value: Any, fields: Sequence[tuple[str, Fit]]) -> State:
    values = [value[name] for name, _ in fields] if isinstance(value, dict) else list(value)
    return tuple(fit(each) for (_, fit), each in zip(fields, values, strict=True))
