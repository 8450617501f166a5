"""The files of a recording: the one that is written, and earlier parts of it, compressed, for as long as they are kept.

A part is named after the time of the run, in milliseconds, at which it ends: `recording-000086400000.jsonl.gz`. Each file
begins with the run's header, in which is what all before it came to; so the oldest can be forgotten at any time.
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
RETENTION = DAY
"""Seconds for which details are kept where nothing is said: a day of observations, one a second, is read in some ten
seconds. Figures of the whole run, state, results and what is still to be read are kept in any case."""
PART = 8_000_000
"""Bytes of a part: about an hour, one observation a second. What it came to is computed when it ends, in half a second."""


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of a recording is kept. seconds: of the run. summed: figures, as JSON has them, of a recording and of what
    its header says came before it. part: bytes after which a new file is begun, as it is after `seconds`."""

    seconds: float
    summed: Callable[[Any], dict[str, Any]]
    part: int = PART


def file_of(path: Path) -> Path:
    """The file of a recording that is given by it, or by its folder."""
    return path / FILE_NAME if path.is_dir() else path


def _parts(file: Path) -> dict[int, Path]:
    """Earlier parts of a recording by the millisecond at which they end, oldest first."""
    found: dict[int, Path] = {}
    name = re.compile(re.escape(file.stem) + r"-(\d{12,})" + re.escape(file.suffix) + r"(\.gz)?")
    for each in file.parent.iterdir() if file.parent.is_dir() else ():
        if match := name.fullmatch(each.name):
            end = int(match[1])
            # Where both are there, the compressed one is not known to be whole.
            found[end] = each if end not in found or not match[2] else found[end]
    return dict(sorted(found.items()))


def files_of(file: Path) -> list[Path]:
    """All files of a recording, oldest first."""
    return [*_parts(file).values(), file]


def entries_of(file: Path, without: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """The entries of one file. without: how lines begin that are left out.

    A torn last line, left by a run killed while writing, is skipped. Raises InputError for any other damage.
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
    """A part may have been compressed since it was listed."""
    if not file.exists() and (packed := file.with_name(f"{file.name}.gz")).exists():
        file = packed
    if file.suffix == ".gz":
        return cast(IO[str], gzip.open(file, "rt", encoding="utf-8", newline="\n"))
    return file.open(encoding="utf-8", newline="\n")


def set_aside(file: Path, end: float) -> Path:
    """Make `file`, whose last entry was written at second `end` of the run, an earlier part."""
    part = file.with_name(f"{file.stem}-{round(end * 1000):012d}{file.suffix}")
    os.rename(file, part)
    return part


def forget_parts(file: Path, before: float) -> None:
    """Compress the parts that are not yet, and remove those that end by second `before` of the run."""
    for end, part in _parts(file).items():
        if end / 1000 <= before:
            part.unlink(missing_ok=True)
        elif part.suffix != ".gz":
            packed, making = part.with_name(f"{part.name}.gz"), part.with_name(f".{part.name}.gz")
            with part.open("rb") as source, gzip.open(create_private(making), "wb", compresslevel=4) as out:
                shutil.copyfileobj(source, out)
            os.replace(making, packed)
            part.unlink()
