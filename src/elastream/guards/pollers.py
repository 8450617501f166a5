"""External signals: files, HTTP addresses and Kafka topics, polled by threads of their own.

The control loop reads what was last heard and never waits for anybody; it imports none of the clients. What a guard makes
of a source that answers no more is the signal's staleness: a failed poll leaves the last reading to age.
"""

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

LONGEST = 1_000_000
"""Bytes of an answer that are read: a signal is one value."""
TIME_OUT = 5.0
"""Seconds that an address has to answer: httpx's own default, named here because the age of a signal depends on it."""
LARGEST = 1 << 1000
"""Whole numbers beyond it are no finite number."""
LEAST_EVERY = 0.05
"""Least seconds between polls: control looks once a second, so that more often serves nobody."""

log = logging.getLogger(__name__)

Heard: TypeAlias = tuple[bytes, float]
"""What a source said, and how many seconds ago that was so."""


class Reader(Protocol):
    """One source under way. Raises ElastreamError or OSError where a poll fails."""

    def poll(self) -> Heard | None:
        """What it says now; None: nothing new."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


@dataclass(frozen=True, slots=True)
class PolledPlace:
    """What is polled at once for all signals that come from there."""

    kind: str
    place: str
    servers: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.place}"


class Pollers:
    """The external signals of one run. clock: the time of the run, in seconds, from any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._readings: dict[str, SignalReading] = {}
        self._followed: dict[PolledPlace, tuple[Signal, ...]] = {}
        self._threads: dict[PolledPlace, Polling] = {}

    def follow(self, signals: Iterable[Signal]) -> None:
        """Poll the feeds of these signals and no others; those polled before keep their newest reading.

        Raises DataflowError for a feed that cannot be polled, EnvironmentProblem where its client is not installed; the
        feeds followed before are then polled as before.
        """
        wanted: dict[PolledPlace, tuple[Signal, ...]] = {}
        every: dict[PolledPlace, float] = {}
        for signal in signals:
            if (feed := signal.feed) is not None:
                source = source_of(signal.name, feed)
                wanted[source] = (*wanted.get(source, ()), signal)
                every[source] = min(every.get(source, feed.every), feed.every)
        kept = {_what(signal) for followed in wanted.values() for signal in followed}
        with self._lock:
            before = [signal for followed in self._followed.values() for signal in followed]
            for signal in before:
                if _what(signal) not in kept:
                    self._readings.pop(signal.name, None)
            self._followed = wanted
        for source in [source for source in self._threads if source not in wanted]:
            self._threads.pop(source).stop()
        for source, seconds in every.items():
            if (running := self._threads.get(source)) is None:
                self._threads[source] = Polling(source, seconds, self._heard)
            else:
                running.look(seconds)

    def newest(self) -> Signals:
        """The newest reading of each signal; one that was never heard of is left out."""
        with self._lock:
            return dict(self._readings)

    def close(self) -> None:
        """Poll nothing any more."""
        self.follow(())

    def _heard(self, source: PolledPlace, said: bytes, ago: float) -> str:
        """Keep what was heard; returns what is wrong with it."""
        taken, problems = self._clock() - ago, []
        with self._lock:
            for signal in self._followed.get(source, ()):
                value, problem = value_of(said, signal.kind, signal.feed.field if signal.feed else "")
                self._readings[signal.name] = SignalReading(value, taken)
                if problem:
                    problems.append(f"signal {signal.name}: {problem}")
        return "; ".join(problems)


class Polling:
    """A thread that polls one source. It tells a trouble once, and its end."""

    def __init__(self, source: PolledPlace, every: float, heard: Callable[[PolledPlace, bytes, float], str]) -> None:
        self._source, self._heard = source, heard
        self._every = max(every, LEAST_EVERY)
        self._stopped = threading.Event()
        self._trouble = ""
        threading.Thread(target=self._run, name=f"signals {source}", daemon=True).start()

    def look(self, every: float) -> None:
        """Poll every so many seconds from the next poll on."""
        self._every = max(every, LEAST_EVERY)

    def stop(self) -> None:
        """Poll no more; a poll under way is not waited for, and what it hears is not kept."""
        self._stopped.set()

    def _run(self) -> None:
        reader: Reader | None = None
        while not self._stopped.is_set():
            begun = time.monotonic()
            try:
                reader = reader or READERS[self._source.kind](self._source)
                said = reader.poll()
                if said is not None and not self._stopped.is_set():
                    self._tell(self._heard(self._source, *said))
                elif said is None:
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
    """A file, read whole at each poll: replace it atomically, or a poll may read half of it."""

    def __init__(self, source: PolledPlace) -> None:
        self._path = Path(source.place)

    def poll(self) -> Heard:
        """Its content, which is so now."""
        try:
            with self._path.open("rb") as file:
                return _bounded(file.read(LONGEST + 1)), 0.0
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}") from None

    def close(self) -> None:
        """Nothing is held."""


class HttpReader:
    """An address; any status but 2xx is a failed poll. Proxies and credentials of the environment are not used."""

    def __init__(self, source: PolledPlace) -> None:
        import httpx  # of an extra; `source_of` has checked that it is there

        self._address, self._failure = source.place, httpx.HTTPError
        self._client = httpx.Client(timeout=TIME_OUT, trust_env=False)

    def poll(self) -> Heard:
        """What it answers now."""
        said = b""
        try:
            with self._client.stream("GET", self._address) as answer:
                if not answer.is_success:
                    raise InputError(f"answers {answer.status_code}")
                for part in answer.iter_bytes():
                    said = _bounded(said + part)
        except self._failure as error:
            raise InputError(f"does not answer: {in_one_line(error)}") from None
        return said, 0.0

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


class KafkaReader:
    """A topic: its newest message, of all partitions, as old as its timestamp says."""

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

    def poll(self) -> Heard | None:
        """The newest of the messages that came since the last poll."""
        found = [each for part in self._consumer.poll(timeout_ms=100).values() for each in part if each.value is not None]
        if not found:
            return None
        newest = max(found, key=lambda each: each.timestamp)
        if newest.timestamp < self._newest:
            return None
        self._newest = newest.timestamp
        return _bounded(newest.value), max(0.0, time.time() - newest.timestamp / 1000)

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()


READERS: Mapping[str, Callable[[PolledPlace], Reader]] = {"file": FileReader, "http": HttpReader, "kafka": KafkaReader}
CLIENTS = {"http": "httpx", "kafka": "kafka"}
"""The library, of an extra, that reads a kind of feed."""


def value_of(said: bytes, kind: SignalKind, field: str = "") -> tuple[SignalValue | None, str]:
    """The value in what a source said, or None and why there is none.

    field: names down to it in a JSON object, joined with `.`; empty: all of it, JSON or plain text.
    """
    text = said.decode("utf-8", "replace").strip()
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
    """Where the signal named `signal` comes from.

    Raises DataflowError where that cannot be polled, EnvironmentProblem where the client for it is not installed.
    """
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


def _what(signal: Signal) -> tuple[str, SignalKind, Feed | None]:
    """What a reading is of; when it is stale is not part of that."""
    return signal.name, signal.kind, signal.feed


def _bounded(said: bytes) -> bytes:
    if len(said) > LONGEST:
        raise InputError(f"says more than {LONGEST:,} bytes")
    return said


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def pollable(document: GuardDocument) -> GuardDocument:
    """`document`; raises ElastreamError where a signal of it comes from where nothing can be polled."""
    for signal in document.signals:
        if signal.feed is not None:
            source_of(signal.name, signal.feed)
    return document


class ReadOnce:
    """External signals that are read when they are first followed, and stay as they were then. now: time of the run."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._values: dict[str, SignalValue | None] = {}

    def follow(self, signals: Iterable[Signal]) -> None:
        """Read those that were not read yet. Raises InputError for a place that does not answer, or with another value."""
        for signal in signals:
            if (feed := signal.feed) is None or signal.name in self._values:
                continue
            source = source_of(signal.name, feed)
            try:
                with closing(READERS[source.kind](source)) as reader:
                    said = reader.poll()
            except (ElastreamError, OSError) as error:
                raise InputError(f"signal {signal.name!r}: {source} {error}") from None
            value, problem = (None, "") if said is None else value_of(said[0], signal.kind, feed.field)
            if problem:
                raise InputError(f"signal {signal.name!r}: {source}: {problem}")
            self._values[signal.name] = value

    def newest(self) -> Signals:
        """What was read, as if it were so now."""
        return {name: SignalReading(value, self._now()) for name, value in self._values.items()}

    def close(self) -> None:
        """Nothing is held."""
