"""`Yarn`: hosts are executors in containers of a Hadoop cluster."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree

from elastream.clouds import executors
from elastream.errors import CloudError, EnvironmentProblem

MASTER = "yarn"
FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
PORT = 8032


@dataclass(frozen=True, slots=True)
class Yarn(executors.ExecutorCloud):
    """Executors in containers of YARN: `Yarn(queue="etl", cores=2, memory="4 GB", price=0.2, max_hosts=8)`.

    HADOOP_CONF_DIR or YARN_CONF_DIR names the cluster. `ExecutorCloud` describes the other arguments.

    Args:
        queue: Queue for container requests.
        jars: Location of Spark's jars, such as `"local:/opt/spark/jars/*"`; empty to upload them.
        python: Interpreter on the nodes; default: the driver's path.

    Raises:
        CloudError: An empty queue.
    """

    queue: str = "default"
    jars: str = ""
    python: str = ""

    scheme: ClassVar[str] = MASTER

    def __post_init__(self) -> None:
        if not self.queue:
            raise CloudError("a queue of YARN has a name")
        executors.ExecutorCloud.__post_init__(self)

    @property
    def title(self) -> str:
        return f"YARN's queue {self.queue!r}"

    def open_own_session(self, folder: Path) -> executors.ExecutorProvider:
        managers = resource_managers(os.environ)
        towards = executors.address_towards("YARN's resource manager", managers) if managers else ""
        jars = {"spark.yarn.jars": self.jars} if self.jars else {}
        settings = {
            "spark.yarn.queue": self.queue,
            **executors.requested_by_spark(self),
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
        endpoint = replace(self.endpoint(MASTER, address, settings), python=self.python, packaged=True)
        return executors.for_own_session(self, endpoint, folder, initial_executors=self.min_hosts)


def resource_managers(environment: Mapping[str, str]) -> Sequence[tuple[str, int]]:
    """Return host and port of the resource manager from Hadoop's configuration; empty if only ids name it.

    Raises:
        EnvironmentProblem: There is no readable configuration.
    """
    folder = next((environment[name] for name in FOLDERS if environment.get(name)), None)
    if folder is None:
        raise EnvironmentProblem(f"neither {' nor '.join(FOLDERS)} is set: Spark finds YARN by the files in that folder")
    file = Path(folder) / "yarn-site.xml"
    try:
        elements = ElementTree.parse(file).getroot().iter("property")
        properties = {str(each.findtext("name")): str(each.findtext("value") or "") for each in elements}
    except OSError as error:
        raise EnvironmentProblem(f"{file} cannot be read: {error.strerror}") from None
    except ElementTree.ParseError as error:
        raise EnvironmentProblem(f"{file} is not XML: {error}") from None
    if properties.get("yarn.resourcemanager.ha.enabled", "").lower() == "true":
        return ()
    host = properties.get("yarn.resourcemanager.hostname") or "0.0.0.0"
    address = properties.get("yarn.resourcemanager.address") or f"{host}:{PORT}"
    return [executors.address_of(address.replace("${yarn.resourcemanager.hostname}", host), PORT)]
