import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastream.clouds.local.cluster import LocalCluster
from elastream.clouds.local.confinement import tagged
from elastream.clouds.local.java import MAX_TEMPORARY_PATH, find_java, temporary_folder
from elastream.clouds.local.local import Local
from elastream.clouds.local.network import Link
from elastream.clouds.provider import HOST_TYPES, executor_memory
from elastream.core.hosts import HostType
from elastream.errors import CloudError, EnvironmentProblem
from support.marked_processes import a_mark, marked
from support.waiting import wait_until

BY_DEFAULT = HOST_TYPES["small"]


EDGE = HostType("here", cores=0.5, memory=1000, region="edge")
CLOUD = HostType("there", cores=0.5, memory=1000, region="cloud")


class TestLocal:
    def test_regions_come_from_host_types_and_the_driver_is_in_the_first(self):
        assert Local(host_types=[EDGE, CLOUD]).regions == ("edge", "cloud")
        assert Local(host_types=[EDGE, CLOUD], driver_region="office").regions == ("office", "edge", "cloud")

    def test_a_latency_holds_in_both_directions(self):
        local = Local(host_types=[EDGE, CLOUD], latency={"edge": {"cloud": "40ms"}})
        assert local.delays == {("edge", "cloud"): 0.04, ("cloud", "edge"): 0.04}

    def test_a_small_host_runs_one_task_on_half_a_core(self):
        assert Local().types == (BY_DEFAULT,)
        assert (BY_DEFAULT.slots, BY_DEFAULT.cores, BY_DEFAULT.price) == (1, 0.5, 1.0)

    def test_the_executors_heap_leaves_room_for_python_on_the_same_host(self):
        assert executor_memory(BY_DEFAULT) * 2**20 == pytest.approx(700e6, rel=0.01)

    def test_cores_each_replaces_the_cores_of_the_type_and_nothing_else(self):
        (quarter,) = Local(cores_each=0.25).types
        assert quarter.cores == 0.25
        assert (quarter.name, quarter.slots, quarter.memory) == (BY_DEFAULT.name, BY_DEFAULT.slots, BY_DEFAULT.memory)

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"host_type": "huge"}, "'huge'.*known: small"),
            ({"max_hosts": 0}, "max_hosts is 0, fewer than min_hosts, which is 1"),
            ({"min_hosts": 0}, "min_hosts is 0"),
            ({"min_hosts": 4, "max_hosts": 3}, "max_hosts is 3, fewer than min_hosts, which is 4"),
            ({"max_hosts": 1000}, "addresses for 200"),
            ({"cores_each": 0}, "'small' has no core"),
            ({"host_type": HostType("tiny", cores=1, memory=300)}, "'tiny' has 300 MB: an executor needs 674 MB"),
            ({"host_type": "small", "host_types": ["small"]}, "host_type and host_types exclude each other"),
            ({"host_types": [EDGE, EDGE]}, "two host types have one name: here, here"),
            ({"host_type": [EDGE]}, "is not a host type; several go to host_types"),
            ({"latency": {"local": {"moon": "1s"}}}, "no host type is in the region 'moon'; regions: local"),
            ({"host_types": [EDGE], "latency": {"edge": {"edge": "1s"}}}, "'edge' cannot be away from itself"),
            (
                {"host_types": [EDGE, CLOUD], "latency": {"edge": {"cloud": "far"}}},
                "latency from 'edge' to 'cloud': .*'far'",
            ),
        ],
    )
    def test_a_cloud_that_makes_no_sense_is_refused_in_one_sentence(self, wrong, said):
        with pytest.raises(CloudError, match=said):
            Local(**wrong)


class TestFindJava:
    @staticmethod
    def java(folder: Path, version: str) -> Path:
        program = folder / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return program

    @pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.1", "25-ea"])
    def test_java_17_and_newer_are_taken_from_java_home(self, tmp_path, version):
        program = self.java(tmp_path, version)
        assert find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}) == program

    def test_without_java_home_the_first_java_on_the_path_is_taken(self, tmp_path):
        first, second = self.java(tmp_path / "1", "17.0.1"), self.java(tmp_path / "2", "21")
        assert find_java({"PATH": f"{first.parent}:{second.parent}:/usr/bin:/bin"}) == first

    @pytest.mark.parametrize(("version", "called"), [("11.0.2", "Java 11"), ("1.8.0_292", "Java 8")])
    def test_an_older_java_is_refused_with_its_place_and_version(self, tmp_path, version, called):
        program = self.java(tmp_path, version)
        with pytest.raises(EnvironmentProblem, match=f"{program} is {called}; Spark needs Java 17"):
            find_java({"JAVA_HOME": str(tmp_path)})

    def test_a_java_home_without_java_is_named(self, tmp_path):
        with pytest.raises(EnvironmentProblem, match=f"JAVA_HOME is {tmp_path}, but there is no"):
            find_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


class TestBeforeAnythingRuns:
    def test_a_cluster_that_never_started_has_no_hosts_and_closes(self, tmp_path):
        cluster = LocalCluster(Local(), tmp_path)
        with pytest.raises(CloudError, match="not running"):
            cluster.spawn("h1")
        with pytest.raises(CloudError, match="'h9'"):
            cluster.alive("h9")
        cluster.close()
        cluster.close()

    def test_a_folder_that_cannot_be_made_is_named(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(EnvironmentProblem, match=f"{tmp_path}/file/cluster cannot be written"):
            LocalCluster(Local(), tmp_path / "file" / "cluster").start()


def registered(cluster: LocalCluster) -> dict[str, dict]:
    """Workers that the master counts on, by address."""
    with urllib.request.urlopen(
        urllib.request.Request(cluster.page + "json/", headers=dict(cluster.secrets.headers))
    ) as page:
        return {worker["host"]: worker for worker in json.load(page)["workers"] if worker["state"] == "ALIVE"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[LocalCluster]:
    """A master and the hosts `a` and `b`, registered."""
    cluster = LocalCluster(Local(max_hosts=3), tmp_path_factory.mktemp("cluster"))
    cluster.start()
    try:
        cluster.spawn("a")
        cluster.spawn("b", HostType("large", cores=2, memory=2000))
        wait_until(lambda: len(registered(cluster)) == 2)
        yield cluster
    finally:
        cluster.close()
        assert tagged(cluster.run) == {}
        assert not [*Path("/sys/fs/cgroup").glob(f"**/elastream-{cluster.run}*")]
        assert (cluster.folder / "supervisor.log").read_text() == ""


@pytest.mark.spark
@pytest.mark.cluster
class TestLocalCluster:
    """In the order in which they stand: the last ones end hosts."""

    def test_each_host_registers_with_its_own_address_and_what_its_type_offers(self, cluster):
        assert cluster.address("a") != cluster.address("b")
        offered = {host: (worker["cores"], worker["memory"]) for host, worker in registered(cluster).items()}
        assert offered == {cluster.address("a"): (1, 667), cluster.address("b"): (2, 1335)}

    def test_a_host_is_alive_and_uses_cpu_time_and_memory(self, cluster):
        assert cluster.alive("a")
        assert cluster.failure("a") == ""
        assert cluster.measure()["a"].cpu_seconds > 0.1
        assert cluster.measure()["a"].memory > 50

    def test_spawning_a_name_again_changes_nothing(self, cluster):
        before = tagged(cluster.run)
        cluster.spawn("a")
        assert tagged(cluster.run) == before

    def test_a_quota_can_be_set_and_lifted_while_a_host_runs(self, cluster):
        if "CPU quota" not in cluster.confinement:
            pytest.skip(cluster.confinement)
        cluster.confine("a", 0.5)
        cluster.confine("a", None)
        assert cluster.alive("a")

    @pytest.mark.parametrize("name", ["master", "../etc", "", "a b"])
    def test_a_name_that_cannot_be_a_hosts_is_refused(self, cluster, name):
        with pytest.raises(CloudError, match="cannot be a host's name"):
            cluster.spawn(name)

    def test_a_second_cluster_at_the_same_time_has_other_addresses(self, cluster, tmp_path):
        with LocalCluster(Local(), tmp_path) as other:
            assert other.driver_address != cluster.driver_address
            assert registered(other) == {}
        assert tagged(other.run) == {}
        assert cluster.alive("a")

    def test_a_worker_that_dies_at_once_says_why(self, cluster, monkeypatch):
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+NoSuchOption")
        cluster.spawn("c")
        wait_until(lambda: not cluster.alive("c"))
        assert "ended with status 1" in cluster.failure("c")
        assert "NoSuchOption" in cluster.failure("c")
        wait_until(lambda: "c" not in tagged(cluster.run).values())

    def test_a_decommissioned_host_without_executors_leaves_the_master(self, cluster):
        cluster.decommission("a")
        wait_until(lambda: not cluster.alive("a"))
        wait_until(lambda: cluster.address("a") not in registered(cluster))
        assert cluster.alive("b")

    def test_a_killed_host_is_not_alive_from_that_moment_on(self, cluster):
        assert "b" in tagged(cluster.run).values()
        cluster.kill("b")
        assert not cluster.alive("b")
        said = cluster.failure("b")
        assert said.startswith("the worker of host 'b' was killed")
        assert "INFO" not in said  # of its usual work its log has enough
        wait_until(lambda: "b" not in tagged(cluster.run).values())
        wait_until(lambda: registered(cluster) == {})


DRIVER = """
import os, sys, time
from pathlib import Path
from elastream.clouds.local.cluster import LocalCluster
from elastream.clouds.local.local import Local
cluster = LocalCluster(Local(), Path({folder!r}))
cluster.start()
cluster.spawn("a")
{then}
print(cluster.run, flush=True)
time.sleep(600)
"""

WITH_A_SESSION = """
from pyspark.sql import SparkSession
os.environ["SPARK_LOCAL_IP"] = cluster.driver_address
os.environ["PYSPARK_PYTHON"] = sys.executable
settings = {
    "spark.driver.host": cluster.driver_address, "spark.executor.memory": f"{cluster.executor_memory_mb}m",
    "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF",
    **cluster.secrets.session_settings, "spark.authenticate.secret": cluster.secrets.shared,
}
builder = SparkSession.builder.master(cluster.url)
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
assert spark.range(0, 8, 1, 2).mapInArrow(lambda batches: batches, "id long").count() == 8
"""


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("ending", "then", "hosts"),
    [
        pytest.param(signal.SIGTERM, "", {"master", "a"}, id="SIGTERM while a worker starts"),
        pytest.param(signal.SIGINT, "", {"master", "a"}, id="SIGINT while a worker starts", marks=pytest.mark.slow),
        pytest.param(
            signal.SIGKILL,
            WITH_A_SESSION,
            {"master", "a"},
            id="SIGKILL while executors and Python workers live",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_nothing_is_left_of_a_driver_that_is_ended(tmp_path, ending, then, hosts):
    mark = a_mark()
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(folder=str(tmp_path), then=then)],
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "driver.log").open("w"),
        text=True,
        start_new_session=True,
        env={**os.environ, **mark},
    )
    assert driver.stdout is not None
    run = driver.stdout.readline().strip()
    assert run, (tmp_path / "driver.log").read_text()
    wait_until(lambda: set(tagged(run).values()) - {""} == hosts)
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in tagged(run)]
    assert any(b"pyspark.daemon" in command for command in commands) == bool(then)
    os.killpg(driver.pid, ending)
    driver.wait(20)
    wait_until(lambda: not tagged(run))
    wait_until(lambda: not marked(mark))


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_worker_in_a_network_namespace_of_its_own_reaches_the_master(tmp_path):
    with LocalCluster(Local(max_hosts=1, network=Link(rate="100mbit")), tmp_path) as cluster:
        if "100 Mbit/s" not in cluster.confinement:
            pytest.skip(cluster.confinement)
        cluster.spawn("a")
        wait_until(lambda: cluster.address("a") in registered(cluster))
        worker = next(pid for pid, host in tagged(cluster.run).items() if host == "a")
        assert os.readlink(f"/proc/{worker}/ns/net") != os.readlink("/proc/self/ns/net")
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    assert f"elastream{cluster.address('a').split('.')[2]}:" not in links


def test_temporary_folders_leave_socket_paths_short_enough_for_linux(monkeypatch, tmp_path):
    name = "elastream-01234567-199"
    short = Path("/tmp")
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    assert temporary_folder(name) == short / name
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert temporary_folder(name) == short / name
    with tempfile.TemporaryDirectory(prefix="s" * (MAX_TEMPORARY_PATH - len("/tmp/") - 8), dir=short) as longest:
        assert len(longest) == MAX_TEMPORARY_PATH
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"{longest}/.{uuid.uuid4()}.sock")
    with pytest.raises(EnvironmentProblem, match=r"set TMPDIR to a folder with at most 41 characters"):
        temporary_folder(name, usual=[tmp_path / "gone"])
