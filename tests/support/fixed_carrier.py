"""Batches of a walk under one code, without the logs from which Spark's tasks read it."""

from dataclasses import dataclass

from elastream.spark.worker.walk import WorkerPaths

__all__ = ["Under"]


@dataclass(frozen=True)
class Under(WorkerPaths):
    """Every batch runs under the code `fixed`."""

    fixed: int = 0

    def code(self, batch: int) -> int:
        """That code."""
        return self.fixed
