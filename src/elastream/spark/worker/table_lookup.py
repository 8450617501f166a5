"""Key tables where batches run: which alternate each record, or the key of a call, is for.

The driver puts a version in place before it requests a composition with it; workers find it by the digit of the composition
and keep it, indexed, for as long as the process lives. What a digit leads to changes only after 255 more versions.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elastream.recording.key_table_log import read_rows
from elastream.recording.places import Place, stamp_of, write_whole
from elastream.spark.worker.composition import table_digit

Numbers = NDArray[np.int16]

FEW = 4
"""Arrow indexes all keys of a table for each batch, which takes as long as looking up a record for each four of them."""
NEAR = 8
"""Times as many whole numbers as keys, from the least to the greatest, for which an array is kept: two bytes for each."""


def put_in_use(folder: Place, operator: str, version: int, file: Place) -> None:
    """Let the digit of `version` lead to the table in `file`; on disk when this returns."""
    write_whole(_place(folder, operator, table_digit(version)), file.read_bytes())


def lookup(folder: Place, operator: str, digit: int, alternates: Sequence[str]) -> "Lookup":
    """The table that `digit` leads to. alternates: of the operator, by whose numbers it answers."""
    place = _place(folder, operator, digit)
    return _kept(place, *stamp_of(place), tuple(alternates))


def _place(folder: Place, operator: str, digit: int) -> Place:
    return folder / operator / f"{digit:03d}.arrow"


@lru_cache(maxsize=64)
def _kept(place: Place, inode: int, written: int, alternates: tuple[str, ...]) -> "Lookup":
    columns, rows = read_rows(place.read_bytes())
    return Lookup(columns, rows, alternates)


class Lookup:
    """A key table, indexed: numbers of alternates by key, and -1 for keys that it does not name."""

    def __init__(self, columns: Sequence[str], rows: Mapping[tuple[Any, ...], str], alternates: Sequence[str]) -> None:
        self.columns = tuple(columns)
        number = {name: at for at, name in enumerate(alternates)}
        # Of one column, the value itself is the key: no tuple is made for each record.
        single = len(self.columns) == 1
        self._by_key: dict[Any, int] = {key[0] if single else key: number[name] for key, name in rows.items()}
        # One more stands at the end, where -1 leads: for a key that is not there.
        self._numbers = np.array([*self._by_key.values(), -1], dtype=np.int16)
        self._keys: dict[pa.DataType, Any] = {}

    def of_key(self, key: Sequence[Any]) -> int:
        """For the key of a call: values of the columns, in their order."""
        return self._by_key.get(key[0] if len(self.columns) == 1 else tuple(key), -1)

    def of_values(self, values: Sequence[Any], names: Sequence[str]) -> Numbers:
        """For records as Python values: those of the only column, or dicts by column."""
        keys = values if len(names) == 1 else map(itemgetter(*self.columns), values)
        return np.fromiter(map(self._by_key.get, keys, repeat(-1)), dtype=np.int16, count=len(values))

    def of_batch(self, batch: pa.RecordBatch) -> Numbers:
        """For the records of a batch."""
        if len(self.columns) > 1:
            columns = [batch.column(name).to_pylist() for name in self.columns]
            return np.array([self._by_key.get(key, -1) for key in zip(*columns, strict=True)], dtype=np.int16)
        column = batch.column(self.columns[0])
        if pa.types.is_integer(column.type):
            return self._of_integers(column)
        if batch.num_rows * FEW < len(self._by_key):
            return np.array([self._by_key.get(key, -1) for key in column.to_pylist()], dtype=np.int16)
        if (keys := self._keys.get(column.type)) is None:
            keys = self._keys[column.type] = pa.array(list(self._by_key)).cast(column.type)
        at = pc.fill_null(pc.index_in(column, value_set=keys), -1)
        numbers: Numbers = self._numbers[at.to_numpy(zero_copy_only=False)]
        return numbers

    def _of_integers(self, column: pa.Array) -> Numbers:
        values = pc.fill_null(column, 0) if column.null_count else column
        keys = values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        numbers: Numbers
        if self._near is None:
            numbers = self._numbers[self._index.get_indexer(keys)]
        else:
            least, answers = self._near
            # As unsigned numbers, keys below the least are beyond the last: one comparison finds both.
            numbers = answers[np.minimum((keys - least).view(np.uint64), np.uint64(len(answers) - 1)).view(np.int64)]
        if column.null_count:
            numbers[column.is_null().to_numpy(zero_copy_only=False)] = -1
        return numbers

    @cached_property
    def _near(self) -> tuple[int, Numbers] | None:
        """Of keys that are whole numbers: the least, and the answer for each from there on, -1 behind the last.

        A tenth of the work of a hash for each record. None where keys lie far apart.
        """
        least = min(self._by_key, default=0)
        span = max(self._by_key, default=0) - least + 1
        if span > NEAR * len(self._by_key):
            return None
        answers = np.full(span + 1, -1, dtype=np.int16)
        answers[np.array(list(self._by_key), dtype=np.int64) - least] = self._numbers[:-1]
        return least, answers

    @cached_property
    def _index(self) -> pd.Index:
        return pd.Index(np.array(list(self._by_key), dtype=np.int64))
