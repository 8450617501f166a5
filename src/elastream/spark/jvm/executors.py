"""Which executors the session has, on which host and how busy: one call to the driver, which keeps count of them anyway."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastream.spark.jvm.driver_side import DriverSide

__all__ = ["Executor", "Executors", "Location"]


@dataclass(frozen=True, slots=True)
class Executor:
    """One registered executor. `host` is the address it was started with, `slots` the tasks it runs at once.

    busy: seconds that its tasks have taken so far, each counted when it ends. leaving: Spark gives it nothing new, because
    it is being decommissioned or is excluded.
    """

    id: str
    host: str
    slots: int
    busy: float = 0.0
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Location:
    """Where a state partition was last: the id of the executor, and the address of its host, `""` where that is not known.

    An application never uses the id of an executor twice: two locations with the same one are equal.
    """

    address: str = field(compare=False)
    executor: str


class Executors:
    """The session's executors, read through the gateway (no HTTP, works with the web interface switched off).

    seen: those of the last look, by id.
    """

    def __init__(self, driver: DriverSide) -> None:
        self._driver = driver
        self.seen: Mapping[str, Executor] = {}

    def look(self) -> Mapping[str, Executor]:
        """Active executors by id; in local mode that is the driver. Raises Py4JError as any call does."""
        found = {}
        for executor, host_port, slots, busy, leaving in self._driver.ask("executors", self._driver.context):
            if int(slots) > 0:  # the driver of a session that has executors has none
                address = host_port.rsplit(":", 1)[0]
                found[executor] = Executor(executor, address, int(slots), int(busy) / 1e3, leaving == "1")
        self.seen = found
        return found

    def by_address(self) -> Mapping[str, Executor]:
        """Active executors by the address of their host. Where a host has had several, the newest."""
        return newest_by_address(self.look())


def newest_by_address(executors: Mapping[str, Executor]) -> Mapping[str, Executor]:
    """`executors` by the address of their host. Where a host has had several, the newest: ids are numbers that grow."""
    newest = sorted(executors.values(), key=lambda each: int(each.id) if each.id.isdigit() else -1)
    return {each.host: each for each in newest}
