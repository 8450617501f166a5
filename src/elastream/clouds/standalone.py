"""`Standalone`: hosts are executors on the workers of an existing Spark Standalone master."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from elastream.clouds import executors
from elastream.errors import CloudError

SCHEME = "spark://"
PORT = 7077

# A Standalone master gives a new application an executor on every worker at once, unless dynamic allocation is on.
# Elastream then stops Spark's own manager as soon as the session is open
# (`spark.jvm.executors.AllocationClient.take_over`) and requests executors itself.
NO_INITIAL_EXECUTORS: Mapping[str, str] = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.initialExecutors": "0",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
}


@dataclass(frozen=True, slots=True)
class Standalone(executors.ExecutorCloud):
    """Executors of an existing Standalone master: `Standalone("spark://10.0.0.5:7077", max_hosts=8)`.

    A host is a worker if the worker's cores and memory are declared. `ExecutorCloud` describes the other arguments.

    Args:
        master: Master URL. Of several (`spark://a:7077,b:7077`) one has to answer.
        secret: Secret of the master (`spark.authenticate.secret`).

    Raises:
        CloudError: An invalid URL.
    """

    master: str
    secret: str | None = field(default=None, repr=False)

    scheme: ClassVar[str] = SCHEME

    def __post_init__(self) -> None:
        if not self.master.startswith(SCHEME) or not self.master.removeprefix(SCHEME):
            raise CloudError(f"{self.master!r} is not a Standalone master: its URL is {SCHEME}HOST:PORT")
        executors.ExecutorCloud.__post_init__(self)

    @property
    def title(self) -> str:
        return f"the Standalone master {self.master}"

    def open_own_session(self, folder: Path) -> executors.ExecutorProvider:
        masters = [executors.address_of(each, PORT) for each in self.master.removeprefix(SCHEME).split(",")]
        towards = executors.address_towards(self.title, masters)
        (kind,) = self.types
        most = {"spark.cores.max": str(kind.slots * self.max_hosts)}
        closed = {} if self.secret is None else {"spark.authenticate": "true"}
        settings = {**NO_INITIAL_EXECUTORS, **most, **closed, **self.settings}
        endpoint = self.endpoint(self.master, self.driver_address or towards, settings)
        return executors.for_own_session(self, replace(endpoint, secret=self.secret), folder, initial_executors=0)
