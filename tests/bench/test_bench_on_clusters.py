"""`elastream bench` on YARN and Kubernetes: which cloud a master has, how it fails, and real runs."""

import pytest

from elastream import HostType
from elastream.bench.arms import IMAGE, Cluster, arm_of
from elastream.bench.nexmark.events import Events
from elastream.bench.nexmark.workload import Nexmark, query_of
from elastream.bench.runs import Setup, run
from elastream.clouds.kubernetes import Kubernetes
from elastream.clouds.provider import SMALL
from elastream.clouds.standalone import Standalone
from elastream.clouds.yarn import FOLDERS, Yarn
from elastream.errors import EnvironmentProblem
from elastream.loads import constant
from support.clusters import YARN_HERE, free_port, yarn
from support.commands import invoke
from support.kubernetes_cluster import NO_SUCH_IMAGE, PYTHON, kubernetes
from support.shared_session import forget_jvm

KIND = HostType("executor", cores=1, slots=1, memory=700.0, price=0.1)
SERVER = "k8s://https://127.0.0.1:{}"
IN_PODS = {IMAGE: "bench:1", "spark.pyspark.python": PYTHON}


def cluster(master, **settings):
    return Cluster(SMALL, 4, 4, master, settings=settings)


def answers(master, settings, *arms, kind=KIND):
    """Outcome of q0 under each of `arms` on a real cluster."""
    events = Events(load=constant("200/s", lasts=20.0))
    setup = Setup(Cluster(kind, 2, 2, master, settings=settings), target_latency=20.0)
    forget_jvm()
    try:
        return [run(setup, [[Nexmark(query_of("q0"), events)]], arm_of(arm), print)[0] for arm in arms]
    finally:
        forget_jvm()


@pytest.mark.parametrize(
    ("master", "settings", "cloud"),
    [
        ("spark://a:1", {}, Standalone("spark://a:1", host_type=SMALL, min_hosts=3, max_hosts=3)),
        ("yarn", {}, Yarn(host_type=SMALL, min_hosts=3, max_hosts=3)),
        (
            "yarn",
            {"spark.yarn.queue": "etl", "spark.driver.host": "10.0.0.1"},
            Yarn("etl", host_type=SMALL, min_hosts=3, max_hosts=3, driver_address="10.0.0.1"),
        ),
        (
            "k8s://https://a:1",
            {IMAGE: "bench:1", "spark.kubernetes.namespace": "etl"},
            Kubernetes("bench:1", "etl", "k8s://https://a:1", host_type=SMALL, min_hosts=3, max_hosts=3),
        ),
    ],
)
def test_a_master_has_the_cloud_that_sparks_settings_describe(master, settings, cloud):
    made = cluster(master, **settings).cloud(arm_of("fixed:3"))
    assert (type(made), made.settings) == (type(cloud), settings)
    for name in ("queue", "namespace", "image", "python", "min_hosts", "max_hosts", "driver_address", "types"):
        assert getattr(made, name, None) == getattr(cloud, name, None)


@pytest.mark.parametrize("arm", ["dra", "autopilot"])
def test_arms_that_scale_begin_with_one_executor(arm):
    cloud = cluster("yarn").cloud(arm_of(arm))
    assert (cloud.min_hosts, cloud.max_hosts) == (1, 4)


def test_yarn_without_hadoops_configuration_ends_with_one_sentence(monkeypatch):
    for name in FOLDERS:
        monkeypatch.delenv(name, raising=False)
    result = invoke("bench", "nexmark", "--queries", "q0", "--rate", "10/s", "--lasts", "2s", "--master", "yarn")
    assert result.exit_code == 2
    assert "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set" in result.stderr


def test_api_server_that_does_not_answer_ends_with_one_sentence():
    port = free_port()
    pods = ("--master", SERVER.format(port), "--setting", f"{IMAGE}=bench:1")
    result = invoke("bench", "shuffle", "--rate", "10/s", "--lasts", "2s", *pods)
    assert result.exit_code == 2
    assert f"the API server https://127.0.0.1:{port} does not answer" in result.stderr


@pytest.mark.yarn
@pytest.mark.spark
@pytest.mark.slow
def test_arms_give_the_answer_on_yarn(tmp_path):
    with yarn(tmp_path / "cluster") as there:
        settings = {**YARN_HERE, "spark.yarn.stagingDir": there.staging}
        fixed, *scaling = answers("yarn", settings, "fixed:2", "dra", "autopilot")
        assert there.containers() == (0, 0)
    assert all(each.correct for each in (fixed, *scaling))
    assert fixed.most_hosts == 2
    assert fixed.host_seconds == pytest.approx(2 * fixed.service.seconds)
    assert all(0 < each.host_seconds <= 2 * each.service.seconds for each in scaling)


@pytest.mark.yarn
@pytest.mark.spark
@pytest.mark.slow
def test_session_that_yarn_ends_is_named_with_the_reason(tmp_path):
    ended = pytest.raises(EnvironmentProblem, match="the cluster ended the session: no node of 2 is large enough")
    with yarn(tmp_path / "cluster") as there, ended:
        settings = {**YARN_HERE, "spark.yarn.stagingDir": there.staging}
        answers("yarn", settings, "fixed:1", kind=HostType("wide", cores=8, slots=8, memory=700.0))


@pytest.mark.kubernetes
@pytest.mark.spark
@pytest.mark.slow
def test_a_fixed_arm_gives_the_answer_in_pods(tmp_path):
    with kubernetes(tmp_path / "cluster", room=2) as there:
        (outcome,) = answers(there.master, {**there.settings, **IN_PODS}, "fixed:2")
    assert (outcome.correct, outcome.most_hosts) == (True, 2)


@pytest.mark.kubernetes
@pytest.mark.spark
@pytest.mark.slow
def test_pods_whose_image_is_missing_end_the_run_with_the_reason(tmp_path):
    never = pytest.raises(EnvironmentProblem, match=r"1 executor will not come: image .* cannot be pulled")
    with kubernetes(tmp_path / "cluster") as there, never:
        answers(there.master, {**there.settings, **IN_PODS, IMAGE: NO_SUCH_IMAGE}, "fixed:1")
