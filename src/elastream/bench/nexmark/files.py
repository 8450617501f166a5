"""Nexmark's events as Parquet files, a folder for each kind of event."""

from collections.abc import Callable
from pathlib import Path

from pyarrow import parquet

from elastream.bench.nexmark.events import KINDS, SCHEMAS, Events
from elastream.errors import EnvironmentProblem, InputError

FILE_EVENTS = 500_000  # of all kinds

Tell = Callable[[str, int, int], None]


def write_events(events: Events, folder: Path, tell: Tell, size: int = FILE_EVENTS) -> None:
    """Write all events of a load below `folder`, which must be empty, in files of `size`. Raises ElastreamError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not an empty folder: events of two runs must not mix")
    total = events.load.count(events.load.seconds)
    try:
        for kind in KINDS:
            (folder / kind).mkdir(parents=True)
        for number, first in enumerate(range(0, total, size)):
            tell("events", first, total)
            for kind in KINDS:
                with parquet.ParquetWriter(folder / kind / f"{number:05}.parquet", SCHEMAS[kind]) as file:
                    for batch in events.batches(kind, first, min(first + size, total)):
                        file.write_batch(batch)
    except OSError as error:
        raise EnvironmentProblem(f"{folder} cannot be written: {error.strerror or error}") from error
