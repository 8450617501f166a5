"""Files that a limited file source holds back."""

import math
import os
import re
from dataclasses import replace
from pathlib import Path

from elastream.recording.file_log import FileLog
from elastream.spark.telemetry.batches import SourceLimit, SourceProgress
from elastream.spark.telemetry.state_files import local_path

NAN = float("nan")


class HeldFiles:
    """Files that a file source with a limit still holds back, which no progress reports.

    A file that a look does not list comes later, whatever its modification time. Files of the first look count from `since`
    at the earliest.
    """

    def __init__(self, log: FileLog, limit: SourceLimit, since: float) -> None:
        self._log, self._limit, self._last_look = log, limit, since
        self._arrivals: dict[str, float] = {}
        self._bytes = self._records = 0.0

    def dated(self, progress: SourceProgress) -> SourceProgress:
        """Return the progress of a batch, with the time since when its files wait and if it took all."""
        if "logOffset" not in progress.end:
            return progress
        self._log.refresh()
        files = self._log.files(int(progress.start.get("logOffset", -1)), int(progress.end["logOffset"]))
        if not files:
            return progress
        arrivals = [self._arrivals.pop(file.path, max(self._last_look, file.modified)) for file in files]
        size = math.fsum(file.bytes for file in files)
        if size > 0 and progress.rows > 0:
            self._bytes, self._records = self._bytes + size, self._records + progress.rows
        all_taken = True if self._limit.unit == "files" and len(files) < self._limit.most else None
        return self.looked(replace(progress, waiting=min(arrivals), everything=all_taken))

    def looked(self, progress: SourceProgress, now: float = NAN) -> SourceProgress:
        """Return the progress of the newest batch with what waits as of now (epoch seconds)."""
        waiting = self._log.waiting()
        if waiting is None:
            return progress
        for file in waiting:
            self._arrivals.setdefault(file.path, max(self._last_look, file.modified))
        if now == now:
            self._last_look = now
        each = self._records / self._bytes if self._bytes > 0 else NAN
        behind = each * math.fsum(file.bytes for file in waiting) if waiting else 0.0
        return replace(progress, behind=behind, everything=not waiting)


def held_files(checkpoint: str, number: int, description: str, limit: SourceLimit, since: float) -> HeldFiles | None:
    """Return what source `number` of a query holds back, if it is a limited file source with a checkpoint on this machine.

    Args:
        since: Epoch second at which the query was first seen.
    """
    folder, place = local_path(checkpoint), re.fullmatch(r"FileStreamSource\[(.*)\]", description)
    if limit.unit == "all" or folder is None or place is None:
        return None
    # Spark reads a sink's folder by the sink's log.
    local = local_path(place[1])
    listed = local is not None and limit.files != "?"
    if local is not None and os.path.isdir(os.path.join(local, "_spark_metadata")):
        listed = False
    log = FileLog(Path(folder) / "sources" / str(number), local if listed else None, limit.files)
    return HeldFiles(log, limit, since)
