"""Arms of the benchmark: ways in which a query gets its executors, on local hosts or a cluster."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.api.autopilot import Autopilot
from elastream.clouds import kubernetes, standalone, yarn
from elastream.clouds.executors import ExecutorCloud, is_this_machine
from elastream.clouds.local.cluster import LocalCluster
from elastream.clouds.local.local import Local
from elastream.clouds.provider import ClusterEndpoint, PendingReason, executor_memory
from elastream.core.action import DrainHost
from elastream.core.hosts import HostType
from elastream.core.observation import Observation
from elastream.core.plant import Plan, Policy
from elastream.core.scaling import ScalingRules
from elastream.documents.registry import POLICY, made, named_in
from elastream.documents.user_code import References
from elastream.errors import EnvironmentProblem, InputError
from elastream.policies.by_load import ByLoad
from elastream.policies.common.measures import emptied
from elastream.policies.static import missing_hosts
from elastream.recording.observer import Observer
from elastream.spark.dataflow.kafka import with_connector
from elastream.spark.hosts.warmup import warm_up
from elastream.spark.jvm.cluster_manager import pending_reason
from elastream.spark.jvm.driver_side import DriverSide, why_in_java
from elastream.spark.jvm.executor_use import ExecutorUse
from elastream.spark.jvm.executors import AllocationClient, Executor, Executors
from elastream.spark.jvm.session import STATE_STORES, open_session, session_stopped, settings_for

START_TIMEOUT_S = 300.0
PERIOD_S = 2.0  # of Autopilot's decisions
SETTLING_S = 6.0  # time in which a new executor has no quota, and first batches are slow
LOOK_S = 0.5
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.numRecentProgressUpdates": "2000",
}
IMAGE = "spark.kubernetes.container.image"
ON_DISK = {
    **STATE_STORES["disk"],
    # Another file system than the one which the session has opened.
    "fs.file.impl": STATE_STORES["disk"]["spark.hadoop.fs.file.impl"],
    "fs.file.impl.disable.cache": "true",
}
# Every executor has a task in every batch: an idle timeout above the trigger's interval gives few executors back. A shorter
# one releases them between two batches, and the next batch waits for executors to start. Of the settings of dynamic
# allocation that were tried, these had the most records in time.
DYNAMIC_ALLOCATION: Mapping[str, str] = MappingProxyType(
    {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.timeout": "5s",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.initialExecutors": "1",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        "spark.dynamicAllocation.sustainedSchedulerBacklogTimeout": "1s",
        "spark.dynamicAllocation.executorIdleTimeout": "5s",
    }
)

# Registration and end of each executor, in seconds since 1970; None: it is there yet.
Spans: TypeAlias = Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Arm:
    """A way to give a query its executors.

    Attributes:
        name: `fixed:N`, `watched:N`, `dra` or `autopilot[:POLICY]`.
        policy: Policy of Autopilot; None: its default.
    """

    name: str
    hosts: int = 0
    policy: Policy | None = field(default=None, compare=False)

    @property
    def dynamic(self) -> bool:
        return self.name == "dra"

    @property
    def first(self) -> int:
        """Return the executors with which the arm begins."""
        return self.hosts or 1

    @property
    def piloted(self) -> bool:
        """Return True if Autopilot manages the queries. In a `watched` arm it only moves state, on fixed executors."""
        return self.name.startswith(("autopilot", "watched"))


def arm_of(text: str) -> Arm:
    """Return the arm that `text` names, or raise ElastreamError."""
    text = text.strip()
    name, _, rest = text.partition(":")
    if name in ("fixed", "watched"):
        if not rest.isdecimal() or int(rest) == 0:
            raise InputError(f"the arm {text!r} needs a number of hosts, such as {name}:2")
        return Arm(f"{name}:{int(rest)}", int(rest))
    if name == "autopilot" and rest:
        return Arm(text, policy=ByLoad(hosts=made(POLICY, *named_in(rest, POLICY), References(Path()))))
    if text not in ("dra", "autopilot"):
        raise InputError(f"there is no arm {text!r} (there are: fixed:N, watched:N, dra, autopilot, autopilot:POLICY)")
    return Arm(text)


@dataclass(frozen=True)
class Cluster:
    """Where executors run.

    Attributes:
        host: Shape, billing and price of an executor's host.
        max_hosts: Maximum number of executors in an arm that scales.
        partitions: State partitions of every arm.
        master: `spark://HOST:PORT`, `yarn` or `k8s://https://HOST:PORT`; empty: local hosts.
        folder: Folder that the driver and all executors reach by this path; None: a temporary one.
        settings: Further settings of Spark.
    """

    host: HostType
    max_hosts: int
    partitions: int
    master: str = ""
    folder: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.master:
            _ = self.cloud(Arm("fixed:1", 1))

    def most(self, arm: Arm) -> int:
        return arm.hosts or self.max_hosts

    def cloud(self, arm: Arm) -> ExecutorCloud:
        """Return the cloud of the master. Raises ElastreamError."""
        said = self.settings.get
        hosts: dict[str, Any] = {
            "host_type": self.host,
            "min_hosts": arm.first,
            "max_hosts": self.most(arm),
            "driver_address": said("spark.driver.host", ""),
            "settings": self.settings,
        }
        if self.master == yarn.MASTER:
            queue, python = said("spark.yarn.queue", "default"), said("spark.pyspark.python", "")
            return yarn.Yarn(queue=queue, python=python, **hosts)
        if self.master.startswith(kubernetes.SCHEME):
            if not (image := said(IMAGE)):
                raise InputError(f"pods of {self.master} run an image: name it with --setting {IMAGE}=IMAGE")
            namespace, python = said("spark.kubernetes.namespace", "default"), said("spark.pyspark.python", "python3")
            return kubernetes.Kubernetes(image, namespace, self.master, python=python, **hosts)
        if self.master.startswith(standalone.SCHEME):
            return standalone.Standalone(self.master, **hosts)
        masters = f"{standalone.SCHEME}HOST:PORT, {yarn.MASTER} or {kubernetes.SCHEME}https://HOST:PORT"
        raise InputError(f"{self.master!r} is not a master: it is {masters}")


@dataclass(frozen=True)
class Pool:
    name: str
    weight: int

    def __str__(self) -> str:
        return f'<pool name="{self.name}"><schedulingMode>FAIR</schedulingMode><weight>{self.weight}</weight></pool>'


@dataclass(frozen=True)
class Scripted(Policy):
    """As many hosts as `hosts()` returns, with tasks balanced by load."""

    hosts: Callable[[], int]
    name: ClassVar = "scripted"

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Lease what is missing, drain the newest of what is too many, and release what is empty."""
        number = self.hosts()
        surplus = () if observation.coming else observation.usable[number:]
        drains = [DrainHost(host, why=f"{number} are wanted") for host in surplus]
        return Plan((*missing_hosts(observation, number), *drains, *emptied(observation)))


@dataclass
class Causes(Observer):
    """Reason that Autopilot names most often for each late query."""

    sentences: dict[str, Counter[str]] = field(default_factory=dict)

    def observed(self, observation: Observation) -> None:
        for query, diagnosis in observation.diagnoses.items():
            if diagnosis.sentence and diagnosis.measured:
                self.sentences.setdefault(query, Counter())[diagnosis.sentence] += 1


class Session:
    """A session with an arm's executors, followed until it is closed. `requested`: hosts of a scripted Autopilot."""

    def __init__(self, spark: SparkSession, cluster: Cluster, arm: Arm, local: LocalCluster | None) -> None:
        self.spark, self._cluster, self._arm, self._local = spark, cluster, arm, local
        self._driver = DriverSide(spark)
        self._use = ExecutorUse(spark)
        self._use.start()
        self._executors = Executors(self._driver, self._use)
        self.requested = 1
        self._causes = Causes()
        self._warm: set[str] = set()
        self._settled_at = 0.0
        self._spans: dict[str, tuple[float, float | None]] = {}
        self._settled: dict[str, str] = {}  # confined local hosts by executor
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def await_executors(self) -> None:
        """Wait for the arm's first executors, and follow them."""
        first = most = self._arm.first
        if str(self.spark.sparkContext.master).startswith(standalone.SCHEME) and not self._arm.dynamic:
            most = self._cluster.most(self._arm)  # a Standalone master grants all at once
        pending = pending_reason(self.spark)

        def registered() -> int:
            try:
                return len(self._executors.look())
            except (Py4JError, EnvironmentProblem) as error:
                if not session_stopped(self.spark):
                    raise
                raise EnvironmentProblem(
                    f"the cluster ended the session: {pending(0).reason or why_in_java(error)}"
                ) from error

        wait(
            lambda: registered() >= most,
            "1 executor" if most == 1 else f"{most} executors",
            lambda: pending(registered()),
        )
        if self._cluster.folder is None and self._local is None:
            check_reached(each.host for each in self._executors.newest.values())
        if first < most:
            self._give_back(first)
        self._thread.start()

    def _give_back(self, first: int) -> None:
        client = AllocationClient(self.spark, self._executors)
        client.request(first)
        for executor in sorted(self._executors.look(), key=int)[first:]:
            client.kill(executor)
        wait(lambda: len(self._executors.look()) <= first, "the end of the executors that are not needed yet")

    def warm_up(self, root: Path) -> None:
        for id, executor in self._executors.look().items():
            if id not in self._warm:
                warm_up(self.spark, self._driver, executor, root)
                self._warm.add(id)
                self._settled_at = time.monotonic() + SETTLING_S

    def settle(self) -> None:
        """Wait for new executors' quotas."""
        time.sleep(max(0.0, self._settled_at - time.monotonic()))

    @contextmanager
    def starting(self, *, disk: bool, pool: str) -> Iterator[None]:
        """Let queries that start inside have their state in RocksDB, if `disk`, and their tasks in a pool."""
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
        settings = ON_DISK if disk else {}
        for name, value in settings.items():
            self.spark.conf.set(name, value)
        try:
            yield
        finally:
            for name in settings:
                self.spark.conf.unset(name)

    @contextmanager
    def scaling(self, jobs: Sequence[tuple[StreamingQuery, float]], folder: Path, *, scripted: bool) -> Iterator[None]:
        """Let Autopilot manage queries with their target latencies, if the arm is one with Autopilot.

        Args:
            scripted: True to have as many hosts as `requested`, whatever the load.
        """
        if not self._arm.piloted:
            yield
            return
        pilot = Autopilot(
            self.spark,
            target_latency=min(target for _, target in jobs),
            max_hosts=None if self._arm.hosts else self._cluster.max_hosts,
            host_type=None if self._arm.hosts else self._cluster.host,
            cloud=self._cluster.cloud(self._arm) if self._cluster.master and not self._arm.hosts else None,
            policy=ByLoad(hosts=Scripted(lambda: self.requested)) if scripted else self._arm.policy,
            period=PERIOD_S,
            scaling=ScalingRules(stabilization_down=0.0),  # as prompt as dynamic allocation's timeouts
            observers=[self._causes],
            folder=folder,
            show=False,
        )
        with pilot:
            for query, target in jobs:
                pilot.watch(query, target_latency=target)
            wait(lambda: pilot.plant is not None and bool(pilot.plant.hosts.usable), "Autopilot's first look")
            yield

    @property
    def causes(self) -> Mapping[str, str]:
        return {query: sentences.most_common(1)[0][0] for query, sentences in self._causes.sentences.items()}

    def task_seconds(self) -> Mapping[str, float]:
        """Return the seconds of ended tasks by query id."""
        return self._executors.task_seconds

    @property
    def spans(self) -> Spans:
        return list(self._spans.values())

    def kill_executor(self) -> bool:
        """Kill the newest executor's local host and start another; return False if executors are missing."""
        assert self._local is not None
        names = {self._local.address(name): name for name, state in self._local.status().items() if state["alive"]}
        on_hosts = [names[each.host] for each in self._executors.look().values() if each.host in names]
        if len(on_hosts) < self.requested:
            return False
        self._local.kill(on_hosts[-1])
        self._local.spawn(f"{on_hosts[-1]}n", self._cluster.host)
        return True

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _follow(self) -> None:
        while not self._ended.wait(LOOK_S):
            with suppress(Py4JError, EnvironmentProblem, OSError):  # the session or the cluster ends
                self._update_spans(self._executors.look(), time.time())

    def _update_spans(self, executors: Mapping[str, Executor], now: float) -> None:
        for id in executors.keys() - self._spans.keys():
            self._spans[id] = (now, None)
        for id, (since, until) in list(self._spans.items()):
            if until is None and id not in executors:
                self._spans[id] = (since, now)
                self._lift_quota(id)
            elif until is None and now - since > SETTLING_S and id not in self._settled:
                self._set_quota(id, executors[id].host)

    def _set_quota(self, id: str, address: str) -> None:
        if self._local is None:
            return
        names = {self._local.address(name): name for name, state in self._local.status().items() if state["alive"]}
        if address in names:
            self._settled[id] = names[address]
            self._local.confine(names[address], self._cluster.host.cores)

    def _lift_quota(self, id: str) -> None:
        if (name := self._settled.pop(id, "")) and self._local is not None and self._local.alive(name):
            self._local.confine(name, None)


@contextmanager
def open_arm(
    cluster: Cluster, arm: Arm, root: Path, *, kafka: bool = False, pools: Sequence[Pool] = ()
) -> Iterator[Session]:
    """Open a session with the executors of `arm`, with files in `root`.

    Args:
        kafka: True if the session needs Spark's Kafka connector.
        pools: Scheduler pools, if there are several.

    Raises:
        EnvironmentProblem: Spark does not start, or the cluster has no room.
    """
    host, most, local = cluster.host, cluster.most(arm), None
    (files := root / "session").mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if cluster.master:
            endpoint = cluster.cloud(arm).open(files).terms.endpoint
            assert endpoint is not None
        else:
            local = stack.enter_context(closing(LocalCluster(Local(host, max_hosts=most), root / "cluster")))
            url, own = local.start(), {**local.secrets.session_settings, "spark.cores.max": str(most * host.slots)}
            reach = local.driver_address, executor_memory(host), host.slots, own
            endpoint = ClusterEndpoint(url, *reach, secret=local.secrets.shared)
            for number in range(most):
                local.spawn(f"bench{number}", host)
        settings = {
            **settings_for(
                driver_address=endpoint.driver_address,
                executor_memory=endpoint.executor_memory,
                executor_cores=endpoint.executor_cores,
                state_partitions=cluster.partitions,
                host_cores=[host.cores],
            ),
            **endpoint.settings,
            "spark.dynamicAllocation.enabled": "false",
            **({**DYNAMIC_ALLOCATION, "spark.dynamicAllocation.maxExecutors": str(most)} if arm.dynamic else {}),
            **SETTINGS,
            **_scheduling(pools, files / "pools.xml"),
            **(with_connector(cluster.settings) if kafka else cluster.settings),
        }
        spark = open_session(
            endpoint.master,
            "nexmark",
            files,
            settings,
            endpoint.secret,
            python=endpoint.python,
            packaged=endpoint.packaged,
        )
        # The cluster ends before the session: its stop would wait for hosts.
        ended = stack.pop_all()
        session = Session(spark, cluster, arm, local)
        try:
            session.await_executors()
            yield session
        finally:
            session.close()
            ended.close()
            spark.stop()


def _scheduling(pools: Sequence[Pool], file: Path) -> Mapping[str, str]:
    """Return the settings of `pools`, which are written to `file`; nothing for a single one."""
    if len(pools) < 2:
        return {}
    file.write_text(f"<allocations>{''.join(map(str, pools))}</allocations>")
    return {"spark.scheduler.mode": "FAIR", "spark.scheduler.allocation.file": file.as_uri()}


def check_reached(addresses: Iterable[str]) -> None:
    """Raise EnvironmentProblem if an executor is on another machine."""
    for address in addresses:
        if not is_this_machine(address):
            raise EnvironmentProblem(f"an executor is at {address}, on another machine: name a --folder that both reach")


def wait(
    holds: Callable[[], bool],
    what: str,
    pending: Callable[[], PendingReason] = PendingReason,
    timeout: float = START_TIMEOUT_S,
) -> None:
    """Wait until `holds()`. Raises EnvironmentProblem after `timeout` seconds, or if `pending()` says never."""
    until = time.monotonic() + timeout
    while not holds():
        why = pending()
        if why.never or time.monotonic() >= until:
            late = "will not come" if why.never else f"did not come within {timeout:g} s"
            raise EnvironmentProblem(f"{what} {late}" + (f": {why.reason}" if why.reason else ""))
        time.sleep(0.2)
