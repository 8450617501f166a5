"""Sources of advice: an event log of Spark, or lines of StreamingQueryProgress."""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path

from elastream.advice.application import Application
from elastream.advice.event_log import EVENT, EventLog
from elastream.advice.log_files import lines_of
from elastream.advice.progress import ProgressReader
from elastream.errors import InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.paths import path_of

RECORDING = b'{"kind":"start"'


def read_source(source: str) -> Application:
    """Read the application that a file or folder describes.

    Raises:
        InputError: It cannot be read, is something else, or has no streaming query with a finished batch.
    """
    place = path_of(source)
    if isinstance(place, Path) and RunDirectory(place).recording.is_file():
        raise _is_recording(source)
    try:
        rest = (line for line in lines_of(place) if line.strip())
        first = next(rest, b"")
        lines = itertools.chain([first], rest)
        if EVENT.match(first):
            application = EventLog(source).read(lines)
        elif first.lstrip().startswith(RECORDING):
            raise _is_recording(source)
        else:
            application = _read_progress(source, lines)
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}") from error
    _check(application)
    return application


def _read_progress(source: str, lines: Iterable[bytes]) -> Application:
    application = Application(source, "progress of queries")
    reader = ProgressReader(application)
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            reader.read(entry.get("progress", entry))
        except (ValueError, KeyError, TypeError, AttributeError):
            application.unreadable += 1
            if number == 1:
                raise InputError(
                    f"{source} is no log that can be read: its first line is neither an event of Spark nor the JSON of a "
                    "StreamingQueryProgress"
                ) from None
    return application


def _is_recording(source: str) -> InputError:
    return InputError(
        f"{source} is a recording of Elastream: `elastream explain` says why it was late, and `elastream simulate "
        "--calibrate` compares policies on it"
    )


def _check(application: Application) -> None:
    started = len(application.queries)
    application.queries = {id: query for id, query in application.queries.items() if query.batches}
    if application.queries:
        return
    if started:
        raise InputError(f"{application.source}: no batch of its {started} streaming queries has finished")
    what = f"{application.jobs} jobs and no streaming query" if application.jobs else "no streaming query"
    raise InputError(f"{application.source} has {what}: advice is for streaming jobs")
