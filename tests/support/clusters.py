"""Clusters that are not ours, started apart from Elastream, and sessions on them."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession

from conformance.provider_suite import Made
from elastream.clouds.local.java import class_path, find_java, spark_home
from elastream.clouds.local.processes import end_with_parent
from elastream.clouds.provider import ExistingSession, HostStatus, Phase, executor_memory
from elastream.core.hosts import HostType
from elastream.recording.file_systems import FILES_REACHED_BY, reached_by
from elastream.recording.paths import RemotePath
from elastream.spark.jvm.cluster_manager import pending_reason
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.executors import AllocationClient, Executors
from elastream.spark.jvm.session import open_session, settings_for
from support.marked_processes import a_mark, marked
from support.shared_session import forget_jvm
from support.waiting import ended, wait_until

PORTS = count(21_000 + os.getpid() % 1_900)
"""Every cluster of this process has ports of its own."""
HOST = "127.0.0.1"
HERE = Path(__file__).parents[1]
PROGRAMS = HERE / "support" / "programs"
KAFKA = HERE / "support" / "kafka"
KAFKA_CONNECTORS = [
    {"connector": pyspark.__version__, "tokens": pyspark.__version__},
    # A mirror may lag behind Spark's own release: the newest parts that it was seen to hold, of one binary interface.
    {"connector": "4.2.0", "tokens": "4.1.0-preview1"},
]


def free_port() -> int:
    while True:
        port = next(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port


@dataclass
class Processes:
    """Processes that end with the context; `folder` has their logs."""

    folder: Path
    started: list[subprocess.Popen] = field(default_factory=list)

    def start(self, name: str, command: list[str], cwd: Path | None = None, **environment: str) -> subprocess.Popen:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        self.started.append(process)
        return process

    def end(self) -> None:
        for process in reversed(self.started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    folder.mkdir(parents=True, exist_ok=True)
    found = Processes(folder)
    try:
        yield found
    finally:
        found.end()


@dataclass(frozen=True)
class StandaloneCluster:
    """A master with workers on this machine. page: of the master."""

    master: str
    page: str

    def state(self) -> dict:
        with urllib.request.urlopen(f"{self.page}/json/", timeout=10) as answer:
            return json.load(answer)


@contextlib.contextmanager
def standalone(folder: Path, workers: int = 2, cores: int = 1, memory: str = "800m") -> Iterator[StandaloneCluster]:
    """A master and `workers` workers; ready when all have registered."""
    with processes(folder) as started:
        port, page = free_port(), free_port()
        small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path()]
        java = [str(find_java()), *small]
        home = {"SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": HOST, "SPARK_SCALA_VERSION": "2.13"}
        place = ["--host", HOST, "--port", str(port), "--webui-port", str(page)]
        started.start("master", [*java, "org.apache.spark.deploy.master.Master", *place], **home)
        cluster = StandaloneCluster(f"spark://{HOST}:{port}", f"http://{HOST}:{page}")
        # A worker that finds no master tries again only after seconds.
        wait_until(lambda: _status(cluster) == "ALIVE")
        for number in range(workers):
            has = ["--host", HOST, "--port", "0", "--webui-port", "0", "--cores", str(cores), "--memory", memory]
            work = ["--work-dir", str(folder / f"worker-{number}")]
            worker = "org.apache.spark.deploy.worker.Worker"
            started.start(f"worker-{number}", [*java, worker, *has, *work, cluster.master], **home)
        wait_until(lambda: cluster.state()["aliveworkers"] == workers)
        yield cluster


def _status(cluster: StandaloneCluster) -> str:
    try:
        return cluster.state()["status"]
    except (OSError, ValueError):
        return ""


def kill_executor(number: str, application: str) -> bool:
    """SIGKILL to the JVM of an executor of this machine; returns whether there was one."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "--executor-id" in words and words[words.index("--executor-id") + 1] == number and application in words:
            process.kill()
            return True
    return False


def settings_on(cloud: Any, provider: Any) -> dict[str, str]:
    """Settings of a session whose executors are those of `cloud`, none of them here yet."""
    reach = provider.terms.endpoint
    (kind,) = cloud.types
    return {
        **settings_for(
            driver_address=reach.driver_address,
            executor_memory=reach.executor_memory,
            executor_cores=reach.executor_cores,
            state_partitions=4,
            host_cores=[kind.cores],
        ),
        **reach.settings,
    }


@contextlib.contextmanager
def session_on(cloud: Any, folder: Path) -> Iterator[tuple[SparkSession, Any, AllocationClient]]:
    """A session that `cloud` leases for, as a run opens it: with its provider, and what executors are requested by."""
    forget_jvm()
    folder.mkdir(parents=True, exist_ok=True)
    provider = cloud.open(folder)
    reach = provider.terms.endpoint
    spark = open_session(
        reach.master, "tests", folder, settings_on(cloud, provider), python=reach.python, packaged=reach.packaged
    )
    client = AllocationClient(spark, Executors(DriverSide(spark)), pending_reason(spark))
    try:
        client.take_over()
        client.executors.look()
        provider.bind(client)
        yield spark, provider, client
    finally:
        provider.close()
        spark.stop()
        forget_jvm()


@contextlib.contextmanager
def users_session(
    master: str, folder: Path, kind: HostType, settings: Mapping[str, str], *, packaged: bool = False
) -> Iterator[SparkSession]:
    """A session as a user opens it, with executors of `kind`; it knows nothing of Elastream's clouds."""
    forget_jvm()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = settings_for(
        driver_address=HOST,
        executor_memory=executor_memory(kind),
        executor_cores=kind.slots,
        state_partitions=4,
        host_cores=[0.5],
    )
    spark = open_session(master, "user", folder, {**wanted, **settings}, packaged=packaged)
    try:
        yield spark
    finally:
        spark.stop()
        forget_jvm()


def conforming(
    cloud: Any, cluster: Callable[[Path], Any], room: int = 2, kill: Callable[[str, str], object] = kill_executor
) -> Callable:
    """What a `ProviderCase` needs of the provider over a real cluster, which has room for so many executors."""

    @contextlib.contextmanager
    def make(folder: Path) -> Iterator[Made]:
        with cluster(folder / "cluster") as there:
            leases = cloud(there)
            place = folder / "run" / "cluster"
            place.mkdir(parents=True)
            with session_on(leases, place) as (spark, provider, client):
                (kind,) = leases.types

                def tick() -> None:
                    time.sleep(0.1)
                    client.executors.look()

                def fill(full: bool) -> None:
                    if full:
                        provider.lease({f"other{number}": kind for number in range(room)})
                        wait_until(lambda: client.executors.look() and up(provider) == room)
                    else:
                        provider.release([f"other{number}" for number in range(room)])

                def reopen() -> Any:
                    session = ExistingSession(spark.sparkContext.master, 0, kind.slots, allocator=client, allowed=0)
                    return leases.open(place, session=session)

                yield Made(
                    provider,
                    kind,
                    tick,
                    lambda host: kill(provider.hosts()[host].executor, client.application),
                    fill,
                    lambda: len(client.executors.look()),
                    reopen,
                )

    return make


def refused(provider: Any, client: AllocationClient, host: str = "h1") -> HostStatus:
    """The status of a host once the cluster has said that it has no room for it, or never will."""

    def said() -> HostStatus | None:
        client.executors.look()
        status = provider.hosts()[host]
        return status if status.refused or status.phase is Phase.GONE else None

    return wait_until(said)


def run_program(folder: Path, cloud: str, **environment: str) -> str:
    """What `elastream run` of a program that counts writes on a cluster; it checks its own counts."""
    program = PROGRAMS / "counts_on_cluster.py"
    command = [sys.executable, "-c", "from elastream.cli.app import app; app()", "run", str(program)]
    command += ["--cloud", cloud, "--no-live"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, **environment}, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every count is exact" in done.stdout
    return done.stdout


SAYS = "elastream: "
"""What a sentence about a problem begins with."""


def refused_program(folder: Path, program: str, *options: str, **environment: str) -> str:
    """The one sentence with which `elastream run` of a program in `programs` ends, with status 2 and nothing of it left."""
    command = [sys.executable, "-c", "from elastream.cli.app import app; app()", "run", str(PROGRAMS / program)]
    command += [*options, "--no-live", "--runs", str(folder / "runs")]
    mark = a_mark()
    run = subprocess.Popen(
        command, cwd=folder, text=True, env={**os.environ, **environment, **mark},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = ended(run, progress=lambda: tuple(marked(mark)))
    assert run.returncode == 2, out + err
    assert "Traceback" not in err
    assert marked(mark) == {}
    *before, last = err.strip().splitlines()
    assert last.startswith(SAYS), err
    assert not [line for line in before if line.startswith(SAYS)], err
    return last.removeprefix(SAYS)


def up(provider: Any) -> int:
    """How many hosts are up; where that is all that the cluster has room for, further requests wait."""
    return sum(status.phase is Phase.UP for status in provider.hosts().values())


def kept_jars(pom: Path, versions: Mapping[str, str]) -> Path:
    """Folder of the jars of `pom`; `complete` in it tells that all of them are there."""
    return Path(os.environ["JARS_OF_TESTS"]) / "-".join((pom.stem, *versions.values()))


def java_dependencies(pom: Path, *, transitive: bool = False, **versions: str) -> list[Path]:
    """Jars that Maven fetches for `pom`, kept from run to run; skips the test, with a sentence, where it cannot."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("Java and Maven are needed")
    folder = kept_jars(pom, versions)
    if not (folder / "complete").exists():
        command = ["mvn", "-q", "-B", "-f", str(pom), *(f"-D{name}={value}" for name, value in versions.items())]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        command += ["-DincludeScope=runtime" if transitive else "-DexcludeTransitive=true"]
        tried = subprocess.run(command, capture_output=True, text=True)
        if tried.returncode:
            pytest.skip(f"Maven cannot fetch what {pom.name} names: {tried.stdout.strip()[:200]}")
        (folder / "complete").touch()
    return sorted(folder.glob("*.jar"))


@contextlib.contextmanager
def kafka_broker(folder: Path) -> Iterator[str]:
    """`host:port` of a broker."""
    found = java_dependencies(KAFKA / "broker.xml", transitive=True)
    port, controller = free_port(), free_port()
    with processes(folder) as started:
        properties = folder / "server.properties"
        properties.write_text(
            f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{HOST}:{controller}
listeners=PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}
advertised.listeners=PLAINTEXT://{HOST}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder / "data"}
num.partitions=3
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
        )
        java = ["java", "-Xmx256m", "-cp", os.pathsep.join(map(str, found))]
        identity = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        format_storage = [*java, "kafka.tools.StorageTool", "format", "-t", f"x{identity[1:]}", "-c", str(properties)]
        subprocess.run(format_storage, check=True, capture_output=True)
        process = started.start("broker", [*java, "kafka.Kafka", str(properties)])

        def log() -> str:
            return (folder / "broker.log").read_text()[-1000:]

        def answers() -> bool:
            assert process.poll() is None, f"the broker ended: {log()}"
            return not socket.socket().connect_ex((HOST, port))

        wait_until(answers, otherwise=lambda: f"the broker does not answer: {log()}")
        yield f"{HOST}:{port}"


def kafka_connector() -> str:
    """`spark.jars` of the connector of this Spark, or else the newest to be had."""
    pom = KAFKA / "connector.xml"
    for versions in sorted(KAFKA_CONNECTORS, key=lambda each: not (kept_jars(pom, each) / "complete").exists()):
        with contextlib.suppress(pytest.skip.Exception):
            return ",".join(map(str, java_dependencies(pom, transitive=True, **versions)))
    pytest.skip("Maven cannot fetch the connector for Kafka")


@dataclass(frozen=True)
class YarnCluster:
    """A ResourceManager and two NodeManagers. configuration: the folder with Hadoop's files, also in HADOOP_CONF_DIR.

    staging: where clients leave what is to be shipped. page: of the ResourceManager.
    """

    configuration: Path
    staging: str
    page: str

    def containers(self) -> tuple[int, int]:
        """Containers that executors have, and those that are requested and not granted; each application has one more."""
        with urllib.request.urlopen(f"{self.page}/ws/v1/cluster/metrics", timeout=10) as answer:
            found = json.load(answer)["clusterMetrics"]
        return max(0, found["containersAllocated"] - found["appsRunning"]), found["containersPending"]


SPARK_JARS = spark_home() / "jars"


def minicluster() -> list[Path]:
    """Jars of Hadoop's own servers, of the version of Spark's Hadoop."""
    hadoop = next(SPARK_JARS.glob("hadoop-client-api-*.jar")).stem.removeprefix("hadoop-client-api-")
    return java_dependencies(HERE / "support" / "yarn" / "minicluster.xml", hadoop=hadoop)


@contextlib.contextmanager
def yarn(folder: Path, memory: int = 2048, cores: int = 2) -> Iterator[YarnCluster]:
    """A real YARN, of the version of Spark's own Hadoop, with two nodes of `memory` MiB and `cores` cores each."""
    fetched = minicluster()
    with processes(folder) as started, pytest.MonkeyPatch.context() as patch:
        configuration = folder / "conf"
        configuration.mkdir()
        path = os.pathsep.join(map(str, [*fetched, SPARK_JARS / "*"]))
        source = HERE / "support" / "yarn" / "MiniYarn.java"
        command = ["java", "-Xmx512m", "-cp", path, str(source), str(configuration), str(memory), str(cores)]
        process = started.start("yarn", command, cwd=folder)
        log = folder / "yarn.log"
        wait_until(lambda: "READY" in log.read_text() or process.poll() is not None)
        assert process.poll() is None, f"YARN ended: {log.read_text()[-2000:]}"
        patch.setenv("HADOOP_CONF_DIR", str(configuration))
        said = ElementTree.parse(configuration / "yarn-site.xml").getroot().iter("property")
        (page,) = [
            each.findtext("value") for each in said if each.findtext("name") == "yarn.resourcemanager.webapp.address"
        ]
        yield YarnCluster(configuration, (folder / "staging").as_uri(), f"http://{page}")


NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"


@contextlib.contextmanager
def hdfs(folder: Path) -> Iterator[str]:
    """A real HDFS of Spark's own version, with one data node: its address; HADOOP_CONF_DIR says how it is reached."""
    fetched = minicluster()
    with processes(folder) as started, pytest.MonkeyPatch.context() as patch:
        configuration = folder / "conf"
        configuration.mkdir()
        address, web = f"hdfs://{HOST}:{free_port()}", f"{HOST}:{free_port()}"
        (configuration / "core-site.xml").write_text(_as_xml({"fs.defaultFS": address}))
        kinds = ("address", "http.address", "ipc.address")
        at_data_node = {f"dfs.datanode.{kind}": f"{HOST}:{free_port()}" for kind in kinds}
        about = {
            "dfs.namenode.http-address": web,
            "dfs.namenode.name.dir": (folder / "name").as_uri(),
            "dfs.datanode.data.dir": (folder / "data").as_uri(),
            "dfs.datanode.hostname": HOST,
            "dfs.replication": "1",
            # A file is closed once its block is reported: one that asks at once is told to come again in 400 ms.
            "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10",
            **at_data_node,
        }
        (configuration / "hdfs-site.xml").write_text(_as_xml(about))
        path = os.pathsep.join(map(str, [configuration, *fetched, SPARK_JARS / "*"]))
        java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", path]
        subprocess.run([*java, NAME_NODE, "-format", "-nonInteractive"], check=True, capture_output=True, cwd=folder)
        for name, node in (("name", NAME_NODE), ("data", DATA_NODE)):
            started.start(f"{name}-node", [*java, node], cwd=folder)
        patch.setenv("HADOOP_CONF_DIR", str(configuration))
        patch.setenv(FILES_REACHED_BY, reached_by({}))
        wait_until(lambda: _takes_files(address))
        yield address


def _as_xml(settings: Mapping[str, str]) -> str:
    properties = "".join(f"<property><name>{n}</name><value>{v}</value></property>" for n, v in settings.items())
    return f"<configuration>{properties}</configuration>"


def _takes_files(address: str) -> bool:
    try:
        (RemotePath(address) / "ready").write_text("yes")
    except OSError:
        return False
    return True


YARN_HERE = {
    "spark.yarn.jars": f"local:{SPARK_JARS}/*",
    "spark.yarn.am.memory": "400m",
    "spark.python.unix.domain.socket.enabled": "false",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
}
"""Settings of a session on a YARN whose nodes are this machine: nothing is uploaded, its application master is small."""
