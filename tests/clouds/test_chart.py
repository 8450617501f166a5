"""The Helm chart and the image of a job in Kubernetes."""

import json
import re
import subprocess
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

from support.chart import CHART, NAMESPACE, RELEASE, helm, objects
from support.kubernetes_cluster import kubernetes

ROOT = CHART.parents[1]
IMAGE = ROOT / "examples" / "kubernetes" / "Dockerfile"
SOURCE = ROOT / "src" / "elastream" / "spark" / "jvm" / "KubernetesReason.java"

# What Spark 4's KubernetesClusterSchedulerBackend and ExecutorPodsAllocator call.
SPARK = {
    "pods": {"get", "list", "watch", "create", "patch", "delete", "deletecollection"},
    "configmaps": {"create", "delete", "deletecollection"},
    "persistentvolumeclaims": {"list", "create", "delete", "deletecollection"},
    "services": {"delete", "deletecollection"},
}
# Deleting by labels is one call or a list and calls, by the release of the client.
DELETES = {"list", "delete", "deletecollection"}
EVERYTHING = {
    "metrics": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "env": [{"name": "A"}],
    "serviceAccount": {"listNodes": True},
}


def calls_of_the_package() -> dict[str, set[str]]:
    """Return the verbs that the package's Java source calls, by resource."""
    text = SOURCE.read_text()
    calls: dict[str, set[str]] = {}
    for statement in re.split(r";\n", text):
        for resource in re.findall(r"client(?:\(spark\))?\.(\w+)\(\)", statement):
            verbs = {"list"} if ".list()" in statement else DELETES
            calls.setdefault(resource.lower(), set()).update(verbs)
        for model in re.findall(r"api\.model\.(\w+)\.class", statement):
            calls.setdefault(f"{model.lower()}s", set()).add("create")
    return calls


def rules() -> dict[str, set[str]]:
    roles = [each for each in objects() if each["kind"] in ("Role", "ClusterRole")]
    return {resource: set(rule["verbs"]) for role in roles for rule in role["rules"] for resource in rule["resources"]}


def test_templates_parse_into_the_objects_of_a_job():
    kinds = sorted(each["kind"] for each in objects())
    assert kinds == [
        "ClusterRole",
        "ClusterRoleBinding",
        "Deployment",
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
        "PodMonitor",
        "Role",
        "RoleBinding",
        "ServiceAccount",
    ]


def test_rights_are_those_that_spark_and_the_package_use():
    package = calls_of_the_package()
    lists = {resource: {"list"} for resource in ("nodes", "resourcequotas")}
    assert package == {"pods": {*DELETES, "create"}, "configmaps": DELETES, "events": {"create"}, **lists}
    used = {name: SPARK.get(name, set()) | package.get(name, set()) for name in {*SPARK, *package}}
    used |= {name: verbs | DELETES for name, verbs in used.items() if "delete" in verbs}
    assert rules() == used


def test_schema_names_each_value():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = YAML(typ="safe").load(CHART / "values.yaml")

    def undeclared(values, schema, at=""):
        for name, value in values.items():
            if name not in schema["properties"]:
                yield at + name
            elif isinstance(value, dict) and "properties" in schema["properties"][name]:
                yield from undeclared(value, schema["properties"][name], f"{at}{name}.")

    assert list(undeclared(values, schema)) == []


def closure(name: str, extras: frozenset[str]) -> dict[str, str]:
    """Return the packages that `name[extras]` needs, with their versions here."""
    versions, waiting, done = {}, [(name, extras)], set()
    while waiting:
        name, extras = each = waiting.pop()
        if each not in done:
            done.add(each)
            package = distribution(name)
            versions[canonicalize_name(name)] = package.version
            needed = map(Requirement, package.requires or [])
            waiting += [
                (each.name, frozenset(each.extras))
                for each in needed
                if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras | {""})
            ]
    return versions


def test_image_holds_the_product_at_the_versions_of_the_lock(tmp_path):
    text = IMAGE.read_text()
    (command,) = re.findall(r"^RUN (sed .*) > constraints.txt$", text, re.MULTILINE)
    lines = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    locked = [each for each in map(Requirement, lines) if each.marker is None or each.marker.evaluate()]
    constraints = {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in locked}
    assert len(constraints) == len(locked) > 100
    (extras,) = re.findall(r"-c constraints.txt '\.\[(.*)\]'", text)
    needed = closure("elastream", frozenset(extras.split(",")))
    del needed["elastream"]
    assert needed == {name: constraints.get(name) for name in needed}
    assert {"pyspark", "prometheus-client", "cel-expr-python"} <= set(needed)
    assert needed.keys().isdisjoint({"pytest", "mypy", "ruff", "mkdocs", "numba", "ortools"})


@pytest.mark.kubernetes
@pytest.mark.slow
class TestHelm:
    def template(self, values: dict, folder: Path) -> subprocess.CompletedProcess:
        file = folder / "values.json"
        file.write_text(json.dumps(values))
        command = [str(helm()), "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "-f", str(file)]
        return subprocess.run(command, capture_output=True, text=True)

    def test_chart_lints(self):
        done = subprocess.run([str(helm()), "lint", "--strict", str(CHART)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    @pytest.mark.parametrize(
        ("values", "message"),
        [({"args": []}, "args"), ({"metrics": {"port": 0}}, "metrics"), ({"replicas": 2}, "replicas")],
    )
    def test_values_that_cannot_be_are_refused(self, values, message, tmp_path):
        done = self.template(values, tmp_path)
        assert done.returncode != 0
        assert message in done.stderr

    def test_api_server_takes_each_object(self, tmp_path):
        done = self.template(EVERYTHING, tmp_path)
        assert done.returncode == 0, done.stderr
        made = list(YAML(typ="safe").load_all(done.stdout))
        paths = {
            "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
            "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
            "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
            "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
            "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
            "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
            "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        }
        # The API server knows a PodMonitor only beside the Prometheus operator.
        assert {each["kind"] for each in made} == {*paths, "PodMonitor"}
        with kubernetes(tmp_path / "cluster") as cluster:
            cluster.give_namespace(NAMESPACE)
            for each in made:
                if each["kind"] in paths:
                    path = paths[each["kind"]].format(NAMESPACE)
                    answer = cluster.node.api.post(path, json=each, params={"fieldValidation": "Strict"})
                    assert answer.is_success, answer.text
