"""The driver's process of the campaign on Spark: a word count under the whole loop. It receives faults as commands.

python driven.py FOLDER [RESUME]. Commands are lines of JSON on standard input. FOLDER/history.jsonl records the executor of
each state partition and batch, the provider's calls with their outcome, and each command once it is done.
"""

import importlib
import json
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from _cluster import word_count_flow
from py4j.protocol import Py4JNetworkError

from elastream import HostType, Local, run
from elastream.clouds.local.hosts import LocalHosts
from elastream.core.action import DrainHost, MoveTask, ReleaseHost
from elastream.core.observation import Observation
from elastream.core.task_id import TaskId
from elastream.loads import constant
from elastream.policies import Threshold
from elastream.recording.observer import Observer
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.state_partitions import StatePartitions
from elastream.spark.placement.placing import Placing
from elastream.spark.plant import SparkPlant

HISTORY = "history.jsonl"
RATE = 1000  # lines per second: two hosts of four are enough
MIN_HOSTS, MAX_HOSTS, PARTITIONS, TARGET = 2, 4, 8, 4.0
HOST = HostType("half", cores=0.4, slots=1, memory=1000.0, price=0.0)


class EventWriter:
    def __init__(self, folder: Path) -> None:
        self._file = (folder / HISTORY).open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def __call__(self, kind: str, **fields: Any) -> None:
        with self._lock:
            self._file.write(json.dumps({"at": time.time(), "kind": kind, **fields}) + "\n")
            self._file.flush()


class EventObserver(Observer):
    """An observer that reports to the campaign's own process."""

    def __init__(self, write_event: EventWriter) -> None:
        self._write_event = write_event

    def started(self, header: Any) -> None:
        self._write_event("started")

    def observed(self, observation: Observation) -> None:
        hosts = {host: str(lease.state) for host, lease in observation.leases.items()}
        alarms = [alarm.source for alarm in observation.alarms]
        wanted = len(captured[0].placing.targets()) if captured else 0
        self._write_event("seen", hosts=hosts, alarms=alarms, wanted=wanted)

    def ended(self, ending: Any) -> None:
        self._write_event("ended", status=ending.status, reason=ending.reason)


captured: list[SparkPlant[Any]] = []
until: dict[str, float] = {}  # when each fault inside this process is over, monotonic seconds


def on(fault: str) -> bool:
    return time.monotonic() < until.get(fault, 0.0)


def install_faults(write_event: EventWriter) -> None:
    running: Any = importlib.import_module("elastream.api.run")
    start, ask, move, ran = running.start_plant, DriverSide.ask, StatePartitions.move, Placing.ran

    def starting(*args: Any, **kwargs: Any) -> SparkPlant[Any]:
        plant: SparkPlant[Any] = start(*args, **kwargs)
        captured.append(plant)
        return plant

    def faulty_ask(self: DriverSide, method: str, *arguments: Any) -> list[list[str]]:
        if captured and on("gateway"):
            raise (Py4JNetworkError if until["gateway"] % 1 < 0.5 else ConnectionResetError)("as meant")
        return [] if on("loads") and method == "loads" else ask(self, method, *arguments)

    def moving(self: StatePartitions, partition: int, to: Any) -> None:
        if not on("reports"):
            move(self, partition, to)

    def running_on(self: Placing, operator: str, batch: int, executors: Sequence[str]) -> None:
        write_event("ran", operator=operator, batch=batch, executors=list(executors))
        ran(self, operator, batch, executors)

    running.start_plant = starting
    DriverSide.ask = faulty_ask  # type: ignore[method-assign]
    StatePartitions.move = moving  # type: ignore[method-assign]
    Placing.ran = running_on  # type: ignore[method-assign]
    for verb in ("lease", "release"):
        setattr(LocalHosts, verb, called(write_event, verb, getattr(LocalHosts, verb)))


def called(
    write_event: EventWriter, verb: str, do: Callable[[Any, Collection[str] | Mapping[str, HostType]], None]
) -> Callable[..., None]:
    def call(self: Any, hosts: Any) -> None:
        write_event("call", verb=verb, hosts=list(hosts), ended="invoke")
        try:
            if on("provider"):
                raise RuntimeError("as meant")
            do(self, hosts)
        except BaseException as error:
            write_event("call", verb=verb, hosts=list(hosts), ended="fail", why=str(error))
            raise
        write_event("call", verb=verb, hosts=list(hosts), ended="ok")

    return call


def follow_commands(write_event: EventWriter) -> None:
    for line in sys.stdin:
        command = json.loads(line)
        try:
            write_event("command", said=command, came=execute(command))
        except Exception as error:
            write_event("command", said=command, came=f"{type(error).__name__}: {error}")


def execute(command: Mapping[str, Any]) -> str:
    what = command["do"]
    if what in ("gateway", "loads", "reports", "provider", "policy"):
        until[what] = time.monotonic() + command["seconds"]
        return "in force"
    plant = captured[0]
    usable = list(plant.hosts.usable)
    if what == "move":
        task = TaskId("count", command["partition"] % PARTITIONS)
        return str(plant.apply(MoveTask(task, usable[command["host"] % len(usable)], "by chance")).status)
    host = usable[command["host"] % len(usable)]
    if what == "kill":
        plant.hosts.provider.cluster.kill(host)  # type: ignore[attr-defined]
        return str(host)
    if what == "decommission":
        drained = plant.apply(DrainHost(host))
        return f"{host}: {drained.status}, {plant.apply(ReleaseHost(host)).status}" if drained.succeeded else drained.reason
    raise ValueError(f"{what!r} is no command")


class Failing(Threshold):
    def plan(self, observation: Observation, memory: object = None) -> Any:
        if on("policy"):
            raise KeyError("as meant")
        return super().plan(observation, memory)


def main(folder: Path, resume: str) -> None:
    write_event = EventWriter(folder)
    install_faults(write_event)
    threading.Thread(target=follow_commands, args=(write_event,), daemon=True).start()
    run(
        word_count_flow(constant(RATE), folder / "out", "faults"),
        policy=Failing(),
        cloud=Local(HOST, max_hosts=MAX_HOSTS, min_hosts=MIN_HOSTS),
        target_latency=TARGET,
        state_partitions=PARTITIONS,
        runs=folder / "runs",
        resume=resume or None,
        observers=[EventObserver(write_event)],
        show=False,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
