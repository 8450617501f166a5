"""Files of state on a file system that only Spark's driver reaches (`StateListing.java`)."""

import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pyspark.sql import SparkSession

from elastream.errors import EnvironmentProblem
from elastream.spark.jvm.driver_side import HERE, DriverSide, java_session
from elastream.spark.telemetry.state_files import (
    NAN,
    Listed,
    LocalDisk,
    StateDisk,
    local_path,
    named_files,
    shared_and_rows,
)

log = logging.getLogger(__name__)

# Shortest time between two listings (seconds): object stores charge for each.
PAUSE_S = 60.0


def disk_of(spark: SparkSession, root: str) -> StateDisk | None:
    """Return the files of state at `root`, an address of Hadoop; None if this Spark lists none."""
    if (local := local_path(root)) is not None:
        return LocalDisk(local)
    try:
        return ListedFiles(spark, root)
    except EnvironmentProblem as problem:
        log.warning("bytes of state are unknown: %s", problem)
        return None


class ListedFiles(DriverSide):
    """Implements StateDisk with listings that a thread of the driver's JVM makes, at most one in `pause` seconds."""

    current: ClassVar[bool] = False

    def __init__(self, spark: SparkSession, root: str, pause: float = PAUSE_S) -> None:
        super().__init__(spark, HERE / "StateListing.java")
        self._object.begin(java_session(spark).sessionState().newHadoopConf(), root, int(pause * 1e3))
        self._listing, self._fault = 0, ""
        self._folders: Mapping[str, Sequence[Listed]] = {}
        self._files: Mapping[str, Sequence[str]] = {}  # bytes, milliseconds and metadata by path

    def look(self) -> int:
        if lines := self.ask("look", self._listing):
            ((number, fault), *files), before = lines, self._folders
            self._listing = int(number)
            if fault and fault != self._fault:
                log.warning("bytes of state are not current: %s", fault)
            self._fault = fault
            if fault:
                return self._listing
            self._files = {path: about for path, *about in files}
            folders: dict[str, list[Listed]] = {folder: [] for folder in before}
            for each in named_files(self._files):
                folders.setdefault(each[2].rpartition("/")[0], []).append(each)
            self._folders = folders
        return self._listing

    def files(self, folder: str) -> Sequence[Listed]:
        return self._folders.get(folder, ())

    def modified(self, path: str) -> float:
        return int(self._files[path][1]) / 1e3 if path in self._files else 0.0

    def size_and_rows(self, path: str) -> tuple[float, float]:
        if path not in self._files:
            return NAN, NAN
        size, _, metadata = self._files[path]
        if not path.endswith(".zip"):
            return float(size), NAN
        shared, rows = shared_and_rows(metadata)
        return float(size) + shared, rows
