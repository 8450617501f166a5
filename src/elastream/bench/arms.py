"""Arms of the benchmark: the ways in which a query gets its executors, on local hosts or on a Standalone cluster.

Local hosts are workers of a Standalone master on this machine, so all arms request executors in the same way.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.api.autopilot import Autopilot
from elastream.clouds.executors import address_of, address_towards
from elastream.clouds.local.cluster import LocalCluster
from elastream.clouds.local.local import Local
from elastream.clouds.provider import executor_memory
from elastream.clouds.standalone import PORT, SCHEME
from elastream.core.hosts import HostType
from elastream.core.plant import Policy
from elastream.core.scaling import ScalingRules
from elastream.documents.registry import POLICY, made, named_in
from elastream.documents.user_code import References
from elastream.errors import EnvironmentProblem, InputError
from elastream.policies.by_load import ByLoad
from elastream.spark.dataflow.kafka import with_connector
from elastream.spark.hosts.warmup import warm_up
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.executors import AllocationClient, Executor, Executors
from elastream.spark.jvm.session import open_session, settings_for

START_TIMEOUT_S = 300.0
PERIOD_S = 2.0  # of Autopilot's decisions
SETTLING_S = 6.0  # for which a new executor has no quota, and the first batches of a query are slow
LOOK_S = 0.5
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.numRecentProgressUpdates": "2000",
}
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
"""Settings of dynamic allocation that had most records in time of those tried.

Every executor has a task in every batch: an idle timeout above the trigger's interval gives few executors back. A shorter
one gives them back between two batches, and the next batch waits for executors that start.
"""

Spans: TypeAlias = Sequence[tuple[float, float | None]]
"""Registration and end of each executor, in seconds since 1970; None: it is there yet."""


@dataclass(frozen=True)
class Arm:
    """A way to give a query its executors.

    Attributes:
        name: `fixed:N`, `dra` or `autopilot[:POLICY]`.
        hosts: Number of executors of a fixed arm; 0 for others.
        policy: Policy of Autopilot; None: its default.
    """

    name: str
    hosts: int = 0
    policy: Policy | None = field(default=None, compare=False)

    @property
    def dynamic(self) -> bool:
        """Return True if Spark's dynamic allocation scales."""
        return self.name == "dra"


def arm_of(text: str) -> Arm:
    """Return the arm that `text` names. Raises ElastreamError for other text."""
    text = text.strip()
    name, _, rest = text.partition(":")
    if name == "fixed" and rest.isdecimal() and int(rest) > 0:
        return Arm(f"fixed:{int(rest)}", int(rest))
    if name == "fixed":
        raise InputError(f"the arm {text!r} needs a number of hosts, such as fixed:2")
    if name == "autopilot" and rest:
        return Arm(text, policy=ByLoad(hosts=made(POLICY, *named_in(rest, POLICY), References(Path()))))
    if text not in ("dra", "autopilot"):
        raise InputError(f"there is no arm {text!r} (there are: fixed:N, dra, autopilot, autopilot:POLICY)")
    return Arm(text)


@dataclass(frozen=True)
class Cluster:
    """Where executors run.

    Attributes:
        host: Shape, billing and price of an executor's host.
        max_hosts: Most executors of an arm that scales.
        partitions: State partitions of every arm.
        master: URL of a Standalone master; empty: local hosts.
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
        if self.master and not self.master.startswith(SCHEME):
            raise InputError(f"{self.master!r} is no Standalone master: its URL is {SCHEME}HOST:PORT")

    def most(self, arm: Arm) -> int:
        """Return the most executors of `arm`."""
        return arm.hosts or self.max_hosts


class Session:
    """A session with an arm's executors, which are followed until it is closed."""

    def __init__(self, spark: SparkSession, cluster: Cluster, arm: Arm, local: LocalCluster | None) -> None:
        self.spark, self._cluster, self._arm, self._local = spark, cluster, arm, local
        self._driver = DriverSide(spark)
        self._executors = Executors(self._driver)
        self._spans: dict[str, tuple[float, float | None]] = {}
        self._settled: dict[str, str] = {}  # confined local hosts by executor
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def await_executors(self) -> None:
        """Wait for the executors with which the arm begins, and follow them from then on."""
        first = self._arm.hosts or 1
        most = first if self._arm.dynamic else self._cluster.most(self._arm)  # a master grants all at once otherwise
        wait(lambda: len(self._executors.look()) >= most, f"executors on {most} hosts")
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
        """Run a job like a batch on each executor."""
        for executor in self._executors.look().values():
            warm_up(self.spark, self._driver, executor, root)

    @contextmanager
    def scaling(self, job: StreamingQuery, target_latency: float, folder: Path) -> Iterator[None]:
        """Let Autopilot scale the executors, if the arm is one with Autopilot."""
        if self._arm.hosts or self._arm.dynamic:
            yield
            return
        pilot = Autopilot(
            self.spark,
            target_latency=target_latency,
            max_hosts=self._cluster.max_hosts,
            host_type=self._cluster.host,
            policy=self._arm.policy,
            period=PERIOD_S,
            scaling=ScalingRules(stabilization_down=0.0),  # as prompt as dynamic allocation's timeouts
            folder=folder,
            show=False,
        )
        with pilot.watch(job):
            wait(lambda: pilot.plant is not None and bool(pilot.plant.hosts.usable), "Autopilot's first look")
            yield

    @property
    def spans(self) -> Spans:
        """Return since when and until when there was an executor."""
        return list(self._spans.values())

    def kill_executor(self) -> bool:
        """Kill the local host of the newest executor and start another; return False if there is no executor."""
        assert self._local is not None
        names = {self._local.address(name): name for name, state in self._local.status().items() if state["alive"]}
        on_hosts = [names[each.host] for each in self._executors.look().values() if each.host in names]
        if not on_hosts:
            return False
        self._local.kill(on_hosts[-1])
        self._local.spawn(f"{on_hosts[-1]}n", self._cluster.host)
        return True

    def close(self) -> None:
        """Stop to follow executors."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _follow(self) -> None:
        while not self._ended.wait(LOOK_S):
            with suppress(Py4JError, EnvironmentProblem, OSError):  # the session or the cluster ends
                self._look(self._executors.look(), time.time())

    def _look(self, executors: Mapping[str, Executor], now: float) -> None:
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
def open_arm(cluster: Cluster, arm: Arm, root: Path, *, disk: bool, kafka: bool = False) -> Iterator[Session]:
    """Open a session with the executors of `arm`, with files in `root`.

    Args:
        disk: True if state is in RocksDB.
        kafka: True if the session needs Spark's Kafka connector.

    Raises:
        EnvironmentProblem: Spark does not start, or the cluster has no room.
    """
    host, most, local = cluster.host, cluster.most(arm), None
    own: Mapping[str, str] = {}
    with ExitStack() as stack:
        if cluster.master:
            url, secret = cluster.master, None
            endpoints = [address_of(each, PORT) for each in url.removeprefix(SCHEME).split(",")]
            address = address_towards(f"the Standalone master {url}", endpoints)
        else:
            local = stack.enter_context(closing(LocalCluster(Local(host, max_hosts=most), root / "cluster")))
            url, address = local.start(), local.driver_address
            own, secret = local.secrets.session_settings, local.secrets.shared
            for number in range(most):
                local.spawn(f"bench{number}", host)
        settings = {
            **settings_for(
                driver_address=address,
                executor_memory=executor_memory(host),
                executor_cores=host.slots,
                state_partitions=cluster.partitions,
                state_store="disk" if disk else "memory",
                host_cores=[host.cores],
            ),
            "spark.cores.max": str(most * host.slots),
            **({**DYNAMIC_ALLOCATION, "spark.dynamicAllocation.maxExecutors": str(most)} if arm.dynamic else {}),
            **own,
            **SETTINGS,
            **(with_connector(cluster.settings) if kafka else cluster.settings),
        }
        (files := root / "session").mkdir(parents=True, exist_ok=True)
        spark = open_session(url, "nexmark", files, settings, secret)
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


def wait(holds: Callable[[], bool], what: str) -> None:
    """Wait until `holds()`. Raises EnvironmentProblem after START_TIMEOUT_S."""
    until = time.monotonic() + START_TIMEOUT_S
    while not holds():
        if time.monotonic() > until:
            raise EnvironmentProblem(f"{what} did not come within {START_TIMEOUT_S:g} s")
        time.sleep(0.2)
