"""External signals: files, HTTP addresses and Kafka topics, polled by threads. If a poll fails, the last reading ages."""

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from elastream.dataflow.signals import Feed, Signal, SignalKind, SignalReading, Signals, SignalValue
from elastream.errors import DataflowError, ElastreamError, InputError, in_one_line, needed_by
from elastream.guards.document import GuardDocument

# bytes of an answer that are read: a signal is one value
LONGEST = 1_000_000
# seconds; httpx's default, named because a signal's age depends on it
TIME_OUT = 5.0
# whole numbers beyond it are infinite as floats
LARGEST = 1 << 1000
# seconds between polls: control looks once a second
LEAST_EVERY = 0.05

log = logging.getLogger(__name__)

# answer of a source, and its age in seconds
Answer: TypeAlias = tuple[bytes, float]


class Reader(Protocol):
    """Open source. A failed poll raises ElastreamError or OSError."""

    def poll(self) -> Answer | None:
        """Return the present answer, None if nothing is new."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PolledPlace:
    kind: str
    place: str
    servers: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.place}"


class Pollers:
    """External signals of one run; `clock` returns its seconds from any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._readings: dict[str, SignalReading] = {}
        self._followed: dict[PolledPlace, tuple[Signal, ...]] = {}
        self._threads: dict[PolledPlace, Polling] = {}

    def follow(self, signals: Iterable[Signal]) -> None:
        """Poll the feeds of these signals only; earlier ones keep their reading.

        Raises:
            DataflowError: A feed cannot be polled; nothing changes.
        """
        sources: dict[PolledPlace, tuple[Signal, ...]] = {}
        every: dict[PolledPlace, float] = {}
        for signal in signals:
            if (feed := signal.feed) is not None:
                source = source_of(signal.name, feed)
                sources[source] = (*sources.get(source, ()), signal)
                every[source] = min(every.get(source, feed.every), feed.every)
        current = {_identity(signal) for followed in sources.values() for signal in followed}
        with self._lock:
            before = [signal for followed in self._followed.values() for signal in followed]
            for signal in before:
                if _identity(signal) not in current:
                    self._readings.pop(signal.name, None)
            self._followed = sources
        for source in [source for source in self._threads if source not in sources]:
            self._threads.pop(source).stop()
        for source, seconds in every.items():
            if (running := self._threads.get(source)) is None:
                self._threads[source] = Polling(source, seconds, self._store)
            else:
                running.look(seconds)

    def newest(self) -> Signals:
        with self._lock:
            return dict(self._readings)

    def close(self) -> None:
        self.follow(())

    def _store(self, source: PolledPlace, answer: bytes, ago: float) -> str:
        at, problems = self._clock() - ago, []
        with self._lock:
            for signal in self._followed.get(source, ()):
                value, problem = value_of(answer, signal.kind, signal.feed.field if signal.feed else "")
                self._readings[signal.name] = SignalReading(value, at)
                if problem:
                    problems.append(f"signal {signal.name}: {problem}")
        return "; ".join(problems)


class Polling:
    """Thread that polls one source and logs each trouble once."""

    def __init__(self, source: PolledPlace, every: float, store: Callable[[PolledPlace, bytes, float], str]) -> None:
        self._source, self._store = source, store
        self._every = max(every, LEAST_EVERY)
        self._stopped = threading.Event()
        self._trouble = ""
        threading.Thread(target=self._run, name=f"signals {source}", daemon=True).start()

    def look(self, every: float) -> None:
        """Change the interval (seconds) from the next poll on."""
        self._every = max(every, LEAST_EVERY)

    def stop(self) -> None:
        """Stop without waiting; a late answer is ignored."""
        self._stopped.set()

    def _run(self) -> None:
        reader: Reader | None = None
        while not self._stopped.is_set():
            begun = time.monotonic()
            try:
                reader = reader or READERS[self._source.kind](self._source)
                answer = reader.poll()
                if answer is not None and not self._stopped.is_set():
                    self._tell(self._store(self._source, *answer))
                elif answer is None:
                    self._tell("")
            except ElastreamError as error:  # as expected where nothing is there to be read
                self._tell(str(error))
            except Exception as error:  # a thread of a signal ends only with the run
                self._tell(in_one_line(error))
                if reader is not None:
                    reader.close()
                    reader = None
            self._stopped.wait(max(0.0, self._every - (time.monotonic() - begun)))
        if reader is not None:
            reader.close()

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble:
            if trouble:
                log.warning("%s: %s", self._source, trouble)
            else:
                log.info("%s: answers again", self._source)
        self._trouble = trouble


class FileReader:
    """File, read whole at each poll: replace it atomically."""

    def __init__(self, source: PolledPlace) -> None:
        self._path = Path(source.place)

    def poll(self) -> Answer:
        try:
            with self._path.open("rb") as file:
                return _bounded(file.read(LONGEST + 1)), 0.0
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}") from None

    def close(self) -> None:
        """Do nothing."""


class HttpReader:
    """Address; any status but 2xx fails. Ignores the environment's proxies and credentials."""

    def __init__(self, source: PolledPlace) -> None:
        import httpx  # of an extra; `source_of` has checked that it is there

        self._address, self._failure = source.place, httpx.HTTPError
        self._client = httpx.Client(timeout=TIME_OUT, trust_env=False)

    def poll(self) -> Answer:
        content = b""
        try:
            with self._client.stream("GET", self._address) as answer:
                if not answer.is_success:
                    raise InputError(f"answers {answer.status_code}")
                for part in answer.iter_bytes():
                    content = _bounded(content + part)
        except self._failure as error:
            raise InputError(f"does not answer: {in_one_line(error)}") from None
        return content, 0.0

    def close(self) -> None:
        self._client.close()


class KafkaReader:
    """Topic: its newest message, as old as the timestamp."""

    def __init__(self, source: PolledPlace) -> None:
        import kafka  # of an extra; `source_of` has checked that it is there

        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=source.servers.split(","),
            group_id=None,
            enable_auto_commit=False,
            request_timeout_ms=round(TIME_OUT * 1000),
        )
        self._topic, self._newest = source.place, -1
        partitions = self._consumer.partitions_for_topic(self._topic)
        if not partitions:
            self._consumer.close()
            raise InputError(f"there is no topic {self._topic!r}")
        mine = [kafka.TopicPartition(self._topic, number) for number in sorted(partitions)]
        self._consumer.assign(mine)
        first = self._consumer.beginning_offsets(mine)
        for each, end in self._consumer.end_offsets(mine).items():
            self._consumer.seek(each, max(first[each], end - 1))

    def poll(self) -> Answer | None:
        parts = self._consumer.poll(timeout_ms=100).values()
        messages = [each for part in parts for each in part if each.value is not None]
        if not messages:
            return None
        newest = max(messages, key=lambda each: each.timestamp)
        if newest.timestamp < self._newest:
            return None
        self._newest = newest.timestamp
        return _bounded(newest.value), max(0.0, time.time() - newest.timestamp / 1000)

    def close(self) -> None:
        self._consumer.close()


READERS: Mapping[str, Callable[[PolledPlace], Reader]] = {"file": FileReader, "http": HttpReader, "kafka": KafkaReader}
# library, of an extra, that reads a kind of feed
CLIENTS = {"http": "httpx", "kafka": "kafka"}


def value_of(answer: bytes, kind: SignalKind, field: str = "") -> tuple[SignalValue | None, str]:
    """Return the value in an answer, or None and the reason.

    Args:
        field: Dotted path in a JSON object; empty: the whole answer.
    """
    try:
        text = answer.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return None, f"{_short(answer)} is not UTF-8 text"
    value: Any
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    for name in field.split(".") if field else ():
        if not isinstance(value, Mapping) or name not in value:
            return None, f"what is read has no field {field!r}"
        value = value[name]
    if kind is SignalKind.TEXT and not field:
        value = value if isinstance(value, str) else text
    if kind is SignalKind.NUMBER and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < LARGEST else math.inf
    if not isinstance(value, int | float | str) or not kind.admits(value):
        return None, f"{_short(value)} is not a {kind}"
    return value, ""


def source_of(signal: str, feed: Feed) -> PolledPlace:
    """Return where `signal` is polled. Raises DataflowError if `feed` cannot be polled."""
    if feed.kind not in READERS:
        raise DataflowError(f"signal {signal!r}: {feed.kind!r} cannot be polled (there are: {', '.join(READERS)})")
    if not feed.place:
        raise DataflowError(f"signal {signal!r}: it does not say where it comes from")
    if feed.kind == "http" and not feed.place.startswith(("http://", "https://")):
        raise DataflowError(f"signal {signal!r}: {feed.place!r} is not an address such as http://host/path")
    if feed.kind == "kafka" and not feed.servers:
        raise DataflowError(f"signal {signal!r}: topic {feed.place!r} has no servers, such as host:9092")
    if feed.kind in CLIENTS:
        with needed_by(f"signal {signal!r}"):
            import_module(CLIENTS[feed.kind])
    return PolledPlace(feed.kind, feed.place, feed.servers)


def _identity(signal: Signal) -> tuple[str, SignalKind, Feed | None]:
    return signal.name, signal.kind, signal.feed


def _bounded(content: bytes) -> bytes:
    if len(content) > LONGEST:
        raise InputError(f"says more than {LONGEST:,} bytes")
    return content


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def pollable(document: GuardDocument) -> GuardDocument:
    """Return `document`, or raise ElastreamError if a signal cannot be polled."""
    for signal in document.signals:
        if signal.feed is not None:
            source_of(signal.name, signal.feed)
    return document


class ReadOnce:
    """External signals that are read once and stay constant."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._values: dict[str, SignalValue | None] = {}

    def follow(self, signals: Iterable[Signal]) -> None:
        for signal in signals:
            if (feed := signal.feed) is None or signal.name in self._values:
                continue
            source = source_of(signal.name, feed)
            try:
                with closing(READERS[source.kind](source)) as reader:
                    answer = reader.poll()
            except (ElastreamError, OSError) as error:
                raise InputError(f"signal {signal.name!r}: {source} {error}") from None
            value, problem = (None, "") if answer is None else value_of(answer[0], signal.kind, feed.field)
            if problem:
                raise InputError(f"signal {signal.name!r}: {source}: {problem}")
            self._values[signal.name] = value

    def newest(self) -> Signals:
        return {name: SignalReading(value, self._now()) for name, value in self._values.items()}

    def close(self) -> None:
        """Do nothing."""
