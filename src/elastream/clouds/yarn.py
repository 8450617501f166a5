"""`Yarn`, the cloud that is a queue of a Hadoop cluster: its hosts are executors in containers of one shape.

Requests go through Spark's application master, which asks the resource manager for containers; what the queue refuses or
takes back (preemption) is the reason that a host waits, or is gone.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree

from elastream.clouds.executors import (
    SURVIVES_LOSSES,
    ExecutorCloud,
    GrantedExecutors,
    address_of,
    heap_and_rest,
    of_our_own,
    refuse_silent,
)
from elastream.errors import CloudError, EnvironmentProblem

MASTER = "yarn"
FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
PORT = 8032


@dataclass(frozen=True, slots=True)
class Yarn(ExecutorCloud):
    """Executors in containers of YARN: `Yarn(queue="etl", cores=2, memory="4 GB", price=0.2, max_hosts=8)`.

    The cluster is that of HADOOP_CONF_DIR or YARN_CONF_DIR. queue: where containers are requested. host_type, or cores
    (one task each), memory (megabytes of the container, or text) and price: what a container is taken for, and takes; of
    its memory the heap takes 70 %. min_hosts, max_hosts: how many may be leased at a time. jars: where Spark's jars are,
    such as `"local:/opt/spark/jars/*"`; empty: they are uploaded. python: the interpreter on the nodes, by default the
    driver's path. driver_address: at which nodes reach this machine, by default the one that it has towards the resource
    manager. shared: that the run's folder, and the program's modules, are on a file system that all nodes have under the
    same path; otherwise executors on other machines are refused. settings: further Spark settings.

    Raises CloudError for an empty queue, an unknown type, and numbers of hosts that make no sense.
    """

    queue: str = "default"
    jars: str = ""
    python: str = ""

    scheme: ClassVar[str] = MASTER

    def __post_init__(self) -> None:
        if not self.queue:
            raise CloudError("a queue of YARN has a name")
        ExecutorCloud.__post_init__(self)

    @property
    def named(self) -> str:
        """The cloud in a sentence."""
        return f"YARN's queue {self.queue!r}"

    def begun(self, folder: Path) -> GrantedExecutors:
        places = resource_managers(os.environ)
        towards = refuse_silent("YARN's resource manager", places) if places else ""
        (kind,) = self.types
        jars = {"spark.yarn.jars": self.jars} if self.jars else {}
        wanted = {
            "spark.yarn.queue": self.queue,
            "spark.executor.instances": str(self.min_hosts),
            # Executors come one by one: a session that waited for the first ones would hide why they do not come.
            "spark.scheduler.minRegisteredResourcesRatio": "0",
            **SURVIVES_LOSSES,
            **heap_and_rest(kind),
            # Sockets of Python workers would be in the container's folder, whose path is longer than Linux takes, or in one
            # that all users of the node share.
            "spark.python.unix.domain.socket.enabled": "false",
            # What is shipped is left on a file system that says what it is, which the raw local one of runs does not.
            "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
            **jars,
            **self.settings,
        }
        address = self.driver_address or towards
        if not address:
            raise CloudError(
                "the resource managers are named by their ids: say driver_address, where nodes reach this machine"
            )
        return of_our_own(
            self, MASTER, address, wanted, folder, begins_with=self.min_hosts, python=self.python, packaged=True
        )


def resource_managers(environment: Mapping[str, str]) -> Sequence[tuple[str, int]]:
    """Host and port of the resource manager, by Hadoop's configuration; none where several are named by their ids.

    Raises EnvironmentProblem where there is no configuration.
    """
    folder = next((environment[name] for name in FOLDERS if environment.get(name)), None)
    if folder is None:
        raise EnvironmentProblem(f"neither {' nor '.join(FOLDERS)} is set: Spark finds YARN by the files in that folder")
    file = Path(folder) / "yarn-site.xml"
    try:
        properties = ElementTree.parse(file).getroot().iter("property")
        said = {str(each.findtext("name")): str(each.findtext("value") or "") for each in properties}
    except OSError as error:
        raise EnvironmentProblem(f"{file} cannot be read: {error.strerror}") from None
    except ElementTree.ParseError as error:
        raise EnvironmentProblem(f"{file} is no XML: {error}") from None
    if said.get("yarn.resourcemanager.ha.enabled", "").lower() == "true":
        return ()
    host = said.get("yarn.resourcemanager.hostname") or "0.0.0.0"
    address = said.get("yarn.resourcemanager.address") or f"{host}:{PORT}"
    return [address_of(address.replace("${yarn.resourcemanager.hostname}", host), PORT)]
