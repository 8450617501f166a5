"""Event logs as Spark writes them, of jobs that are made up."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elastream.advice.application import Application, LoggedQuery

START = 1_800_000_000.0
"""Epoch second of time 0, a multiple of every usual trigger interval."""
STREAMING = "org.apache.spark.sql.streaming.StreamingQueryListener$"


@dataclass
class Stage:
    """A stage.

    Attributes:
        tasks: Seconds of each.
        waits: Seconds that it lasts longer, as without free slots.
        late: Seconds after which its last task starts.
        writes: Its Python code gives nothing back.
        executor: Of all its tasks; None for each in turn.
    """

    tasks: Sequence[float]
    records: int = 0
    cpu: float = 0.9
    shuffled: bool = False
    spilled: int = 0
    gc: float = 0.0
    written: int = 0
    failed: int = 0
    python: bool = False
    waits: float = 0.0
    late: float = 0.0
    writes: bool = False
    executor: str | None = None


@dataclass
class Query:
    name: str | None = "counts"
    id: str = "11111111-2222-3333-4444-555555555555"
    source: str = "RateStreamV2[rowsPerSecond=100, rampUpTimeSeconds=1"
    sink: str = "org.apache.spark.sql.execution.streaming.ConsoleTable$@1"


@dataclass
class LogOf:
    """Events of an application; executors: cores of each, none for a driver alone with `cores`."""

    executors: Sequence[int] = (2,)
    cores: int = 2
    settings: dict[str, str] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    jobs: int = 0
    stages: int = 0

    def __post_init__(self) -> None:
        self.add("SparkListenerLogStart", **{"Spark Version": "4.1.0"})
        self.add("SparkListenerEnvironmentUpdate", **{"Spark Properties": self.settings})
        self.add("SparkListenerApplicationStart", **{"App Name": "shop", "App ID": "app-1", "Timestamp": ms(0)})
        for number, cores in enumerate(self.executors):
            self.executor(str(number), cores, 0.0)
        if not self.executors:
            self.executor("driver", self.cores, 0.0)

    def add(self, event: str, **fields: Any) -> None:
        self.events.append({"Event": event, **fields})

    def executor(self, id: str, cores: int, at: float) -> None:
        info = {"Host": "h", "Total Cores": cores, "Log Urls": {}}
        self.add("SparkListenerExecutorAdded", **{"Timestamp": ms(at), "Executor ID": id, "Executor Info": info})

    def started(self, query: Query, at: float = 0.0) -> None:
        self.add(f"{STREAMING}QueryStartedEvent", id=query.id, runId=query.id, name=query.name, timestamp=iso(at))

    def ended(self, query: Query, exception: str | None = None) -> None:
        self.add(f"{STREAMING}QueryTerminatedEvent", id=query.id, runId=query.id, exception=exception)

    def batch(  # noqa: PLR0913
        self, query: Query, number: int, at: float, rows: int, stages: Sequence[Stage], *, slots: int = 2,
        driver: float = 0.3, files: int = 0, executor: str | None = None, plan: str = "", **more: Any,
    ) -> float:  # fmt: skip
        """Add a batch; return its end."""
        begun, now = at, at + driver / 2
        about = f"{query.name or ''}\nid = {query.id}\nrunId = {query.id}\nbatch = {number}"
        if files:
            plan = f"Location: InMemoryFileIndex({files} paths)[file:/in]"
        if plan:
            self.add(
                "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart",
                description=about, physicalPlanDescription=plan, executionId=number,
            )  # fmt: skip
        properties = {
            "spark.job.description": about, "sql.streaming.queryId": query.id, "streaming.sql.batchId": str(number),
        }  # fmt: skip
        ids = list(range(self.stages, self.stages + len(stages)))
        self.stages += len(stages)
        self.add("SparkListenerJobStart", **{
            "Job ID": self.jobs, "Submission Time": ms(now), "Stage Infos": [], "Stage IDs": ids, "Properties": properties,
        })  # fmt: skip
        for id, stage in zip(ids, stages, strict=True):
            seconds = max(max(stage.tasks), sum(stage.tasks) / slots) + stage.waits + stage.late
            self.tasks(id, stage, now, executor)
            scope = '{"id":"5","name":"MapInPandas"}' if stage.python else '{"id":"5","name":"Project"}'
            rdd = {"RDD ID": id, "Name": "PythonRDD" if stage.writes else "MapPartitionsRDD", "Scope": scope}
            self.add("SparkListenerStageCompleted", **{"Stage Info": {
                "Stage ID": id, "Stage Attempt ID": 0, "Stage Name": "start", "Number of Tasks": len(stage.tasks),
                "RDD Info": [rdd], "Submission Time": ms(now), "Completion Time": ms(now + seconds), "Accumulables": [],
            }})  # fmt: skip
            now += seconds
        self.add("SparkListenerJobEnd", **{"Job ID": self.jobs, "Completion Time": ms(now)})
        self.jobs += 1
        end = now + driver / 2
        self.add(
            f"{STREAMING}QueryProgressEvent", progress=progress(query, number, begun, end - begun, rows, driver, **more)
        )
        return end

    def tasks(self, stage_id: int, stage: Stage, at: float, executor: str | None) -> None:
        names = [str(number) for number in range(len(self.executors))] or ["driver"]
        each = stage.records // len(stage.tasks)
        for number, seconds in enumerate([*stage.tasks, *[0.1] * stage.failed]):
            failed = number >= len(stage.tasks)
            where = stage.executor or executor or names[number % len(names)]
            launched = at + stage.late * (number == len(stage.tasks) - 1)
            self.add("SparkListenerTaskEnd", **{
                "Stage ID": stage_id, "Stage Attempt ID": 0,
                "Task Info": {
                    "Task ID": number, "Executor ID": where, "Launch Time": ms(launched),
                    "Finish Time": ms(launched + seconds),
                    "Failed": failed, "Killed": False, "Accumulables": [{"ID": 1, "Update": "1", "Value": "2"}],
                },
                "Task Executor Metrics": {},
                "Task Metrics": {
                    "Executor Run Time": round(1e3 * seconds), "Executor CPU Time": round(1e9 * stage.cpu * seconds),
                    "JVM GC Time": round(1e3 * stage.gc * seconds), "Disk Bytes Spilled": stage.spilled,
                    "Shuffle Read Metrics": {
                        "Fetch Wait Time": 0, "Local Bytes Read": 100 * stage.shuffled, "Remote Bytes Read": 0,
                        "Total Records Read": each if stage.shuffled else 0,
                    },
                    "Input Metrics": {"Records Read": 0 if stage.shuffled else each},
                    "Output Metrics": {"Bytes Written": stage.written, "Records Written": each if stage.written else 0},
                },
            })  # fmt: skip

    def lines(self) -> list[str]:
        return [json.dumps(event, separators=(",", ":")) for event in self.events]

    def write(self, path: Path) -> Path:
        path.write_text("\n".join(self.lines()) + "\n")
        return path


def progress(  # noqa: PLR0913
    query: Query, number: int, at: float, seconds: float, rows: int, driver: float = 0.3, *, state: int | None = None,
    operator: str = "stateStoreSave", removed: int = 0, watermark: float | None = None, newest: float | None = None,
    source: dict[str, Any] | None = None, **parts: float,
) -> dict[str, Any]:  # fmt: skip
    """Return the progress of a batch, as an event log holds it."""
    durations = {"latestOffset": 0.01, "queryPlanning": 0.05, "walCommit": 0.02, "commitOffsets": 0.02}
    durations |= parts
    durations |= {"addBatch": seconds - sum(durations.values()), "triggerExecution": seconds}
    offsets = {"startOffset": str(number), "endOffset": str(number + 1), "latestOffset": str(number + 1), **(source or {})}
    times = {} if watermark is None else {"watermark": iso(watermark)}
    operators = (
        []
        if state is None
        else [{"operatorName": operator, "numRowsTotal": state, "numRowsRemoved": removed, "memoryUsedBytes": 100 * state}]
    )
    return {
        "id": query.id, "runId": query.id, "name": query.name, "timestamp": iso(at), "batchId": number,
        "durationMs": {name: round(1e3 * each) for name, each in durations.items()},
        "eventTime": times | ({} if newest is None else {"max": iso(newest)}),
        "stateOperators": operators,
        "sources": [{"description": query.source, "numInputRows": rows, **offsets}],
        "sink": {"description": query.sink, "numOutputRows": -1},
    }  # fmt: skip


def ms(at: float) -> int:
    return round(1e3 * (START + at))


def iso(at: float) -> str:
    return datetime.fromtimestamp(START + at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def only_query(application: Application) -> LoggedQuery:
    (query,) = application.queries.values()
    return query
