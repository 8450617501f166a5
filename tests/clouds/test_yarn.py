"""The YARN cloud: what can be said of it, and YARN's own ResourceManager and NodeManagers with sessions on them."""

import time

import pytest

from conformance.provider_suite import ProviderCase, provider_suite
from elastream import HostType
from elastream.clouds import Yarn
from elastream.clouds.executors import memory_settings
from elastream.clouds.provider import ExistingSession
from elastream.clouds.yarn import resource_managers
from elastream.core.hosts import HostState
from elastream.errors import CloudError, EnvironmentProblem
from elastream.recording.lease_log import LeaseLog
from elastream.spark.hosts.hosts import Hosts
from support.clusters import (
    YARN_HERE,
    conforming,
    free_port,
    refused_program,
    run_program,
    session_on,
    users_session,
    yarn,
)
from support.growing_run import grows_loses_and_shrinks
from support.pending_leases import killed_while_pending
from support.waiting import wait_until

LEAST = HostType("least", cores=1, slots=1, memory=700.0, price=0.1)


class TestSaid:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"queue": ""}, "a queue of YARN has a name"),
            ({"max_hosts": 1, "min_hosts": 2}, "max_hosts is 1, fewer than min_hosts, which is 2"),
            ({"memory": "0.2 GB"}, "has 200 MB: an executor needs"),
        ],
    )
    def test_what_cannot_be_is_refused_in_a_sentence(self, given, said):
        with pytest.raises(CloudError, match=r".+") as wrong:
            Yarn(**given)
        assert said in str(wrong.value)

    def test_without_hadoops_configuration_it_is_said_what_is_missing(self, monkeypatch, tmp_path):
        for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(EnvironmentProblem, match="neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set"):
            Yarn().open(tmp_path)

    @pytest.mark.parametrize(
        ("content", "said"), [(None, "yarn-site.xml cannot be read"), ("<conf", "yarn-site.xml is not XML")]
    )
    def test_a_configuration_that_cannot_be_read_is_named(self, content, said, tmp_path):
        if content is not None:
            (tmp_path / "yarn-site.xml").write_text(content)
        with pytest.raises(EnvironmentProblem, match=said):
            resource_managers({"YARN_CONF_DIR": str(tmp_path)})

    @pytest.mark.parametrize(
        ("properties", "found"),
        [
            ({"hostname": "rm.example"}, [("rm.example", 8032)]),
            ({"hostname": "rm.example", "address": "${yarn.resourcemanager.hostname}:8050"}, [("rm.example", 8050)]),
            ({"address": "10.0.0.3:8050"}, [("10.0.0.3", 8050)]),
            ({"ha.enabled": "true", "hostname": "rm"}, []),
        ],
    )
    def test_the_resource_manager_is_where_the_configuration_says(self, properties, found, tmp_path):
        said = "".join(
            f"<property><name>yarn.resourcemanager.{name}</name><value>{value}</value></property>"
            for name, value in properties.items()
        )
        (tmp_path / "yarn-site.xml").write_text(f"<configuration>{said}</configuration>")
        assert list(resource_managers({"HADOOP_CONF_DIR": str(tmp_path)})) == found

    def test_a_resource_manager_that_does_not_answer_is_a_sentence(self, monkeypatch, tmp_path):
        where = f"<property><name>yarn.resourcemanager.address</name><value>127.0.0.1:{free_port()}</value></property>"
        (tmp_path / "yarn-site.xml").write_text(f"<configuration>{where}</configuration>")
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        with pytest.raises(EnvironmentProblem, match=r"YARN's resource manager does not answer \(127.0.0.1:"):
            Yarn().open(tmp_path)

    def test_a_session_on_another_cluster_manager_is_refused(self, tmp_path):
        with pytest.raises(CloudError, match=r"leases executors of a session on yarn, and this one is on spark://h:7077"):
            Yarn().open(tmp_path, session=ExistingSession("spark://h:7077", 600, 1))

    def test_a_container_is_as_large_as_its_type_says(self):
        assert memory_settings(HostType("x", cores=1, memory=1048.576)) == {"spark.executor.memoryOverhead": "300m"}


def cloud_of(cluster, **given) -> Yarn:
    settings = {**YARN_HERE, "spark.yarn.stagingDir": cluster.staging}
    return Yarn(**{"host_type": LEAST, "max_hosts": 3, "settings": settings, **given})


@pytest.mark.yarn
@pytest.mark.spark
@pytest.mark.slow
class TestYarn(provider_suite(ProviderCase("yarn", conforming(cloud_of, yarn, room=3), wrong=("",), patience=180.0))):  # type: ignore[misc]
    """On two nodes with four cores in all, one of which the application master has."""


@pytest.mark.yarn
@pytest.mark.spark
@pytest.mark.slow
class TestReal:
    def test_query_grows_loses_a_container_and_shrinks_without_a_restart(self, tmp_path):
        with yarn(tmp_path / "cluster") as cluster:
            one = {**cloud_of(cluster).settings, **memory_settings(LEAST), "spark.executor.instances": "1"}
            with users_session("yarn", tmp_path / "session", LEAST, one, packaged=True) as spark:
                grows_loses_and_shrinks(spark, cloud_of(cluster), tmp_path)

    def test_a_run_on_it_counts_exactly(self, tmp_path):
        with yarn(tmp_path / "cluster") as cluster:
            run_program(
                tmp_path, f"yarn:queue=default,cores=1,memory=700 MB,max_hosts=2,jars={YARN_HERE['spark.yarn.jars']}"
            )
            assert cluster.configuration.exists()

    def test_a_run_in_a_queue_that_there_is_not_ends_with_a_sentence(self, tmp_path):
        with yarn(tmp_path / "cluster"):
            cloud = f"yarn:queue=nowhere,cores=1,memory=700 MB,jars={YARN_HERE['spark.yarn.jars']}"
            said = refused_program(tmp_path, "counts_on_cluster.py", "--cloud", cloud)
        assert "unknown queue: nowhere" in said

    def test_killed_driver_with_ten_pending_requests_leaves_nothing(self, tmp_path):
        with yarn(tmp_path / "cluster") as cluster:
            settings = cloud_of(cluster).settings
            cloud = {"is": "Yarn", "cores": 1, "memory": "700 MB", "max_hosts": 11, "settings": dict(settings)}
            killed_while_pending(
                tmp_path,
                cloud,
                room=3,
                granted=lambda: cluster.containers()[0],
                owed=lambda: cluster.containers()[1],
            )

    def test_full_cluster_is_in_the_ledger_and_a_withdrawn_request_never_comes(self, tmp_path):
        large = HostType("large", cores=2, slots=2, memory=1900.0)
        with (
            yarn(tmp_path / "cluster") as cluster,
            session_on(cloud_of(cluster, host_type=large), tmp_path / "session") as (_, provider, client),
        ):
            hosts = Hosts(
                client.executors, provider, time.monotonic, fence=client.fence, log=LeaseLog(tmp_path / "leases.jsonl")
            )

            def looked():
                hosts.look()
                hosts.step(batch=0, idle=True, holds=lambda host: False)
                return hosts.leases

            hosts.lease("h1", large)
            hosts.lease("h2", large)
            wait_until(lambda: looked()["h2"].refused)
            waits = hosts.leases["h2"]
            assert waits.state is HostState.REQUESTED
            assert "no node of 2 has room for a container of 1811 MiB and 2 cores" in waits.note
            provider.lease({"h2": large})
            wait_until(lambda: looked() and cluster.containers() == (1, 1))
            hosts.release("h2")
            wait_until(lambda: looked() and cluster.containers() == (1, 0))
            hosts.release("h1")
            wait_until(lambda: not looked() or (not hosts.active and cluster.containers() == (0, 0)))
            written = LeaseLog(tmp_path / "leases.jsonl").earlier
            assert {host: lease.state for host, lease in written.items()} == dict.fromkeys(("h1", "h2"), HostState.RELEASED)
