"""Which executors the running session has, and on which host: one cheap question to the driver's own status store."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

__all__ = ["UNLIMITED", "Executor", "Executors", "Location"]


@dataclass(frozen=True, slots=True)
class Executor:
    """One registered executor. `host` is the address it was started with, `slots` the tasks it runs at once."""

    id: str
    host: str
    slots: int


@dataclass(frozen=True, slots=True)
class Location:
    """Where a state partition was last: the id of the executor, and the address of its host, `""` where that is not known.

    An application never uses the id of an executor twice: two locations with the same one are equal.
    """

    address: str = field(compare=False)
    executor: str


UNLIMITED = 2**31 - 1
"""What Spark takes for "as many executors as the cluster has room for"."""


class Executors:
    """The session's executors, read through the gateway (no HTTP, works with the web interface switched off)."""

    def __init__(self, spark: SparkSession) -> None:
        self._store = spark.sparkContext._jsc.sc().statusStore()

    def by_address(self) -> Mapping[str, Executor]:
        """Active executors by the address of their host. Where a host has had several, the newest."""
        found: dict[str, Executor] = {}
        summaries: Any = self._store.executorList(True)
        for position in range(summaries.size()):
            each = summaries.apply(position)
            if (executor_id := each.id()) == "driver":
                continue
            address = each.hostPort().rsplit(":", 1)[0]
            known = found.get(address)
            if known is None or int(executor_id) > int(known.id):
                found[address] = Executor(executor_id, address, each.totalCores())
        return found
