"""The Standalone cloud: what can be said of it, and a real master whose workers were started apart from Elastream."""

from pathlib import Path

import pytest

from conformance.provider_suite import ProviderCase, provider_suite
from elastream import HostType
from elastream.clouds import Standalone
from elastream.clouds.provider import ExistingSession
from elastream.documents.registry import CLOUD, made, named_in
from elastream.documents.user_code import References
from elastream.errors import CloudError, EnvironmentProblem
from support.clusters import (
    conforming,
    free_port,
    refused,
    run_program,
    session_on,
    standalone,
    users_session,
)
from support.growing_run import grows_loses_and_shrinks
from support.pending_leases import killed_while_pending

LEAST = HostType("least", cores=1, slots=1, memory=700.0, price=0.1)


class TestSaid:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"master": "yarn"}, "'yarn' is not a Standalone master: its URL is spark://HOST:PORT"),
            ({"master": "spark://"}, "is not a Standalone master"),
            ({"master": "spark://h:7077", "max_hosts": 0}, "max_hosts is 0, fewer than min_hosts"),
            ({"master": "spark://h:7077", "min_hosts": 0}, "min_hosts is 0: a dataflow needs at least one host"),
            ({"master": "spark://h:7077", "host_type": "huge"}, "no host type is called 'huge' here; known: small"),
            ({"master": "spark://h:7077", "memory": 300}, "has 300 MB: an executor needs"),
        ],
    )
    def test_what_cannot_be_is_refused_in_a_sentence(self, given, said):
        with pytest.raises(CloudError, match=r".+") as refused:
            Standalone(**given)
        assert said in str(refused.value)

    def test_on_a_command_line_it_is_named_with_its_shape(self):
        name, given = named_in("standalone:master=spark://127.0.0.1:7077,cores=2,memory=4 GB,price=0.2,max_hosts=3", CLOUD)
        cloud = made(CLOUD, name, given, References(Path()))
        (kind,) = cloud.types
        assert (cloud.master, cloud.max_hosts) == ("spark://127.0.0.1:7077", 3)
        assert (kind.cores, kind.slots, kind.memory, kind.price) == (2, 2, 4000, 0.2)

    def test_a_master_that_does_not_answer_is_a_sentence(self, tmp_path):
        with pytest.raises(EnvironmentProblem, match=r"Standalone master spark://127.0.0.1:\d+ does not answer .*refused"):
            Standalone(f"spark://127.0.0.1:{free_port()}").open(tmp_path)

    def test_a_session_on_another_cluster_manager_is_refused(self, tmp_path):
        with pytest.raises(CloudError, match=r"leases executors of a session on spark://, and this one is on yarn"):
            Standalone("spark://h:7077").open(tmp_path, session=ExistingSession("yarn", 600, 1))

    def test_a_session_with_executors_of_another_shape_is_refused(self, tmp_path):
        session = ExistingSession("spark://h:7077", 600, 1, allocator=object())
        with pytest.raises(CloudError, match=r"run 1 tasks at a time, and host type 'executor' says 2"):
            Standalone("spark://h:7077", cores=2).open(tmp_path, session=session)


def cloud_of(cluster) -> Standalone:
    return Standalone(cluster.master, host_type=LEAST, max_hosts=3)


@pytest.mark.spark
@pytest.mark.slow
class TestStandalone(
    provider_suite(ProviderCase("standalone", conforming(cloud_of, standalone), wrong=("",), patience=120.0))
):  # type: ignore[misc]
    """On a master and two workers of a core each."""


@pytest.mark.spark
@pytest.mark.slow
class TestReal:
    def test_query_grows_loses_an_executor_and_shrinks_without_a_restart(self, tmp_path):
        with standalone(tmp_path / "cluster", workers=3) as cluster:

            def executors() -> int:
                return sum(app["cores"] for app in cluster.state()["activeapps"])

            # A Standalone master gives it an executor on every worker at once.
            with users_session(cluster.master, tmp_path / "session", LEAST, {}) as spark:
                pilot = grows_loses_and_shrinks(spark, cloud_of(cluster), tmp_path, executors=executors)
                assert not pilot.running

    def test_a_run_on_it_counts_exactly_and_leaves_nothing_behind(self, tmp_path):
        with standalone(tmp_path / "cluster") as cluster:
            run_program(tmp_path, f"standalone:master={cluster.master},cores=1,memory=700 MB,max_hosts=2")
            assert cluster.state()["activeapps"] == []

    def test_killed_driver_with_ten_pending_requests_leaves_nothing(self, tmp_path):
        with standalone(tmp_path / "cluster") as cluster:
            cloud = {"is": "Standalone", "master": cluster.master, "cores": 1, "memory": "700 MB", "max_hosts": 11}
            granted = lambda: sum(app["cores"] for app in cluster.state()["activeapps"])  # noqa: E731
            killed_while_pending(tmp_path, cloud, room=2, granted=granted)

    def test_what_no_worker_has_is_why_a_host_waits(self, tmp_path):
        large = Standalone("spark://h:1", host_type=HostType("large", cores=8, memory=9000))
        with standalone(tmp_path / "cluster", workers=1) as cluster:
            cloud = Standalone(cluster.master, host_type=large.host_type)
            with session_on(cloud, tmp_path / "session") as (_, provider, client):
                provider.lease({"h1": cloud.types[0]})
                waits = refused(provider, client)
                assert waits.refused
                assert "none of the master's 1 workers has 8 cores and 6008 MiB" in waits.reason
