"""Loads state ahead of its move, by jobs in threads of their own: a job blocks its thread until its tasks have ended."""

import logging
import queue
from collections.abc import Callable
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from elastream.core.alarm import AlarmedThread, Alarms
from elastream.core.task_id import TaskId
from elastream.spark.jvm.executors import Location

log = logging.getLogger(__name__)

LOADERS = 4
"""Most concurrent jobs that load state ahead."""


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """State of an operator's partitions loaded by one job, each at its place. keep: batches still run at the old place."""

    operator: str
    keep: bool
    places: dict[TaskId, Location]


class Loaders:
    """Executes `load` for queued loads, in up to LOADERS threads. A thread that dies raises an alarm in `alarms`."""

    def __init__(self, load: Callable[[Load], None], alarms: Alarms) -> None:
        self._load, self._alarms = load, alarms
        self._waiting: queue.SimpleQueue[Load | None] = queue.SimpleQueue()
        self._threads: list[AlarmedThread] = []

    def put(self, load: Load) -> None:
        """Queue a load; it starts when a thread is free."""
        self._waiting.put(load)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) < LOADERS:
            thread = AlarmedThread(self._alarms, f"load-state-{len(self._threads)}", self._work)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Start no further load. A running one is not awaited: without an executor it would never end."""
        for _ in self._threads:
            self._waiting.put(None)

    def _work(self) -> None:
        while (load := self._waiting.get()) is not None:
            try:
                self._load(load)
            except (Py4JError, PySparkException, OSError):
                # A query or session that ends meanwhile raises; the migration continues without the load.
                log.warning("state of %r was not loaded ahead of its move", load.operator, exc_info=True)
