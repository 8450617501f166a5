"""Files of a recording: the current one, and its earlier parts, compressed, until they are forgotten.

A part is named after the time of the run [ms] at which it ends. Each file begins with the run's header and the totals of
all earlier parts, so the oldest can be removed at any time.
"""

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from elastream.errors import InputError
from elastream.recording.directory import create_private

FILE_NAME = "recording.jsonl"
DAY = 86_400.0
# Default seconds of detail: a day of observations, one per second, loads in about ten seconds. Totals, state, results and
# unread records are never removed.
RETENTION = DAY
# Bytes of a part: about an hour at one observation a second. Its totals take half a second.
PART = 8_000_000


@dataclass(frozen=True, slots=True)
class Keep:
    seconds: float  # of the run
    summed: Callable[[Any], dict[str, Any]]  # returns the totals of a recording, earlier parts included, as JSON
    part: int = PART  # bytes after which a new file begins; it does after `seconds`, too


def file_of(path: Path) -> Path:
    return path / FILE_NAME if path.is_dir() else path


def _parts(file: Path) -> dict[int, Path]:
    parts: dict[int, Path] = {}
    name = re.compile(re.escape(file.stem) + r"-(\d{12,})" + re.escape(file.suffix) + r"(\.gz)?")
    for each in file.parent.iterdir() if file.parent.is_dir() else ():
        if match := name.fullmatch(each.name):
            end = int(match[1])
            # If both exist, the compressed file may be incomplete.
            parts[end] = each if end not in parts or not match[2] else parts[end]
    return dict(sorted(parts.items()))


def files_of(file: Path) -> list[Path]:
    return [*_parts(file).values(), file]


def entries_of(file: Path, without: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yield the entries of one file, except lines that begin with `without`.

    A torn last line of a killed run is skipped. Raises InputError for any other damage.
    """
    try:
        with _opened(file) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith("\n"):
                    return
                if without and line.startswith(without):
                    continue
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise InputError(f"{file}, line {number}: not an entry of a recording ({error})") from error
    except (OSError, EOFError) as error:
        raise InputError(f"there is no recording at {file}: {getattr(error, 'strerror', None) or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not a recording: byte {error.start} is not UTF-8") from error


def _opened(file: Path) -> IO[str]:
    """Open a file, or its compressed form if it was compressed since it was listed."""
    if not file.exists() and (packed := file.with_name(f"{file.name}.gz")).exists():
        file = packed
    if file.suffix == ".gz":
        return cast(IO[str], gzip.open(file, "rt", encoding="utf-8", newline="\n"))
    return file.open(encoding="utf-8", newline="\n")


def set_aside(file: Path, end: float) -> Path:
    """Rename `file`, whose last entry was written at second `end` of the run, to an earlier part."""
    part = file.with_name(f"{file.stem}-{round(end * 1000):012d}{file.suffix}")
    os.rename(file, part)
    return part


def forget_parts(file: Path, before: float) -> None:
    """Compress uncompressed parts, and remove those that end by second `before` of the run."""
    for end, part in _parts(file).items():
        if end / 1000 <= before:
            part.unlink(missing_ok=True)
        elif part.suffix != ".gz":
            packed, making = part.with_name(f"{part.name}.gz"), part.with_name(f".{part.name}.gz")
            with part.open("rb") as source, gzip.open(create_private(making), "wb", compresslevel=4) as out:
                shutil.copyfileobj(source, out)
            os.replace(making, packed)
            part.unlink()


# Bytes read at first from the end; doubled until enough lines are found.
TAIL_BLOCK = 1 << 16


def whole_length(path: Path) -> int:
    """Return the bytes of `path` up to the end of its last whole line."""
    return path.stat().st_size - len(_tail(path, lines=1)[-1])


def last_time(path: Path) -> float:
    """Return the newest time [s of the run] in the recording at `path`; 0 if there is none."""
    if not path.exists():
        return 0.0
    count = 2
    while True:
        *lines, _ = _tail(path, lines=count)
        for line in reversed(lines):
            try:
                return float(json.loads(line)["time"])
            except (ValueError, TypeError, KeyError):
                continue  # a header, or damage: what comes before it
        if len(lines) < count:
            return 0.0
        count *= 2


def _tail(path: Path, lines: int) -> list[bytes]:
    """Return at least the last `lines` whole lines if there are as many, and what follows the last one."""
    size, block = path.stat().st_size, TAIL_BLOCK
    with path.open("rb") as file:
        while True:
            file.seek(-min(block, size), os.SEEK_END)
            content = file.read()
            parts = content.split(b"\n")
            if block >= size:
                return parts
            if len(parts) > lines + 1:
                return parts[1:]
            block *= 2
