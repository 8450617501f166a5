"""A count with its state in Redis: the baseline of state that stays with its operator.

The thesis compares with Storm over Cassandra (6.7.1). Tasks update a thousand keys at a time, exactly also if a batch
runs again. The server logs to disk every second.
"""

import contextlib
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from elastream.errors import EnvironmentProblem

if TYPE_CHECKING:
    from redis import Redis

SERVER = "redis-server"
AT_ONCE = 1000  # keys of one round trip
START_LIMIT, LOOK = 20.0, 0.05  # seconds for the server to answer, and between checks
# ends a command at the end of standard input: the server dies with its starter
UNTIL_STDIN_ENDS = '"$@" & server=$!; cat >/dev/null; kill "$server"; wait "$server"'


def missing() -> str:
    """Return why Redis is unusable here and the remedy; empty if usable."""
    if shutil.which(SERVER) is None:
        return f"there is no {SERVER} on this machine: apt-get update && apt-get install redis-server"
    if find_spec("redis") is None:
        return "the Python package redis is not installed: pip install 'elastream[outside]'"
    return ""


@dataclass(frozen=True)
class OutsideStore:
    """A running server. url: for clients, with password."""

    url: str

    def client(self) -> "Redis":
        from redis import Redis

        return Redis.from_url(self.url)

    def totals(self) -> dict[str, int]:
        """Return the count by key."""
        with contextlib.closing(self.client()) as client:
            keys = list(client.scan_iter(count=AT_ONCE))
            values = [value for some in _some(keys) for value in client.mget(some)]
        return {key.decode(): _parsed(value)[1] for key, value in zip(keys, values, strict=True)}


@contextlib.contextmanager
def outside_store(folder: Path) -> Iterator[OutsideStore]:
    """Run a server on loopback with files in `folder`. Raises EnvironmentProblem."""
    if problem := missing():
        raise EnvironmentProblem(problem)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    password = secrets.token_hex(16)
    folder.mkdir(parents=True, exist_ok=True)
    settings, log = folder / "redis.conf", folder / "redis.log"
    settings.touch(mode=0o600)
    settings.write_text(
        f"bind 127.0.0.1\nport {port}\nrequirepass {password}\ndir {folder}\nlogfile {log}\nsave ''\n"
        "appendonly yes\nappendfsync everysec\n"
    )
    command = ["sh", "-c", UNTIL_STDIN_ENDS, "sh", SERVER, str(settings)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        store = OutsideStore(f"redis://:{password}@127.0.0.1:{port}/0")
        _await(store, log)
        yield store
    finally:
        process.communicate()


def _await(store: OutsideStore, log: Path) -> None:
    from redis import ConnectionError

    until = time.monotonic() + START_LIMIT
    while True:
        try:
            with contextlib.closing(store.client()) as client:
                client.ping()
                return
        except ConnectionError as error:
            if time.monotonic() > until:
                said = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
                raise EnvironmentProblem(f"{SERVER} did not answer within {START_LIMIT:g} s: {said or error}") from None
        time.sleep(LOOK)


def count_outside(words: DataFrame, store: OutsideStore, checkpoint: Path, name: str) -> StreamingQuery:
    """Start the query `name`, which counts the stream's column `word` without pause."""

    def take(frame: DataFrame, batch: int) -> None:
        counted = frame.groupBy("word").agg(F.count("*").alias("n"))
        done = counted.mapInArrow(lambda batches: _add(batches, store, batch), "keys long")
        done.write.format("noop").mode("overwrite").save()

    writer = words.writeStream.queryName(name).foreachBatch(take).option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="0 seconds").start()


def _add(batches: Iterable[pa.RecordBatch], store: OutsideStore, batch: int) -> Iterator[pa.RecordBatch]:
    """Add a task's counts in `batch`; yield the number of keys."""
    keys = 0
    with contextlib.closing(store.client()) as client:
        for rows in batches:
            words, counts = rows.column("word").to_pylist(), rows.column("n").to_pylist()
            for some in _some(list(zip(words, counts, strict=True))):
                known = client.mget([word for word, _ in some])
                client.mset({word: added(value, batch, n) for (word, n), value in zip(some, known, strict=True)})
            keys += rows.num_rows
    yield pa.RecordBatch.from_pydict({"keys": [keys]})


def added(value: bytes | str | None, batch: int, n: int) -> str:
    """Return a key's total after `batch`, with the one before for repeated tasks."""
    last, total, before = _parsed(value)
    base = before if last == batch else total
    return f"{batch}:{base + n}:{base}"


def _parsed(value: bytes | str | None) -> tuple[int, int, int]:
    """Return (batch, total after it, total before it) of a value."""
    if value is None:
        return -1, 0, 0
    last, total, before = (value.decode() if isinstance(value, bytes) else value).split(":")
    return int(last), int(total), int(before)


def _some(values: list[Any]) -> Iterator[list[Any]]:
    return (values[first : first + AT_ONCE] for first in range(0, len(values), AT_ONCE))
