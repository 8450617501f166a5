"""`Kubernetes`: hosts are executors in pods of one shape and image."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from elastream.clouds import executors
from elastream.errors import CloudError

SCHEME = "k8s://"
# a pod finds its own API server by these environment variables
IN_CLUSTER = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Kubernetes(executors.ExecutorCloud):
    """Executors in pods: `Kubernetes(namespace="etl", image="registry.example/elastream:1", cores=1, memory="2 GB")`.

    `ExecutorCloud` describes the other arguments.

    Args:
        image: Image with Spark, Python, Elastream and the program's modules.
        namespace: Namespace of the pods.
        master: `k8s://https://HOST:PORT` of the API server; default: that of the cluster in which this program runs.
            Credentials come from the pod's service account, the kubeconfig or `settings`.
        service_account: Service account of the executors' pods.
        python: Interpreter in the image.

    Raises:
        CloudError: No image, or an invalid namespace or URL.
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
            raise CloudError(f"{self.master!r} is not an API server: its URL is {SCHEME}https://HOST:PORT")
        executors.ExecutorCloud.__post_init__(self)

    @property
    def title(self) -> str:
        return f"Kubernetes' namespace {self.namespace!r}"

    @property
    def _server(self) -> str:
        if self.master:
            url = self.master.removeprefix(SCHEME)
            return url if "://" in url else f"https://{url}"
        host, port = (os.environ.get(name, "") for name in IN_CLUSTER)
        return f"https://{host}:{port or PORTS['https']}" if host else ""

    def open_own_session(self, folder: Path) -> executors.ExecutorProvider:
        if not self._server:
            raise CloudError(f"say master={SCHEME}https://HOST:PORT: this program does not run in a pod of a cluster")
        url = urlsplit(self._server)
        towards = executors.address_towards(
            f"the API server {self._server}", [(url.hostname or "", url.port or PORTS.get(url.scheme, 443))]
        )
        (kind,) = self.types
        account = (
            {"spark.kubernetes.authenticate.executor.serviceAccountName": self.service_account}
            if self.service_account
            else {}
        )
        settings = {
            "spark.kubernetes.namespace": self.namespace,
            "spark.kubernetes.container.image": self.image,
            "spark.kubernetes.executor.request.cores": f"{kind.cores * 1000:.0f}m",
            # How long a pod that is pending and no longer wanted is left alone.
            "spark.dynamicAllocation.executorIdleTimeout": "5s",
            **executors.requested_by_spark(self),
            **account,
            **self.settings,
        }
        endpoint = self.endpoint(f"{SCHEME}{self._server}", self.driver_address or towards, settings)
        return executors.for_own_session(
            self, replace(endpoint, python=self.python), folder, initial_executors=self.min_hosts
        )
