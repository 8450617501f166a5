"""Watches of sources without Spark: what waits behind the checkpoint of a query, and since when."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from elastream.core.wording import counted
from elastream.errors import EnvironmentProblem, in_one_line, needed_by
from elastream.freshness.planner import Waiting
from elastream.freshness.wakes import SourceSpec
from elastream.recording.file_log import FileLog
from elastream.recording.paths import AnyPath, path_of
from elastream.spark.worker.composition import latest_batch, offsets_of

# Kafka's answer must come within this time.
KAFKA_TIMEOUT_S = 10.0


class Look(NamedTuple):
    """Amount that waits at a source, in bytes of files or records of topics.

    Attributes:
        oldest: Arrival of the oldest record (epoch seconds); inf if nothing waits, -inf if unknown.
        arrived: Amount that arrived since the look before; 0 at the first.
    """

    waiting: float
    oldest: float
    arrived: float


class SourceWatch(Protocol):
    """A source that is watched."""

    def look(self) -> Look:
        """Return what waits now. Raises OSError if the source cannot be read."""
        ...

    def begin_run(self) -> None:
        """Remember what the last look showed, for a run that starts."""
        ...

    def end_run(self) -> str:
        """Leave out what the run has not read until it changes; return new ones, such as "2 files"."""
        ...

    def close(self) -> None: ...


def committed_offset(checkpoint: AnyPath, number: int) -> Mapping[str, Any]:
    """Return the end offset of source `number` in the newest committed batch; empty before the first."""
    with suppress(OSError, ValueError, IndexError):
        return offsets_of(checkpoint, latest_batch(checkpoint, "commits"))[number]
    return {}


class FileWatch:
    """Files of a folder. A file arrives when it gets its name there, the time of its last change of status."""

    def __init__(self, spec: SourceSpec) -> None:
        self._checkpoint, self._number = path_of(spec.checkpoint), spec.number
        self._place = spec.place
        self._log = FileLog(self._checkpoint / "sources" / str(spec.number), spec.place, spec.names)
        self._before: Mapping[str, int] | None = None  # times of the last change of status, by file
        self._offered: tuple[Mapping[str, int], int] = {}, -1  # the same, and the newest entry then
        self._passed_over: Mapping[str, int] = {}

    def look(self) -> Look:
        if not os.path.exists(self._place) and not any(sign in self._place for sign in "*?[{"):
            raise OSError(f"there is no {self._place}")
        self._log.refresh()
        files = {file.path for file in self._log.waiting() or ()}
        committed = int(committed_offset(self._checkpoint, self._number).get("logOffset", -1))
        files |= {file.path for file in self._log.files(committed, self._log.newest)}  # planned, not committed
        amount, oldest, arrived = 0.0, math.inf, 0.0
        changed = dict[str, int]()
        for path in files:
            with suppress(OSError):  # removed meanwhile
                status = os.stat(path)
                changed[path] = status.st_ctime_ns
                if self._passed_over.get(path) == changed[path]:
                    continue
                size = max(1, status.st_size)
                amount, oldest = amount + size, min(oldest, status.st_ctime)
                arrived += size if self._before is not None and path not in self._before else 0.0
        self._before = changed
        return Look(amount, oldest, arrived)

    def begin_run(self) -> None:
        self._offered = self._before or {}, self._log.newest

    def end_run(self) -> str:
        offered, entry = self._offered
        self._log.refresh()
        # Spark reads the oldest first: a job that ends early leaves newer files than those that it read.
        newest = max((file.modified for file in self._log.files(entry, self._log.newest)), default=math.inf)
        earlier, left = self._passed_over, [file for file in self._log.waiting() or () if file.path in offered]
        passed_over = {file.path for file in left if file.modified < newest}
        passed_over |= {file.path for file in left if earlier.get(file.path) == offered[file.path]}
        self._passed_over = {path: offered[path] for path in passed_over}
        new = len(self._passed_over.items() - earlier.items())
        return counted(new, "file") if new else ""

    def close(self) -> None: ...


def bytes_read(spec: SourceSpec, since: int) -> float:
    """Return the bytes that a file source has read behind entry `since` of its log."""
    log = FileLog(path_of(spec.checkpoint) / "sources" / str(spec.number), spec.place, spec.names)
    log.refresh()
    sizes = (file.bytes for file in log.files(since, log.newest))
    return math.fsum(max(1.0, size) for size in sizes if not math.isnan(size))


class KafkaWatch:
    """Topics. A record arrives between the poll that shows it and the poll before, which counts."""

    def __init__(
        self, spec: SourceSpec, client: "OffsetReader | None" = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._checkpoint, self._number = path_of(spec.checkpoint), spec.number
        self._topics = _split_names(spec.place)
        self._client = client or kafka_client(spec)
        # (time of the poll before, end offsets), from the oldest that a committed batch has not read
        self._polls: deque[tuple[float, Mapping[str, int]]] = deque()
        self._polled = -math.inf
        self._ends: Mapping[str, int] | None = None
        self._read: Mapping[str, int] = {}
        self._offered: tuple[Mapping[str, int], Mapping[str, int]] = {}, {}  # ends, and what was read
        self._passed_over: Mapping[str, int] = {}  # ends

    def look(self) -> Look:
        before, now = self._polled, self._clock()
        first, ends = self._client(self._topics)
        self._polled = now
        if not self._polls or self._polls[-1][1] != ends:
            self._polls.append((before, ends))
        self._read = {**first, **self._committed()}
        self._passed_over = {part: at for part, at in self._passed_over.items() if at <= ends.get(part, 0)}
        read = {part: max(at, self._passed_over.get(part, 0)) for part, at in self._read.items()}
        while self._polls and not _count_beyond(self._polls[0][1], read):
            self._polls.popleft()
        arrived, self._ends = (0.0 if self._ends is None else _count_beyond(ends, self._ends)), ends
        return Look(_count_beyond(ends, read), self._polls[0][0] if self._polls else math.inf, arrived)

    def _committed(self) -> Mapping[str, int]:
        offset = committed_offset(self._checkpoint, self._number)
        return {f"{topic}/{part}": int(at) for topic, parts in offset.items() for part, at in parts.items()}

    def begin_run(self) -> None:
        self._offered = self._ends or {}, self._read

    def end_run(self) -> str:
        (ends, before), earlier = self._offered, self._passed_over
        read = {**before, **self._committed()}
        stuck = {part: at for part, at in read.items() if at == before.get(part) and at < ends.get(part, 0)}
        self._passed_over = {part: ends[part] for part in stuck}
        new = sum(max(0, ends[part] - max(at, earlier.get(part, 0))) for part, at in stuck.items())
        return counted(new, "record") if new else ""

    def close(self) -> None:
        with suppress(Exception):
            self._client.close()  # type: ignore[attr-defined]


def _split_names(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


OffsetReader = Callable[[Sequence[str]], tuple[Mapping[str, int], Mapping[str, int]]]


def _count_beyond(ends: Mapping[str, int], read: Mapping[str, int]) -> float:
    return float(sum(max(0, end - read.get(part, 0)) for part, end in ends.items()))


class KafkaOffsets:
    """First and end offsets of topics, by "topic/partition", from a plain client."""

    def __init__(self, servers: str) -> None:
        import kafka  # of an extra

        self._kafka = kafka
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=_split_names(servers),
            group_id=None,
            enable_auto_commit=False,
            request_timeout_ms=round(KAFKA_TIMEOUT_S * 1e3),
        )

    def __call__(self, topics: Sequence[str]) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return (first, end) offsets. Raises OSError if brokers do not answer or a topic is missing."""
        try:
            parts_of = {topic: self._consumer.partitions_for_topic(topic) for topic in topics}
            if missing := [topic for topic, parts in parts_of.items() if not parts]:
                raise OSError(f"Kafka has no topic {missing[0]!r}")
            parts = [self._kafka.TopicPartition(topic, part) for topic in topics for part in sorted(parts_of[topic])]
            first, ends = self._consumer.beginning_offsets(parts), self._consumer.end_offsets(parts)
        except self._kafka.errors.KafkaError as error:
            raise OSError(f"Kafka does not say what waits: {in_one_line(error)}") from error
        return _named(first), _named(ends)

    def close(self) -> None:
        self._consumer.close()


def _named(offsets: Mapping[Any, int]) -> Mapping[str, int]:
    return {f"{part.topic}/{part.partition}": int(at) for part, at in offsets.items()}


def kafka_client(spec: SourceSpec) -> OffsetReader:
    with needed_by("freshness with a Kafka source"):
        import kafka  # of an extra
    try:
        return KafkaOffsets(spec.servers)
    except kafka.errors.KafkaError as error:
        raise EnvironmentProblem(f"Kafka at {spec.servers} cannot be watched: {in_one_line(error)}") from error


def watch_of(spec: SourceSpec) -> SourceWatch:
    """Return the watch of a source. Raises ElastreamError if it cannot be watched."""
    return KafkaWatch(spec) if spec.kind == "kafka" else FileWatch(spec)


class Watched:
    """The sources of a job together; amounts become records by what earlier runs read."""

    def __init__(self, specs: Sequence[SourceSpec], make: Callable[[SourceSpec], SourceWatch] = watch_of) -> None:
        self.specs = tuple(specs)
        self._watches = {spec.name: make(spec) for spec in specs}
        self._exact = {spec.name for spec in specs if spec.kind == "kafka"}
        self._rows: dict[str, float] = {}
        self._amounts: dict[str, float] = {}

    def look(self) -> tuple[Waiting, float]:
        """Return what waits, and the records since the look before. Raises OSError if a source is unreadable."""
        looks = {name: watch.look() for name, watch in self._watches.items()}
        waiting = math.fsum(look.waiting * self._records_per_unit(name) for name, look in looks.items())
        arrived = math.fsum(look.arrived * self._records_per_unit(name) for name, look in looks.items())
        return Waiting(waiting, min((look.oldest for look in looks.values()), default=math.inf)), arrived

    def record_run(self, rows: Mapping[str, float], amounts: Mapping[str, float]) -> None:
        """Learn from a run how many records an amount holds."""
        for name, amount in amounts.items():
            if name in self._watches and amount > 0 and rows.get(name, 0) > 0:
                self._rows[name] = self._rows.get(name, 0.0) + rows[name]
                self._amounts[name] = self._amounts.get(name, 0.0) + amount

    def begin_run(self) -> None:
        for watch in self._watches.values():
            watch.begin_run()

    def end_run(self) -> str:
        return " and ".join(filter(None, [watch.end_run() for watch in self._watches.values()]))

    def _records_per_unit(self, name: str) -> float:
        if name in self._exact or not self._amounts.get(name):
            return 1.0
        return self._rows[name] / self._amounts[name]

    @property
    def records_per_unit(self) -> Mapping[str, float]:
        """Measured records per unit of amount, by source."""
        return {name: self._records_per_unit(name) for name in self._amounts}

    def restore(self, records_per_unit: Mapping[str, float]) -> None:
        """Continue with what an earlier controller measured."""
        for name, ratio in records_per_unit.items():
            if name in self._watches and ratio > 0:
                self._rows[name], self._amounts[name] = ratio, 1.0

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()
