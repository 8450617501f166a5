"""Store of the records that a shaped load replays by number: one Arrow file, which workers map into memory."""

import codecs
import glob
import gzip
import hashlib
import json
import os
from collections.abc import Iterator
from functools import lru_cache
from itertools import cycle, islice
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from elastream.dataflow.endpoints import Files, Records, TextFiles
from elastream.errors import EnvironmentProblem, InputError, first_line
from elastream.recording.paths import AnyPath, stamp_of

# Spark's default.
MAX_BATCH_ROWS = 10_000

ORIGIN = b"elastream.origin"
BLOCK_BYTES = 1 << 20
FORMATS = ("parquet", "json", "csv")


def input_files(path: str) -> tuple[Path, ...]:
    """Return the visible files of a path, folder or glob, sorted. Raises InputError for none."""
    place = Path(path).expanduser()
    if place.is_file():
        files = [place]
    elif place.is_dir():
        files = [child for child in place.iterdir() if child.is_file() and child.name[0] not in "._"]
        if not files:
            raise InputError(f"the folder {path} holds no file")
    else:
        files = [Path(name) for name in glob.glob(str(place), recursive=True) if Path(name).is_file()]
        if not files:
            raise InputError(f"no file matches {path}" if glob.has_magic(path) else f"there is no file or folder {path}")
    if not any(file.stat().st_size for file in files):
        raise InputError(f"{path} is empty")
    return tuple(sorted(files))


def check_text(file: Path) -> None:
    """Raise InputError if `file` is not UTF-8 text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = 0
    try:
        with _opened(file) as stream:
            while block := stream.read(BLOCK_BYTES):
                position -= len(decoder.getstate()[0])
                decoder.decode(block)
                position = stream.tell()
            position -= len(decoder.getstate()[0])
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _not_utf8(file, position + error.start, error) from None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from None


def check_files(spec: Files) -> None:
    """Raise InputError for an unknown format or an invalid parquet file."""
    if spec.format not in FORMATS:
        raise InputError(f"{spec.path}: the format {spec.format!r} is not one of {', '.join(FORMATS)}")
    for file in input_files(spec.path):
        if spec.format == "parquet":
            try:
                pa.parquet.read_schema(file)
            except (pa.ArrowException, OSError) as error:
                raise InputError(f"{file} is not a parquet file: {first_line(error).rstrip('.')}") from None


def read_records(spec: TextFiles | Files | Records, schema: pa.Schema) -> pa.Table:
    """Read all records of `spec`, files in sorted order. Raises InputError with file or column."""
    match spec:
        case TextFiles(path, _, format):
            table = pa.concat_tables([_lines(file, schema) for file in input_files(path)])
        case Files(path, _, format):
            table = pa.concat_tables([_rows(file, format, schema) for file in input_files(path)])
        case Records(rows):
            unknown = sorted({column for row in rows for column in row} - set(schema.names))
            if unknown:
                raise InputError(f"records have a column {unknown[0]!r}, which is not in their schema ({spec.schema})")
            try:
                table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise InputError(
                    f"records do not fit their schema ({spec.schema}): {first_line(error).rstrip('.')}"
                ) from None
    if not table.num_rows:
        raise InputError(f"{'the list of records' if isinstance(spec, Records) else spec.path} holds no record")
    return table


def store_corpus(spec: TextFiles | Files | Records, schema: pa.Schema, file: Path) -> None:
    """Store the records of `spec` in `file`, unless it exists: a resumed run keeps its input.

    Raises InputError for another input, and EnvironmentProblem.
    """
    origin = _origin(spec)
    if file.exists():
        made_from = (pa.ipc.open_file(pa.memory_map(str(file))).schema.metadata or {}).get(ORIGIN, b"").decode()
        if made_from != origin:
            raise InputError(f"this run started with the input {made_from}; it cannot resume with {origin}")
        return
    table = read_records(spec, schema).replace_schema_metadata({ORIGIN: origin.encode()})
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with pa.ipc.new_file(str(temporary), table.schema) as out:
            out.write_table(table.combine_chunks(), max_chunksize=MAX_BATCH_ROWS)
        temporary.replace(file)
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {file}: {error.strerror or error}") from None


def open_corpus(file: AnyPath) -> pa.Table:
    """Open the stored records once a process, memory-mapped if the file is local."""
    return _mapped(file, stamp_of(file))


def slices(table: pa.Table, first: int, last: int) -> Iterator[pa.RecordBatch]:
    size = table.num_rows
    short = table.combine_chunks().to_batches()[0] if size < MAX_BATCH_ROWS else None
    while first < last:
        if short is not None:
            rows = min(last - first, MAX_BATCH_ROWS)
            yield short.take(pa.array((first + np.arange(rows)) % size))
        else:
            begin = first % size
            rows = min(last - first, MAX_BATCH_ROWS, size - begin)
            yield from table.slice(begin, rows).to_batches()
        first += rows


@lru_cache(maxsize=4)
def _mapped(file: AnyPath, _stamp: tuple[int, int]) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(file)) if isinstance(file, Path) else file.read_bytes()).read_all()


def _opened(file: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(file, "rb")) if file.suffix == ".gz" else file.open("rb")


def _lines(file: Path, schema: pa.Schema) -> pa.Table:
    try:
        with _opened(file) as stream:
            content = stream.read()
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise _not_utf8(file, error.start, error) from None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from None
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return pa.table([pa.array([line for line in lines if line.strip()], schema.field(0).type)], schema=schema)


def _rows(file: Path, format: str, schema: pa.Schema) -> pa.Table:
    # Times in text rarely have a zone; they are read as UTC.
    plain = pa.schema([(f.name, pa.timestamp("us") if pa.types.is_timestamp(f.type) else f.type) for f in schema])
    try:
        match format:
            case "parquet":
                table = pa.parquet.read_table(file, partitioning=None)
            case "json":
                options = pa.json.ParseOptions(explicit_schema=plain, unexpected_field_behavior="ignore")
                table = pa.json.read_json(file, parse_options=options)
            case _:
                table = pa.csv.read_csv(
                    file,
                    convert_options=pa.csv.ConvertOptions(
                        column_types=plain, include_columns=schema.names, strings_can_be_null=True
                    ),
                )
        missing = [name for name in schema.names if name not in table.column_names]
        if missing:
            raise InputError(f"{file} has no column {missing[0]!r}")
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise InputError(f"{file} cannot be read as {format} with these columns: {first_line(error).rstrip('.')}") from None


def _origin(spec: TextFiles | Files | Records) -> str:
    match spec:
        case TextFiles(path):
            return f"text {Path(path).resolve()}"
        case Files(path, schema, format):
            return f"{format} {Path(path).resolve()} ({schema})"
        case Records(rows, schema):
            digest = hashlib.sha256(json.dumps([dict(row) for row in rows], default=repr).encode()).hexdigest()
            return f"records {digest[:12]} ({schema})"


def _not_utf8(file: Path, position: int, error: UnicodeDecodeError) -> InputError:
    return InputError(f"{file} is not UTF-8 text: byte {position} is 0x{error.object[error.start]:02x} ({error.reason})")


def replayed(file: Path, count: int) -> Iterator[Any]:
    """Yield the first `count` records of a load: plain values of a single column, or dicts."""
    table = open_corpus(file)
    rows = table.column(0).to_pylist() if table.num_columns == 1 else table.to_pylist()
    return islice(cycle(rows), count)
