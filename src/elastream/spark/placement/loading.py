"""Threads that load state ahead of its move: a job of Spark's blocks until all of its tasks have, and migrations go on."""

import logging
import queue
from collections.abc import Callable
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from elastream.model.action import TaskId
from elastream.model.alarms import AlarmedThread, Alarms
from elastream.spark.jvm.executors import Location

__all__ = ["Load", "Loaders"]

log = logging.getLogger(__name__)

LOADERS = 4
"""States that are loaded at a time, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """States that are loaded by one job: an operator's, each at its place. keep: batches do not go there yet."""

    operator: str
    keep: bool
    places: dict[TaskId, Location]


class Loaders:
    """Calls `load` for what is put, in up to LOADERS threads. A thread that dies sounds an alarm of `alarms`."""

    def __init__(self, load: Callable[[Load], None], alarms: Alarms) -> None:
        self._load, self._alarms = load, alarms
        self._waiting: queue.SimpleQueue[Load | None] = queue.SimpleQueue()
        self._threads: list[AlarmedThread] = []

    def put(self, load: Load) -> None:
        """Load it as soon as a thread is free."""
        self._waiting.put(load)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) < LOADERS:
            thread = AlarmedThread(self._alarms, f"load-state-{len(self._threads)}", self._work)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Begin no further load. One under way is not waited for: where no executor is left it would never end."""
        for _ in self._threads:
            self._waiting.put(None)

    def _work(self) -> None:
        while (load := self._waiting.get()) is not None:
            try:
                self._load(load)
            except (Py4JError, PySparkException, OSError):
                # A query or a session that ends meanwhile answers with an error; the migration goes on without the load.
                log.warning("state of %r was not loaded ahead of its move", load.operator, exc_info=True)
