"""A real API server with etcd behind it, and a node of a few lines that runs each executor pod as a process.

So pods that are pending, run, fail, are preempted or deleted are real objects of a real API.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from elastream.clouds.local.processes import end_with_parent
from support import chart
from support.clusters import HERE, HOST, SPARK_JARS, free_port, processes
from support.waiting import wait_until

RELEASE = "33.3"
"""Of Kubernetes, without its 1."""
TOKEN, STRANGER, DRIVER = "of-the-tests", "of-a-stranger", "of-a-driver"
"""Tokens of one who may do everything, of one who may do nothing, and of the service account of the chart."""
ACCOUNT = f"system:serviceaccount:{chart.NAMESPACE}:{chart.RELEASE}"
RIGHTS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}
"""Kinds of the chart's objects that say who may do what, and where they are created."""
ENTRY_POINT = HERE.parent / "examples" / "kubernetes" / "entrypoint.sh"
NO_SUCH_IMAGE = "registry.invalid/no-such-image:1"
LOOK = 0.2


def api_server() -> Path:
    """The program, built once and kept; skips the test, with a sentence, where it cannot be."""
    kept = Path(os.environ["JARS_OF_TESTS"]) / f"kube-apiserver-1.{RELEASE}"
    for needed, what in (("go", "Go is needed to build kube-apiserver"), ("etcd", "etcd is needed (Debian: etcd-server)")):
        if shutil.which(needed) is None and not (needed == "go" and kept.exists()):
            pytest.skip(what)
    if not kept.exists():
        build = ["bash", str(HERE / "support" / "kubernetes" / "build.sh"), str(kept), RELEASE]
        done = subprocess.run(build, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"kube-apiserver could not be built: {done.stderr.strip()[-300:]}")
    return kept


@dataclass
class Node:
    """Runs executor pods of `namespace` as processes. room: how many at a time; others wait, with what a scheduler says."""

    api: httpx.Client
    folder: Path
    namespace: str = "default"
    room: int = 10
    running: dict[str, subprocess.Popen] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def listed(self) -> list[dict[str, Any]]:
        return self.api.get(self.pods).json()["items"]

    def executors(self) -> int:
        """Pods of executors that there are."""
        return sum(pod["metadata"]["name"] not in self.ended for pod in self.listed())

    def at_work(self) -> int:
        """Those of them that run."""
        return sum(
            pod["status"]["phase"] == "Running" and pod["metadata"]["name"] not in self.ended for pod in self.listed()
        )

    def run(self) -> None:
        while not self._stop.wait(LOOK):
            with contextlib.suppress(httpx.HTTPError, KeyError):
                for pod in self.listed():
                    self._step(pod)

    def close(self) -> None:
        self._stop.set()
        for process in self.running.values():
            process.kill()

    def preempt(self, name: str) -> None:
        """What a scheduler does to make room for a pod of more weight: says so, and deletes the pod."""
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        self._patch(name, {"conditions": [condition], "phase": "Running"})
        self.api.delete(f"{self.pods}/{name}").raise_for_status()

    def name_of(self, executor: str) -> str:
        (name,) = [
            pod["metadata"]["name"] for pod in self.listed() if pod["metadata"]["labels"].get("spark-exec-id") == executor
        ]
        return name

    def _step(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        process = self.running.get(name)
        if pod["metadata"].get("deletionTimestamp"):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
            self.ended.add(name)
            self.api.request("DELETE", f"{self.pods}/{name}", json={"gracePeriodSeconds": 0})
        elif process is not None:
            if process.poll() is not None and name not in self.ended:
                self.ended.add(name)
                self._report(name, "Succeeded" if process.returncode == 0 else "Failed", abs(process.returncode))
        elif pod["status"]["phase"] == "Pending":
            self._begin(pod, name)

    def _begin(self, pod: dict[str, Any], name: str) -> None:
        if len([each for each in self.running.values() if each.poll() is None]) >= self.room:
            message = f"0/1 nodes are available: 1 Too many pods (room for {self.room})."
            waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            self._patch(name, {"conditions": [waits]})
            return
        container = pod["spec"]["containers"][0]
        if container["image"] == NO_SUCH_IMAGE:
            waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
            self._patch(name, {"containerStatuses": [_container(container["image"], {"waiting": waiting})]})
            return
        if not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": "tests"}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            self.api.post(f"{self.pods}/{name}/binding", json=binding)
        self.running[name] = self._start(pod, name)
        self._report(name, "Running")

    def _start(self, pod: dict[str, Any], name: str) -> subprocess.Popen:
        """The executor of a pod, as the example's image starts it."""
        given = pod["spec"]["containers"][0]["env"]
        own = {each["name"]: HOST if each["name"].endswith("_IP") else name for each in given if "valueFrom" in each}
        env = {**{each["name"]: each.get("value", "") for each in given}, **own}
        work = self.folder / name
        work.mkdir()
        kept = {key: value for key, value in env.items() if key not in ("SPARK_CONF_DIR", "SPARK_LOCAL_DIRS")}
        with (work / "log").open("w") as log:
            return subprocess.Popen(
                [str(ENTRY_POINT), *pod["spec"]["containers"][0]["args"]],
                env={**os.environ, **kept, "SPARK_LOCAL_DIRS": str(work), "SPARK_HOME": str(SPARK_JARS.parent)},
                cwd=work,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=end_with_parent,
            )

    def _report(self, name: str, phase: str, code: int | None = None) -> None:
        """Tell the API server that the pod runs, or how it ended."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        state = {"running": {"startedAt": now}} if code is None else {"terminated": {"exitCode": code, "finishedAt": now}}
        container = _container("tests", state, ready=code is None)
        self._patch(name, {"phase": phase, "podIP": HOST, "startTime": now, "containerStatuses": [container]})

    def _patch(self, name: str, status: dict[str, Any]) -> None:
        kind = {"Content-Type": "application/merge-patch+json"}
        self.api.patch(f"{self.pods}/{name}/status", json={"status": status}, headers=kind)


def _container(image: str, state: dict[str, Any], ready: bool = False) -> dict[str, Any]:
    about = {"name": "spark-kubernetes-executor", "image": image, "imageID": "", "restartCount": 0}
    return {**about, "ready": ready, "started": ready, "state": state}


@dataclass(frozen=True)
class KubernetesCluster:
    """An API server and a node. settings: by which a session is known there as one who may do everything; `stranger`: by
    which it is one who may do nothing; `driver`: by which it is the service account of the chart.
    """

    master: str
    node: Node
    settings: dict[str, str]
    stranger: dict[str, str]
    driver: dict[str, str]

    def kubeconfig(self, folder: Path, settings: dict[str, str]) -> Path:
        """A user's configuration in `folder`, by which one is known there as by `settings`."""
        token, authority = (settings[f"spark.kubernetes.authenticate.{name}"] for name in ("oauthTokenFile", "caCertFile"))
        about = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
            "clusters": [
                {
                    "name": "tests",
                    "cluster": {"server": self.master.removeprefix("k8s://"), "certificate-authority": authority},
                }
            ],
            "users": [{"name": "tests", "user": {"token": Path(token).read_text()}}],
        }
        file = folder / "kubeconfig"
        YAML(typ="safe").dump(about, file)
        return file

    def give_namespace(self, name: str) -> None:
        """Create a namespace."""
        about = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        self.node.api.post("/api/v1/namespaces", json=about).raise_for_status()

    def give_rights(self) -> None:
        """Create the namespace of the chart, and who may do what there."""
        self.give_namespace(chart.NAMESPACE)
        for each in chart.objects():
            if (place := RIGHTS.get(each["kind"])) is not None:
                self.node.api.post(place.format(chart.NAMESPACE), json=each).raise_for_status()

    def events(self) -> list[dict[str, Any]]:
        """Events of the node's namespace that Elastream has sent."""
        found = self.node.api.get(f"/api/v1/namespaces/{self.node.namespace}/events").json()["items"]
        return [each for each in found if each["source"].get("component") == "elastream"]


@contextlib.contextmanager
def kubernetes(folder: Path, room: int = 10, namespace: str = "default") -> Iterator[KubernetesCluster]:
    """A real API server with etcd behind it, and a node of this machine with room for so many executors of `namespace`."""
    program = api_server()
    with processes(folder) as started:
        data, peers, port = free_port(), free_port(), free_port()
        client, server = f"http://{HOST}:{data}", f"https://{HOST}:{port}"
        listens = ["--listen-client-urls", client, "--advertise-client-urls", client]
        etcd = ["etcd", "--data-dir", str(folder / "etcd"), *listens, "--listen-peer-urls", f"http://{HOST}:{peers}"]
        started.start("etcd", etcd)
        _keys(folder)
        known = (f"{TOKEN},admin,1,system:masters", f"{STRANGER},stranger,2,", f"{DRIVER},{ACCOUNT},3,")
        (folder / "tokens.csv").write_text("".join(f"{each}\n" for each in known))
        serving = [
            f"--etcd-servers={client}",
            f"--secure-port={port}",
            f"--bind-address={HOST}",
            f"--cert-dir={folder / 'certs'}",
            f"--service-account-key-file={folder / 'sa.pub'}",
            f"--service-account-signing-key-file={folder / 'sa.key'}",
            "--service-account-issuer=https://tests.invalid",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.96.0.0/24",
        ]
        process = started.start("api", [str(program), *serving])
        with httpx.Client(base_url=server, headers={"Authorization": f"Bearer {TOKEN}"}, verify=False, timeout=10) as api:

            def ready() -> bool:
                assert process.poll() is None, (folder / "api.log").read_text()[-2000:]
                with contextlib.suppress(httpx.HTTPError):
                    return api.get("/api/v1/namespaces/default").is_success and api.get("/readyz").text == "ok"
                return False

            wait_until(ready)
            node = Node(api, folder, namespace, room)
            thread = threading.Thread(target=node.run, daemon=True)
            thread.start()
            try:
                settings = (_known(folder, token) for token in (TOKEN, STRANGER, DRIVER))
                yield KubernetesCluster(f"k8s://{server}", node, *settings)
            finally:
                node.close()
                thread.join(10)


def _known(folder: Path, token: str) -> dict[str, str]:
    file = folder / f"token-{token}"
    file.write_text(token)
    return {
        "spark.kubernetes.authenticate.oauthTokenFile": str(file),
        "spark.kubernetes.authenticate.caCertFile": str(folder / "certs" / "apiserver.crt"),
    }


def _keys(folder: Path) -> None:
    for command in (
        ["openssl", "genrsa", "-out", "sa.key", "2048"],
        ["openssl", "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


def kill_pod(node: Node, executor: str) -> bool:
    """SIGKILL to the executor of a pod."""
    node.running[node.name_of(executor)].kill()
    return True


def preempt_pod(node: Node, executor: str) -> bool:
    """Make room for another pod by that of an executor."""
    node.preempt(node.name_of(executor))
    return True


PYTHON = sys.executable
"""The interpreter of pods here, which have this machine's files."""
