"""`InProcess`: the dataflow runs in this process."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from elastream.clouds.executors import ExecutorProvider
from elastream.clouds.local.archive import RECORDED, Classes
from elastream.clouds.local.java import find_java
from elastream.clouds.provider import Cloud, ClusterEndpoint, ExistingSession, ProviderOffer, executor_memory
from elastream.core.alarm import Alarms
from elastream.core.hosts import Billing, HostType
from elastream.errors import CloudError

# More slots make small batches slower: each costs every state partition a task, and there are two partitions per slot.
MOST_DEFAULT_CORES = 4
LOOPBACK = "127.0.0.1"


class InProcessProvider(ExecutorProvider):
    """The executors of a session in this process. Where no archive of Java classes exists, `close` starts to make one."""

    def __init__(self, kind: HostType, folder: Path) -> None:
        self._folder, self._classes = folder, Classes(find_java(), folder) if sys.platform == "linux" else None
        options = self._classes.options(self._recorded) if self._classes else ()
        endpoint = ClusterEndpoint(
            f"local[{kind.slots}]", LOOPBACK, executor_memory(kind), kind.slots, java_options=options
        )
        confinement = "no hosts are leased: tasks run in the session of the program"
        super().__init__(ProviderOffer((kind,), 1, endpoint=endpoint, confinement=confinement))

    @property
    def _recorded(self) -> Path:
        return self._folder / f"driver.{RECORDED}"

    def close(self) -> None:
        super().close()
        if self._classes and self._recorded.exists() and (command := self._classes.maker([self._recorded])):
            with (self._folder / "archive.log").open("w") as log:
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


@dataclass(frozen=True, slots=True)
class InProcess(Cloud):
    """No hosts: the dataflow runs in this process, for notebooks, tests and first steps.

    The run opens a session on this machine, or borrows the one that the process has, which it leaves as it was.

    Args:
        cores: Concurrent tasks of a session that the run opens. Default: the machine's cores, at most 4.

    Raises:
        CloudError: Less than one core.
    """

    cores: int | None = None

    def __post_init__(self) -> None:
        if self.cores is not None and self.cores < 1:
            raise CloudError(f"cores is {self.cores}: a dataflow needs at least one")

    @property
    def types(self) -> tuple[HostType, ...]:
        cores = self.cores or min(os.cpu_count() or 1, MOST_DEFAULT_CORES)
        memory = psutil.virtual_memory().total / 1e6
        return (HostType("process", cores=cores, slots=cores, memory=memory, price=0.0, billing=Billing(1.0)),)

    @property
    def max_hosts(self) -> int:
        return 1

    def open(
        self,
        folder: Path,
        *,
        ports: range | None = None,
        session: ExistingSession | None = None,
        alarms: Alarms | None = None,
    ) -> ExecutorProvider:
        if session is not None:
            raise CloudError("InProcess has no hosts that could join a session: omit the cloud, or name one that leases")
        (kind,) = self.types
        return InProcessProvider(kind, folder)
