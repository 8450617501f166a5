"""Sources of advice: an event log of Spark, lines of StreamingQueryProgress, a recording, or an address.

Whatever is whole before a damaged or open end counts.
"""

import itertools
import json
import math
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import numpy as np
import pyarrow as pa

from elastream.advice import prometheus, spark_page
from elastream.advice.application import Application, Executor, LoggedBatch, LoggedQuery
from elastream.advice.event_log import EVENT, EventLog
from elastream.advice.progress import MALFORMED, ProgressReader
from elastream.advice.web import WEB, NoSuchPage, Site
from elastream.core.decision import often_said
from elastream.core.metrics import Metric
from elastream.core.wording import counted
from elastream.errors import InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.paths import AnyPath, path_of
from elastream.recording.recorder import Recording
from elastream.units import format_duration

LogPath: TypeAlias = AnyPath | zipfile.Path
# Bytes read at once, plain and decompressed: of a file that is cut off, up to so many are lost.
CHUNK, DECOMPRESSED = 1 << 20, 1 << 14
# Most bytes of a block that a damaged header may ask for.
LARGEST_BLOCK = 1 << 28
# First bytes of a file, by codec.
CODECS = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip", b"\x04\x22\x4d\x18": "lz4"}
# Errors of reading a damaged file, or a file in an archive.
DAMAGE = (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)
ZIP = b"PK\x03\x04"
LZ4_BLOCK, SNAPPY, LZF = b"LZ4Block", b"\x82SNAPPY\x00", b"ZV"
# Parts of a rolled log: `events_2_app-1.zstd`, or `events_2_app-1.compact` instead of all parts up to it.
PART = re.compile(r"events_(\d+)_.*")
# Databricks names parts by their dates, and the one that is written without.
LAST_OF_DATABRICKS = "eventlog"
JSON = json.JSONDecoder()
# Field of progress, also in quoted JSON, and the most characters of one over several lines.
BATCH_ID, LONGEST_PROGRESS = re.compile(r'"batchId\\*"\s*:'), 1 << 20


def lines_of(source: LogPath) -> Iterator[bytes]:
    """Yield the lines of a log file, or of all parts of a rolled one.

    Raises:
        InputError: There is no such file, no log in the folder, or no codec for it.
    """
    with ExitStack() as opened:
        for part in _parts_of(source, opened):
            yield from _lines(_decompressed(part))


def _parts_of(source: LogPath, opened: ExitStack) -> list[LogPath]:
    """Return the files of a log in order. Raises InputError if there are none."""
    if source.is_file():
        return [source] if isinstance(source, zipfile.Path) else _unzipped(source, opened)
    if not source.is_dir():
        raise InputError(f"there is no file or folder {source}")
    names = sorted(each.name for each in source.iterdir())
    numbered = sorted((int(match[1]), name) for name in names if (match := PART.fullmatch(name)))
    if not numbered and LAST_OF_DATABRICKS in names:
        dated = [name for name in names if name.startswith(f"{LAST_OF_DATABRICKS}-")]
        return [source / name for name in (*dated, LAST_OF_DATABRICKS)]
    if not numbered:
        names = [each for each in names if not each.startswith(("appstatus_", "."))]
        if len(names) == 1:
            return _parts_of(source / names[0], opened)
        hint = f"give one of what it holds, such as {names[-1]}" if names else "it is empty"
        raise InputError(f"{source} is not the log of one application: {hint}")
    compact = max((number for number, name in numbered if name.endswith(".compact")), default=0)
    return [
        source / name for number, name in numbered if number > compact or (number == compact and name.endswith(".compact"))
    ] or [source / name for _, name in numbered]


def _unzipped(source: LogPath, opened: ExitStack) -> list[LogPath]:
    with source.open("rb") as file:
        if file.read(len(ZIP)) != ZIP:
            return [source]
    try:
        return _parts_of(zipfile.Path(zipfile.ZipFile(opened.enter_context(source.open("rb")))), opened)
    except DAMAGE as error:
        raise InputError(f"{source} cannot be read: {error}") from None


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    pieces: list[bytes] = []
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        pieces.append(first)
        if others:
            yield b"".join(pieces)
            *whole, last = others
            yield from whole
            pieces = [last]
    if rest := b"".join(pieces):
        yield rest


def _decompressed(part: LogPath) -> Iterator[bytes]:
    any_yet = False
    try:
        with part.open("rb") as file:
            magic = file.read(8)
            file.seek(0)
            if magic.startswith(LZF):
                hint = "set spark.eventLog.compression.codec=zstd"
                raise InputError(f"{part} is compressed with LZF, which cannot be read; {hint}")
            for chunk in _chunks(file, magic):
                any_yet = True
                yield chunk
    except DAMAGE as error:
        if not any_yet:
            why = getattr(error, "strerror", None) or str(error) or "it is cut off"
            raise InputError(f"{part} cannot be read: {why}") from None


def _chunks(file: IO[bytes], magic: bytes) -> Iterator[bytes]:
    if magic.startswith(LZ4_BLOCK):
        return _lz4_blocks(file)
    if magic.startswith(SNAPPY):
        return _snappy_blocks(file)
    codec = next((codec for start, codec in CODECS.items() if magic.startswith(start)), None)
    if codec is None:
        return iter(lambda: file.read(CHUNK), b"")
    stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)
    return iter(lambda: stream.read(DECOMPRESSED), b"")


def _lz4_blocks(file: IO[bytes]) -> Iterator[bytes]:
    # lz4-java: magic, method, two lengths, checksum, data
    codec = pa.Codec("lz4_raw")
    while (head := file.read(21)).startswith(LZ4_BLOCK) and len(head) == 21:
        method, length, whole = head[8] & 0xF0, int.from_bytes(head[9:13], "little"), int.from_bytes(head[13:17], "little")
        if not whole:  # the end of one stream; another may follow
            continue
        block = file.read(min(length, LARGEST_BLOCK))
        if len(block) < length or whole > LARGEST_BLOCK:
            return
        yield block if method == 0x10 else codec.decompress(block, whole).to_pybytes()


def _snappy_blocks(file: IO[bytes]) -> Iterator[bytes]:
    codec = pa.Codec("snappy")
    file.read(16)
    while len(head := file.read(4)) == 4:
        if head == SNAPPY[:4]:  # another stream follows
            file.read(12)
            continue
        length = int.from_bytes(head, "big")
        block = file.read(min(length, LARGEST_BLOCK))
        if len(block) < length:
            return
        whole = _varint(block)
        if whole > LARGEST_BLOCK:
            raise OSError(f"a block of {whole:,} bytes is damaged")
        yield codec.decompress(block, whole).to_pybytes()


def _varint(block: bytes) -> int:
    length = shift = 0
    for byte in block[:5]:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return length


# Most seconds in which a run that fails is followed by another; a scheduler takes longer.
RESTARTED_S = 120.0
# What a recording does not hold.
UNKNOWN_OF_RECORDINGS = "the parts of a batch, its tasks and the rows of its state: a recording has none of them"
RECORDING = b'{"kind":"start"'


def read_source(source: str) -> Application:
    """Read an application from a file, a folder, or an address of Spark or Prometheus.

    Raises:
        InputError: It cannot be read, or has no finished batch.
    """
    application = _read_address(source) if source.lower().startswith(WEB) else _read_files(source)
    _check(application)
    return application


def _read_files(source: str) -> Application:
    place = path_of(source)
    if isinstance(place, Path) and RunDirectory(place).recording.is_file():
        return _read_recording(source)
    try:
        rest = (line for line in lines_of(place) if line.strip())
        head = list(itertools.islice(rest, 2))
        if not head:
            raise InputError(f"{source} is not a log that can be read: it is empty")
        lines = itertools.chain(head, rest)
        if any(map(EVENT.match, head)):  # the first line may be torn
            application = EventLog(source).read(lines)
        elif head[0].lstrip().startswith(RECORDING):
            application = _read_recording(source)
        else:
            application = _read_progress(source, lines)
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}") from error
    return application


def _read_address(address: str) -> Application:
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise InputError(f"{address} is not an address: {error}") from None
    login, _, place = parts.netloc.rpartition("@")
    source = urlunsplit(parts._replace(netloc=place))
    query = dict(parse_qsl(parts.query))
    path, _, rest = parts.path.partition("/api/v1")
    site = Site(urlunsplit((parts.scheme, place, path.rstrip("/"), "", "")), unquote(login))
    named = [each for each in rest.split("/") if each]
    if query.keys() & {"query", "step"} or named[:1] in (["query_range"], ["query"]):
        return prometheus.read(source, site, query)
    base, application = spark_page.application_in(site.base, named)
    server = replace(site, base=base)
    try:
        version = server.json("/api/v1/version")
    except NoSuchPage:
        return prometheus.read(source, site, query)
    if not isinstance(version, dict) or "spark" not in version:
        raise InputError(f"{source} is neither Spark's web interface nor Prometheus")
    return spark_page.read(source, server, application)


def _read_progress(source: str, lines: Iterable[bytes]) -> Application:
    application, first = Application(source, "progress of queries"), ""
    reader = ProgressReader(application)
    for objects, torn in _objects(lines):
        unreadable = torn
        for each in objects:
            try:
                reader.read(each)
            except MALFORMED as error:
                first, unreadable = first or _why(error), True
        application.unreadable += unreadable
    reader.finish()
    for query in application.queries.values():  # how a run ends shows only in the time until the next one
        query.ends = {a[-1].end for a, b in itertools.pairwise(query.runs) if b[0].start - a[-1].end > RESTARTED_S}
    if (first or not application.queries) and not any(query.batches for query in application.queries.values()):
        what = f"its first line is neither an event of Spark nor the JSON of a StreamingQueryProgress{first}"
        hint = "give an event log, or such JSON in lines, in an array, or in a driver's log"
        raise InputError(f"{source} is not a log that can be read: {what}; {hint}")
    return application


def _objects(lines: Iterable[bytes]) -> Iterator[tuple[list[Any], bool]]:
    """Yield the progress that ends in a line, and if some is torn."""
    text = ""
    for line in lines:
        if not text and b"{" not in line and b'"batchId"' not in line:
            continue
        text += line.decode(errors="replace") + "\n"
        long = len(text) > LONGEST_PROGRESS
        if not long and b"}" not in line:
            continue
        objects, torn, begin, at = list[Any](), False, 0, 0
        while (at := text.find("{", at)) >= 0:
            try:
                each, end = JSON.raw_decode(text, at)
                if progress := _progress_in(each):
                    torn |= BATCH_ID.search(text, begin, at) is not None
                    objects += progress
                    begin = end
                at = end
            except RecursionError:
                torn, text = True, ""
            except ValueError as error:
                if isinstance(error, json.JSONDecodeError) and not text[error.pos + 1 :].strip() and not long:
                    break  # it may go on
                at += 1
        at = len(text) if at < 0 else at
        torn |= BATCH_ID.search(text, begin, at) is not None
        text = text[at:]
        yield objects, torn
    if BATCH_ID.search(text):
        yield [], True


def _progress_in(each: Mapping[str, Any]) -> list[Any]:
    """Return the progress that an object is, wraps, or has in its message."""
    inner = each.get("progress", each.get("msg"))
    if isinstance(inner, str):
        return [progress for objects, _ in _objects([inner.encode(errors="replace")]) for progress in objects]
    return [inner] if isinstance(inner, dict) else [each] if "batchId" in each else []


def _why(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f": it lacks {error}"
    other = not isinstance(error, ValueError) or isinstance(error, json.JSONDecodeError | UnicodeError)
    return "" if other else f": {error}"


def _check(application: Application) -> None:
    names = [query.name for query in application.queries.values() if not query.batches]
    longest = max((query.unfinished for query in application.queries.values()), default=0.0)
    application.queries = {id: query for id, query in application.queries.items() if query.batches}
    if application.queries:
        why = "it has no finished batch" + (", as with a continuous trigger" if application.continuous else "")
        application.unknown += [f"anything of {name}: {why}" for name in names]
        return
    if application.continuous:
        raise InputError(f"{application.source} has a query with a continuous trigger: advice is for micro-batches")
    if names:
        which = f"{len(names)} streaming queries" if len(names) > 1 else "streaming query"
        first = f"; the first had run for {format_duration(longest)} when the log ended" if longest else ""
        raise InputError(f"{application.source}: no batch of its {which} has finished{first}")
    what = f"{counted(application.jobs, 'job')} and no streaming query" if application.jobs else "no streaming query"
    raise InputError(f"{application.source} has {what}: advice is for streaming jobs")


def _read_recording(source: str) -> Application:
    """Read a run's folder or recording, or raise InputError."""
    if not Path(source).exists():
        raise InputError(f"{source} is a recording of Elastream on another machine: copy it here first")
    recording = Recording.read(source)
    header, begun = recording.header, recording.header.started
    application = Application(source, "recording of Elastream", header.flow, unknown=[UNKNOWN_OF_RECORDINGS])
    application.target = header.target_latency
    application.version = str(header.environment.get("spark", ""))
    application.begun, application.ended = begun, begun + recording.end
    for batch in recording.batches:
        query = application.queries.setdefault(batch.segment, LoggedQuery(batch.segment, batch.segment))
        number = len(query.batches) if math.isnan(batch.number) else int(batch.number)
        start, end = begun + batch.start, begun + batch.end
        # Latencies that are bounds are one for all records, which tell no arrival.
        bound = batch.oldest == batch.newest
        arrived = (math.nan, math.nan) if bound else (end - batch.oldest, end - batch.newest)
        query.add(LoggedBatch(number, start, batch.seconds, batch.records, first=arrived[0], last=arrived[1]))
    if not application.queries:
        raise InputError(f"{source} has no micro-batches: `elastream simulate --calibrate` is for such a recording")
    _add_hosts(application, recording)
    _add_remarks(application, recording)
    return application


def _add_hosts(application: Application, recording: Recording) -> None:
    seconds = np.diff(recording.times, prepend=0.0)
    for lease in recording.hosts:
        ready = lease.ready_at()
        if ready is None:
            continue
        end = math.inf if lease.until is None else application.begun + lease.until
        busy = float(np.nansum(recording.host(lease.host, Metric.CPU) * seconds)) * lease.type.width
        name = f"{lease.host} {ready:g}" if lease.host in application.executors else lease.host
        application.executors[name] = Executor(name, lease.type.width, application.begun + ready, end, lease.note, busy)


def _add_remarks(application: Application, recording: Recording) -> None:
    ending = recording.ending
    if ending is not None and ending.status == "failed":
        for query in application.queries.values():
            query.failure = ending.reason
    application.remarks = often_said(recording.decisions, application.queries)
    application.remarks |= {alarm.said: 1.0 for alarm, cleared in recording.alarms if cleared is None}
