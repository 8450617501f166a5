"""`Standalone`, the cloud that is a Spark Standalone cluster which exists: its hosts are executors on the master's workers.

Executors are requested and given back one by one. With the cores and memory of a worker declared, a host is a worker.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from elastream.clouds.executors import (
    ExecutorCloud,
    GrantedExecutors,
    address_of,
    of_our_own,
    refuse_silent,
)
from elastream.errors import CloudError

SCHEME = "spark://"
PORT = 7077

NONE_AT_FIRST: Mapping[str, str] = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.initialExecutors": "0",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
}
"""A Standalone master gives a new application an executor on every worker at once, unless it says that it will ask for
them. Who then asks is Elastream: Spark's own manager of executors is stopped as soon as the session is open
(`spark.jvm.executors.AllocationClient.take_over`)."""


@dataclass(frozen=True, slots=True)
class Standalone(ExecutorCloud):
    """Executors of an existing Standalone master: `Standalone("spark://10.0.0.5:7077", max_hosts=8)`.

    master: its URL; of several (`spark://a:7077,b:7077`) the first that answers is enough. host_type, or cores, memory
    (megabytes, or text such as `"4 GB"`) and price: what one executor is taken for, and takes of a worker; of its memory
    the heap takes 70 %, and that is all that a worker counts. min_hosts, max_hosts: how many may be leased at a time.
    driver_address: at which workers reach this machine, by default the one that it has towards the master. shared: that the
    run's folder, this interpreter and the program's modules are on a file system that all workers have under the same path;
    otherwise executors on other machines are refused. secret: what the master asks for (`spark.authenticate.secret`).
    settings: further Spark settings.

    Raises CloudError for a URL that is none, an unknown type, and numbers of hosts that make no sense.
    """

    master: str
    secret: str | None = field(default=None, repr=False)

    scheme: ClassVar[str] = SCHEME

    def __post_init__(self) -> None:
        if not self.master.startswith(SCHEME) or not self.master.removeprefix(SCHEME):
            raise CloudError(f"{self.master!r} is no Standalone master: its URL is {SCHEME}HOST:PORT")
        ExecutorCloud.__post_init__(self)

    @property
    def named(self) -> str:
        """The cloud in a sentence."""
        return f"the Standalone master {self.master}"

    def begun(self, folder: Path) -> GrantedExecutors:
        masters = [address_of(each, PORT) for each in self.master.removeprefix(SCHEME).split(",")]
        towards = refuse_silent(self.named, masters)
        (kind,) = self.types
        most = {"spark.cores.max": str(kind.slots * self.max_hosts)}
        closed = {} if self.secret is None else {"spark.authenticate": "true"}
        return of_our_own(
            self,
            self.master,
            self.driver_address or towards,
            {**NONE_AT_FIRST, **most, **closed, **self.settings},
            folder,
            begins_with=0,
            secret=self.secret,
        )
