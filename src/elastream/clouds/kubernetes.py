"""`Kubernetes`, the cloud that is a namespace of a cluster: its hosts are executors in pods of one shape and image.

Requests go through Spark's scheduler backend, which makes and deletes pods; why one is pending, failed or was evicted is
the reason that a host waits, or is gone.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from elastream.clouds.executors import (
    SURVIVES_LOSSES,
    ExecutorCloud,
    GrantedExecutors,
    heap_and_rest,
    of_our_own,
    refuse_silent,
)
from elastream.errors import CloudError

SCHEME = "k8s://"
IN_CLUSTER = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
"""Environment variables by which a pod finds its own API server."""
PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Kubernetes(ExecutorCloud):
    """Executors in pods: `Kubernetes(namespace="etl", image="registry.example/elastream:1", cores=1, memory="2 GB")`.

    image: with Spark, Python, Elastream and the program's modules, that executors run. namespace: where their pods are.
    master: `k8s://https://HOST:PORT` of the API server, by default that of the cluster in which this program runs; who asks
    it is said by the usual configuration (a pod's service account, else the kubeconfig), or by `settings`. host_type, or
    cores, memory (megabytes of the pod, or text) and price: what a pod is taken for, and requests; of its memory the heap
    takes 70 %. min_hosts, max_hosts: how many may be leased at a time. service_account: of the executors' pods. python: the
    interpreter in the image. driver_address: at which pods reach this program, by default the one that it has towards the
    API server. shared: that the run's folder is on a volume that all pods have under the same path (`settings` mount it);
    otherwise executors on other machines are refused. settings: further Spark settings.

    Raises CloudError without an image, for a namespace or a URL that is none, an unknown type, and numbers of hosts that
    make no sense.
    """

    image: str
    namespace: str = "default"
    master: str = ""
    service_account: str = ""
    python: str = "python3"

    scheme: ClassVar[str] = SCHEME

    def __post_init__(self) -> None:
        if not self.image:
            raise CloudError("pods of Kubernetes run an image: say which")
        if not self.namespace:
            raise CloudError("a namespace of Kubernetes has a name")
        if self.master and (not self.master.startswith(SCHEME) or urlsplit(self._server).hostname is None):
            raise CloudError(f"{self.master!r} is no API server: its URL is {SCHEME}https://HOST:PORT")
        ExecutorCloud.__post_init__(self)

    @property
    def named(self) -> str:
        """The cloud in a sentence."""
        return f"Kubernetes' namespace {self.namespace!r}"

    @property
    def _server(self) -> str:
        """URL of the API server; empty where none is known."""
        if self.master:
            given = self.master.removeprefix(SCHEME)
            return given if "://" in given else f"https://{given}"
        host, port = (os.environ.get(name, "") for name in IN_CLUSTER)
        return f"https://{host}:{port or PORTS['https']}" if host else ""

    def begun(self, folder: Path) -> GrantedExecutors:
        if not self._server:
            raise CloudError(f"say master={SCHEME}https://HOST:PORT: this program does not run in a pod of a cluster")
        url = urlsplit(self._server)
        towards = refuse_silent(
            f"the API server {self._server}", [(url.hostname or "", url.port or PORTS.get(url.scheme, 443))]
        )
        (kind,) = self.types
        account = (
            {"spark.kubernetes.authenticate.executor.serviceAccountName": self.service_account}
            if self.service_account
            else {}
        )
        wanted = {
            "spark.kubernetes.namespace": self.namespace,
            "spark.kubernetes.container.image": self.image,
            "spark.kubernetes.executor.request.cores": f"{kind.cores * 1000:.0f}m",
            "spark.executor.instances": str(self.min_hosts),
            # Executors come one by one: a session that waited for the first ones would hide why they do not come.
            "spark.scheduler.minRegisteredResourcesRatio": "0",
            # How long a pod that is pending and no longer wanted is left alone.
            "spark.dynamicAllocation.executorIdleTimeout": "5s",
            **SURVIVES_LOSSES,
            **heap_and_rest(kind),
            **account,
            **self.settings,
        }
        return of_our_own(
            self,
            f"{SCHEME}{self._server}",
            self.driver_address or towards,
            wanted,
            folder,
            begins_with=self.min_hosts,
            python=self.python,
        )
