"""A local cluster as another user of the machine meets it: one cluster and one session for all that is tried."""

import json
import os
import stat
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError

import psutil
import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from elastream.clouds.local.authentication import POOL_TOKEN
from elastream.clouds.local.cluster import LocalCluster
from elastream.clouds.local.confinement import tagged
from elastream.clouds.local.processes import SECRET
from elastream.spark.jvm.driver_side import jvm_of
from support.foreign_sessions import one_executor

TOKEN = "a token that nobody else may see"
pytestmark = [pytest.mark.spark, pytest.mark.slow]


@dataclass
class Closed:
    spark: SparkSession
    cluster: LocalCluster

    @property
    def processes(self) -> list[psutil.Process]:
        """The driver's JVM, and all processes of hosts and of the master."""
        assert SparkContext._gateway is not None
        found = [psutil.Process(pid) for pid in (SparkContext._gateway.proc.pid, *tagged(self.cluster.run))]
        return [each for each in found if each.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def closed(tmp_path_factory) -> Iterator[Closed]:
    os.environ[POOL_TOKEN] = TOKEN
    try:
        with one_executor(tmp_path_factory.mktemp("closed") / "cluster") as (spark, cluster):
            assert spark.range(0, 4, 1, 2).mapInArrow(lambda batches: batches, "id long").count() == 4
            yield Closed(spark, cluster)
    finally:
        del os.environ[POOL_TOKEN]


def knock(closed: Closed, settings: dict[str, str]) -> None:
    """Reach the master as an application does that is about to register, with these settings of Spark."""
    jvm = jvm_of(closed.spark)
    conf = jvm.org.apache.spark.SparkConf(False)
    for name, value in {"spark.rpc.lookupTimeout": "20s", **settings}.items():
        conf.set(name, value)
    usual = getattr(jvm.org.apache.spark.SecurityManager, "$lessinit$greater$default$3")()
    manager = jvm.org.apache.spark.SecurityManager(conf, jvm.scala.Option.empty(), usual)
    env = jvm.org.apache.spark.rpc.RpcEnv.create("stranger", "127.0.0.1", 0, conf, manager, True)
    try:
        host, port = closed.cluster.url.removeprefix("spark://").split(":")
        env.setupEndpointRef(jvm.org.apache.spark.rpc.RpcAddress(host, int(port)), "Master")
    finally:
        env.shutdown()


def test_only_an_application_that_knows_the_secret_is_accepted(closed):
    knock(closed, closed.cluster.secrets.session_settings)
    with pytest.raises(Py4JError):
        knock(closed, {})


def test_everything_listens_on_loopback_alone(closed):
    found = {
        connection.laddr.ip.removeprefix("::ffff:")  # Java's sockets are of both families where there is IPv6
        for process in closed.processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert closed.cluster.driver_address in found
    assert all(address.startswith("127.") or address == "::1" for address in found), found


def test_web_pages_ask_for_a_token_and_end_nothing(closed):
    page = closed.cluster.page + "json/"
    with pytest.raises(HTTPError, match="403"):
        urllib.request.urlopen(page)
    with urllib.request.urlopen(urllib.request.Request(page, headers=dict(closed.cluster.secrets.headers))) as answer:
        assert json.load(answer)["status"] == "ALIVE"
    told = [" ".join(each.cmdline()) for each in closed.processes]
    assert sum("-Dspark.ui.killEnabled=false" in each for each in told) == 2  # the master and a worker


def test_folders_and_files_are_their_owners_alone(closed):
    folder = closed.cluster.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("daemons.conf", "master.log", "stranger.log", "supervisor.log"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    (temporary,) = Path(os.environ.get("TMPDIR", "/tmp")).glob(f"elastream-{closed.cluster.run}-*")
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700
    assert any(each.is_socket() for each in temporary.iterdir())  # of the executor's Python workers


def test_secrets_are_where_they_are_needed_and_nowhere_else(closed):
    shared = closed.cluster.secrets.shared
    assert shared is not None
    knowing = set()
    for process in closed.processes:
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        assert TOKEN.encode() not in environment, process
        assert shared not in " ".join(process.cmdline()), process
        if shared.encode() in environment:
            knowing.add(process.cmdline()[-1])
    assert len(knowing) == 1, knowing  # the executor, and none of the Python processes that it starts
    settings = dict(closed.spark.sparkContext.getConf().getAll())
    assert shared not in settings.values()

    def seen(batches):
        import pyarrow as pa

        for _ in batches:
            names = sorted({SECRET, POOL_TOKEN} & set(os.environ))
            yield pa.RecordBatch.from_pydict({"name": names}, pa.schema([("name", pa.string())]))

    assert closed.spark.range(1).mapInArrow(seen, "name string").collect() == []
