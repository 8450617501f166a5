"""The Kubernetes cloud: what can be said of it, and a real API server, whose pods run as processes of this machine."""

import pytest

from conformance.provider_suite import ProviderCase, provider_suite
from elastream import HostType
from elastream.clouds import Kubernetes
from elastream.clouds.executors import memory_settings
from elastream.clouds.provider import ExistingSession, Phase
from elastream.core.event import Reason, RunEvent
from elastream.errors import CloudError, EnvironmentProblem
from elastream.spark.jvm.cluster_manager import event_sink
from support.clusters import conforming, refused, refused_program, session_on, users_session
from support.growing_run import grows_loses_and_shrinks
from support.kubernetes_cluster import NO_SUCH_IMAGE, PYTHON, kill_pod, kubernetes, preempt_pod
from support.pending_leases import killed_while_pending
from support.waiting import wait_until

LEAST = HostType("least", cores=1, slots=1, memory=700.0, price=0.1)
HERE = "k8s://https://127.0.0.1:6443"


class TestSaid:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"image": ""}, "pods of Kubernetes run an image: say which"),
            ({"namespace": ""}, "a namespace of Kubernetes has a name"),
            ({"master": "https://h:6443"}, "'https://h:6443' is not an API server: its URL is k8s://https://HOST:PORT"),
            ({"min_hosts": 9}, "max_hosts is 6, fewer than min_hosts, which is 9"),
        ],
    )
    def test_what_cannot_be_is_refused_in_a_sentence(self, given, said):
        with pytest.raises(CloudError, match=r".+") as wrong:
            Kubernetes(**{"image": "i", **given})
        assert said in str(wrong.value)

    def test_outside_of_a_cluster_the_api_server_must_be_named(self, monkeypatch, tmp_path):
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        with pytest.raises(CloudError, match="say master=k8s://https://HOST:PORT"):
            Kubernetes("i").open(tmp_path)

    def test_in_a_pod_the_api_server_is_that_of_its_own_cluster(self, monkeypatch, tmp_path):
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
        with pytest.raises(EnvironmentProblem, match=r"the API server https://127.0.0.1:1 does not answer"):
            Kubernetes("i").open(tmp_path)

    def test_a_session_on_another_cluster_manager_is_refused(self, tmp_path):
        with pytest.raises(CloudError, match=r"leases executors of a session on k8s://, and this one is on yarn"):
            Kubernetes("i").open(tmp_path, session=ExistingSession("yarn", 600, 1))


def cloud_of(cluster, **given) -> Kubernetes:
    usual = {"image": "tests", "host_type": LEAST, "max_hosts": 3, "python": PYTHON, "settings": cluster.settings}
    return Kubernetes(**{**usual, "master": cluster.master, **given})


def two(folder):
    return kubernetes(folder, room=2)


@pytest.mark.kubernetes
@pytest.mark.spark
@pytest.mark.slow
class TestKubernetes(provider_suite(ProviderCase("kubernetes", conforming(cloud_of, two), wrong=("",), patience=180.0))):  # type: ignore[misc]
    """On a real API server, with room for two pods."""


@pytest.mark.kubernetes
@pytest.mark.spark
@pytest.mark.slow
class TestReal:
    @pytest.mark.parametrize("ends", [kill_pod, preempt_pod])
    def test_query_grows_loses_a_pod_and_shrinks_without_a_restart(self, ends, tmp_path):
        with kubernetes(tmp_path / "cluster") as cluster:
            one = {
                **cluster.settings,
                **memory_settings(LEAST),
                "spark.executor.instances": "1",
                "spark.kubernetes.container.image": "tests",
                "spark.kubernetes.executor.request.cores": "100m",
            }
            with users_session(cluster.master, tmp_path / "session", LEAST, one) as spark:
                grows_loses_and_shrinks(
                    spark,
                    cloud_of(cluster),
                    tmp_path,
                    kill=lambda executor: ends(cluster.node, executor),
                    executors=cluster.node.executors,
                )

    def test_pending_pod_says_why_and_is_withdrawn_when_released(self, tmp_path):
        with (
            kubernetes(tmp_path / "cluster", room=1) as cluster,
            session_on(cloud_of(cluster), tmp_path / "session") as (_, provider, client),
        ):
            provider.lease({"h1": LEAST, "h2": LEAST})
            waits = refused(provider, client, "h2")
            assert "is not scheduled: 0/1 nodes are available: 1 Too many pods" in waits.reason
            provider.release(["h2"])
            wait_until(lambda: cluster.node.executors() == 1)
            client.executors.look()
            assert {name: each.phase for name, each in provider.hosts().items()} == {"h1": Phase.UP}

    def test_rights_of_the_chart_suffice_and_events_reach_its_namespace(self, tmp_path):
        with kubernetes(tmp_path / "cluster", namespace="streaming") as cluster:
            cluster.give_rights()
            cloud = cloud_of(cluster, namespace="streaming", settings=cluster.driver)
            with session_on(cloud, tmp_path / "session") as (spark, provider, client):

                def phase(host):
                    client.executors.look()
                    return provider.hosts()[host].phase

                provider.lease({"h1": LEAST})
                wait_until(lambda: phase("h1") is Phase.UP)
                tell = event_sink(spark)
                tell(RunEvent(5.0, Reason.SCALED_UP, "1 host comes (h1)"))
                tell(RunEvent(9.0, Reason.RUN_ENDED, "finished"))
                wait_until(lambda: len(cluster.events()) == 2)
                assert {(each["type"], each["reason"], each["message"]) for each in cluster.events()} == {
                    ("Normal", "ScaledUp", "1 host comes (h1)"),
                    ("Normal", "RunEnded", "finished"),
                }
                provider.release(["h1"])
                wait_until(lambda: cluster.node.executors() == 0)

    def test_resumed_run_clears_ten_requests_of_a_killed_driver(self, tmp_path):
        with kubernetes(tmp_path / "cluster", room=2) as cluster:
            cloud = {"is": "Kubernetes", "image": "tests", "master": cluster.master, "python": PYTHON, "max_hosts": 11}
            cloud |= {"cores": 1, "memory": "700 MB", "settings": cluster.settings}
            node = cluster.node
            killed_while_pending(
                tmp_path,
                cloud,
                room=2,
                granted=node.at_work,
                owed=lambda: node.executors() - node.at_work(),
                by_itself=False,
            )

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"namespace": "nowhere"}, 'namespaces "nowhere" not found'),
            ({"settings": "stranger"}, 'User "stranger" cannot create resource "configmaps"'),
            ({"image": NO_SUCH_IMAGE}, f"image {NO_SUCH_IMAGE} cannot be pulled (ImagePullBackOff"),
        ],
    )
    def test_a_run_that_cannot_begin_ends_with_what_the_api_server_said(self, given, said, tmp_path):
        with kubernetes(tmp_path / "cluster") as cluster:
            about = {"image": "tests", "master": cluster.master, "python": PYTHON, "cores": 1, "memory": "700 MB", **given}
            file = cluster.kubeconfig(tmp_path, cluster.stranger if about.pop("settings", None) else cluster.settings)
            cloud = "kubernetes:" + ",".join(f"{key}={value}" for key, value in about.items())
            found = refused_program(tmp_path, "counts_on_cluster.py", "--cloud", cloud, KUBECONFIG=str(file))
            assert said in found
            wait_until(lambda: cluster.node.executors() == 0)
