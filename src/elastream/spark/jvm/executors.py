"""Lists the session's executors with host and load, in one call to the driver."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastream.spark.jvm.driver_side import DriverSide

__all__ = ["Executor", "Executors", "Location"]


@dataclass(frozen=True, slots=True)
class Executor:
    """One registered executor. host: the address it was started with. slots: concurrent tasks.

    busy: seconds of its ended tasks so far. leaving: it gets no new tasks, because it is being decommissioned or excluded.
    """

    id: str
    host: str
    slots: int
    busy: float = 0.0
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Location:
    """Last location of a state partition: the id of the executor, and the address of its host, `""` if unknown.

    Executor ids are unique within an application: two locations with the same id are equal.
    """

    address: str = field(compare=False)
    executor: str


class Executors:
    """The session's executors, read through the gateway (no HTTP; works without the web interface).

    seen: those of the last `look`, by id.
    """

    def __init__(self, driver: DriverSide) -> None:
        self._driver = driver
        self.seen: Mapping[str, Executor] = {}

    def look(self) -> Mapping[str, Executor]:
        """Active executors by id; in local mode the driver. Raises Py4JError."""
        found = {}
        for executor, host_port, slots, busy, leaving in self._driver.ask("executors", self._driver.context):
            if int(slots) > 0:  # the driver of a session that has executors has none
                address = host_port.rsplit(":", 1)[0]
                found[executor] = Executor(executor, address, int(slots), int(busy) / 1e3, leaving == "1")
        self.seen = found
        return found

    def by_address(self) -> Mapping[str, Executor]:
        """Active executors by address of their host; the newest of each host."""
        return newest_by_address(self.look())


def newest_by_address(executors: Mapping[str, Executor]) -> Mapping[str, Executor]:
    """`executors` by address of their host; the newest of each host, by the highest id."""
    newest = sorted(executors.values(), key=lambda each: int(each.id) if each.id.isdigit() else -1)
    return {each.host: each for each in newest}
