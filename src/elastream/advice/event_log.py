"""Reads the lines of interest of Spark's event log."""

import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from elastream.advice.application import NAN, Application, Executor, LoggedBatch, Stage
from elastream.advice.progress import MALFORMED, MOST_SECONDS, ProgressReader, epoch, json_of
from elastream.core.lateness import StageTimes
from elastream.core.wording import counted
from elastream.spark.jvm.failure import cause_of_failure

Json = Mapping[str, Any]
MILLI, NANO = 1e-3, 1e-9
EVENT = re.compile(rb'\{\s*"Event"\s*:\s*"([^"]+)"')
# Fields of a job's properties; its line has all settings and stages, and is long.
CONTINUOUS = b'"__continuous_start_epoch"'
QUERY_OF_JOB = re.compile(rb'"sql\.streaming\.queryId"\s*:\s*"([^"]+)"')
BATCH_OF_JOB = re.compile(rb'"streaming\.sql\.batchId"\s*:\s*"(\d+)"')
STAGES_OF_JOB = re.compile(rb'"Stage IDs"\s*:\s*\[([\d,\s]*)\]')
JOB = re.compile(rb'"Job ID"\s*:\s*(\d+)')
EXECUTION_ENDED = re.compile(rb'"time"\s*:\s*(\d+)')
BEGUN, ENDED = re.compile(rb'"Submission Time"\s*:\s*(\d+)'), re.compile(rb'"Completion Time"\s*:\s*(\d+)')
NAME_OF_JOB = re.compile(rb'"spark\.job\.description"\s*:\s*"([^"\\]+)\\nid = ')
# Nodes of a plan and RDDs by which tasks hand records to Python.
PYTHON = re.compile(rb'\\"name\\":\\"[^"\\]*(?:Python|PySpark|Pandas|Arrow)|"Name":"PythonRDD"')
# A stage that ends in Python and gives Spark nothing: df.foreachPartition, not a plan with Python in it.
WRITES = re.compile(rb'"RDD Info":\[\{"RDD ID":\d+,"Name":"PythonRDD"')
# The plan of a batch: its query, its number, and the files that it reads.
FILES_READ = re.compile(rb"InMemoryFileIndex\((\d+) paths?\)")
PLAN_OF = re.compile(rb"(?:\\n|[^a-z])id = ([0-9a-f-]{36}).{0,120}?batch = (\d+)", re.DOTALL)
# Causes by which a query ends with its application.
SHUT_DOWN = re.compile(r"SparkContext was shut down|stopped SparkContext|^[\w.]*\bInterruptedException\b")
# Lengths in a plan: of a window (microseconds), and of an interval.
LENGTHS = re.compile(rb"\+ (\d+)\), LongType|(?:INTERVAL '|[+-] )-?([\d :.]+)'? (DAY|HOUR|MINUTE|SECOND)", re.IGNORECASE)
UNITS_S = {b"DAY": 86_400.0, b"HOUR": 3600.0, b"MINUTE": 60.0, b"SECOND": 1.0}
MOST_CORES = 100_000
# What tasks alone do not tell.
NO_PROGRESS = "the sources, the parts of a batch, the state and the watermark"
ACCUMULABLES = b'"Accumulables":['
STREAMING = "org.apache.spark.sql.streaming.StreamingQueryListener$"


@dataclass(slots=True)
class _Tasks:
    run: float = 0.0
    longest: float = 0.0
    launched: float = 0.0
    cpu: float = 0.0
    waited: float = 0.0
    records: float = 0.0
    spilled: float = 0.0
    gc: float = 0.0
    failed: int = 0
    files: int = 0
    written: float = 0.0
    shuffled: bool = False


class EventLog:
    """Reads an event log line by line; memory follows the number of batches, not of tasks."""

    def __init__(self, source: str) -> None:
        self.application = Application(source, "event log of Spark")
        self._progress = ProgressReader(self.application)
        self._batch_of_stage: dict[int, tuple[str, int]] = {}
        self._numbers: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self._tasks: defaultdict[tuple[int, int], _Tasks] = defaultdict(_Tasks)
        # By number and attempt.
        self._stages: defaultdict[tuple[str, int], dict[tuple[int, int], Stage]] = defaultdict(dict)
        self._files: dict[tuple[str, int], int] = {}
        self._windows: dict[str, float] = {}
        self._shuffled: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._foreign: dict[int, float] = {}
        self._running: dict[str, tuple[int, float]] = {}
        self._names: dict[str, str] = {}
        self._with_progress = set[str]()
        self._open = set[tuple[str, int]]()  # newest batches of queries that started anew
        self._last = 0.0
        self._applications = 1
        self._newest = set[str]()  # executors added since the newest start of a log
        self._readers: dict[bytes, Callable[[bytes], None]] = {
            b"SparkListenerLogStart": self._log_start,
            b"SparkListenerApplicationStart": self._application_start,
            b"SparkListenerApplicationEnd": self._application_end,
            b"SparkListenerEnvironmentUpdate": self._environment,
            b"SparkListenerExecutorAdded": self._executor_added,
            b"SparkListenerExecutorRemoved": self._executor_removed,
            b"SparkListenerJobStart": self._job_start,
            b"SparkListenerJobEnd": self._job_end,
            b"SparkListenerTaskEnd": self._task_end,
            b"SparkListenerStageCompleted": self._stage_completed,
            b"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart": self._plan,
            b"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd": self._execution_end,
            f"{STREAMING}QueryStartedEvent".encode(): self._query_started,
            f"{STREAMING}QueryProgressEvent".encode(): self._query_progress,
            f"{STREAMING}QueryIdleEvent".encode(): self._query_idle,
            f"{STREAMING}QueryTerminatedEvent".encode(): self._query_terminated,
        }

    def read(self, lines: Iterable[bytes]) -> Application:
        """Read all lines; count and skip malformed ones."""
        for line in lines:
            match = EVENT.match(line)
            if match is None:
                self.application.unreadable += bool(line.strip())
            elif (reader := self._readers.get(match[1])) is not None:
                try:
                    reader(line)
                except MALFORMED:
                    self.application.unreadable += 1
        self._progress.finish()
        self._add_silent()
        self._add_cores()
        for id, query in self.application.queries.items():
            query.window, query.shuffled = self._windows.get(id, NAN), self._shuffled.get(id, {})
        if self._applications > 1:
            text = f"the applications apart: the file holds {self._applications}, one after the other"
            self.application.unknown.append(text)
        for id in list(self._running):
            self._interrupt(id)
        return self.application

    def _interrupt(self, id: str) -> None:
        _, begun = self._running.pop(id, (-1, math.inf))
        if id in self._with_progress or (id in self.application.queries and not self.application.queries[id].batches):
            self._progress.query(id).unfinished = max(0.0, self._last - begun)

    def _add_silent(self) -> None:
        """Add batches of queries without progress; the last may be unfinished."""
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        for id, number in sorted(self._stages):
            if id not in self._with_progress:
                numbers[id].append(number)
        for id, found in numbers.items():
            query = self._progress.query(id, self._names.get(id))
            self.application.unknown.append(f"{NO_PROGRESS} of {query.name}: the log has no progress of it")
            for number in found[:-1]:
                stages = tuple(stage for _, stage in sorted(self._stages[id, number].items()))
                begun, ended = min(each.times.begun for each in stages), max(each.times.ended for each in stages)
                rows = math.fsum(each.records for each in stages if not each.times.shuffled)
                query.width = max(query.width, *(each.times.tasks for each in stages))
                query.add(LoggedBatch(number, begun, ended - begun, rows, stages=stages))

    def _add_cores(self) -> None:
        executors, setting = self.application.executors, self.application.settings.get("spark.executor.cores", "")
        silent = [id for id, each in executors.items() if math.isnan(each.cores)]
        others = [each.cores for each in executors.values() if not math.isnan(each.cores)]
        cores = float(setting) if setting.isdecimal() else statistics.median_low(others or [0.0])
        if not 1 <= cores < MOST_CORES:  # unknown
            self.application.executors = {id: each for id, each in executors.items() if id not in silent}
        elif silent:
            for id in silent:
                executors[id].cores = cores
            text = f"when {counted(len(silent), 'executor')} came, and their cores"
            self.application.unknown.append(f"{text}: they count from their first tasks, with {cores:g} cores each")

    def _log_start(self, line: bytes) -> None:
        self.application.version = str(json.loads(line)["Spark Version"])
        self._newest.clear()

    def _application_start(self, line: bytes) -> None:
        event, application = json.loads(line), self.application
        begun = MILLI * event["Timestamp"]
        if not math.isnan(application.begun) and application.begun != begun:
            self._end_application()
        application.name, application.id = str(event["App Name"]), str(event.get("App ID", ""))
        application.begun = begun

    def _end_application(self) -> None:
        # Identifiers begin anew with another application in the same file.
        application = self.application
        ended = self._last if math.isnan(application.ended) else application.ended
        for id in [id for id in application.executors if id not in self._newest]:
            application.executors[id].removed = min(application.executors[id].removed, ended)
            self._rename(id)
        self._applications += 1
        application.ended = math.nan
        for by_id in (self._tasks, self._batch_of_stage, self._foreign, self._running):
            by_id.clear()

    def _rename(self, id: str) -> None:
        executors, name = self.application.executors, f"{id} of application {self._applications}"
        executors[name] = executors.pop(id)
        if id != "driver":  # this name tells a driver
            executors[name].id = name
        for seconds in self._shuffled.values():
            if id in seconds:
                seconds[name] = seconds.pop(id)

    def _application_end(self, line: bytes) -> None:
        self.application.ended = MILLI * json.loads(line)["Timestamp"]

    def _environment(self, line: bytes) -> None:
        settings = json.loads(line)["Spark Properties"]
        pairs = settings.items() if isinstance(settings, dict) else settings
        self.application.settings.update((str(key), str(value)) for key, value in pairs)

    def _executor_added(self, line: bytes) -> None:
        event = json.loads(line)
        id, cores = str(event["Executor ID"]), float(event["Executor Info"]["Total Cores"])
        if not 1 <= cores < MOST_CORES:
            raise ValueError("no executor has so many cores")
        added, before = MILLI * event["Timestamp"], self.application.executors.get(id)
        if before is not None and before.added != added and id not in self._newest:
            self._rename(id)
        self._newest.add(id)
        self.application.executors[id] = Executor(id, cores, added)

    def _executor_removed(self, line: bytes) -> None:
        event = json.loads(line)
        if (executor := self.application.executors.get(str(event["Executor ID"]))) is not None:
            executor.removed, executor.reason = MILLI * event["Timestamp"], str(event.get("Removed Reason", ""))

    def _job_start(self, line: bytes) -> None:
        self.application.jobs += 1
        query, batch, stages = (pattern.search(line) for pattern in (QUERY_OF_JOB, BATCH_OF_JOB, STAGES_OF_JOB))
        begun = BEGUN.search(line)
        self.application.continuous |= CONTINUOUS in line
        if query is None or batch is None:
            job = JOB.search(line)
            if job and begun:
                self._foreign[int(job[1])] = MILLI * int(begun[1])
            return
        key = query[1].decode(), int(batch[1])
        if key[0] not in self._names:
            name = NAME_OF_JOB.search(line)
            self._names[key[0]] = name[1].decode() if name else ""
        if key in self._open:  # it runs again
            self._open.discard(key)
            self._stages.pop(key, None)
        if begun is not None and self._running.get(key[0], (-1, 0.0))[0] != key[1]:
            self._running[key[0]] = key[1], MILLI * int(begun[1])
        for stage in stages[1].split(b",") if stages else ():
            if stage.strip():
                self._batch_of_stage[int(stage)] = key
                self._numbers[key].append(int(stage))

    def _job_end(self, line: bytes) -> None:
        job, ended = JOB.search(line), ENDED.search(line)
        begun = self._foreign.pop(int(job[1]), None) if job else None
        if ended is not None:
            self._last = max(self._last, MILLI * int(ended[1]))
        if begun is not None and ended is not None:
            self.application.others.append((begun, MILLI * int(ended[1])))

    def _task_end(self, line: bytes) -> None:
        event = _parsed(line)
        info, metrics = event["Task Info"], event.get("Task Metrics")
        executor = self._executor(info)
        if event["Stage ID"] not in self._batch_of_stage:
            if executor is not None and metrics is not None:
                executor.run += MILLI * metrics["Executor Run Time"]
            return
        self._last = max(self._last, MILLI * info["Finish Time"])
        tasks = self._tasks[event["Stage ID"], event["Stage Attempt ID"]]
        if info.get("Failed") or info.get("Killed"):
            tasks.failed += bool(info.get("Failed"))
            return
        if metrics is None:
            return
        run = MILLI * metrics["Executor Run Time"]
        if not 0 <= run < MOST_SECONDS:
            raise ValueError("no task runs for so long")
        if executor is not None:
            executor.run += run
        shuffle, read, write = (metrics.get(f"{name} Metrics") or {} for name in ("Shuffle Read", "Input", "Output"))
        tasks.run += run
        tasks.longest = max(tasks.longest, run)
        tasks.launched = max(tasks.launched, MILLI * info["Launch Time"])
        tasks.cpu += NANO * metrics.get("Executor CPU Time", 0)
        tasks.gc += MILLI * metrics.get("JVM GC Time", 0)
        tasks.spilled += metrics.get("Disk Bytes Spilled", 0)
        tasks.waited += MILLI * shuffle.get("Fetch Wait Time", 0)
        tasks.records += shuffle.get("Total Records Read", 0) + read.get("Records Read", 0)
        if shuffle.get("Local Bytes Read", 0) + shuffle.get("Remote Bytes Read", 0) > 0:
            tasks.shuffled = True
            self._shuffled[self._batch_of_stage[event["Stage ID"]][0]][str(info["Executor ID"])] += run
        tasks.files += write.get("Records Written", 0) > 0
        tasks.written += write.get("Bytes Written", 0)

    def _executor(self, task: Json) -> Executor | None:
        id, launched = str(task["Executor ID"]), MILLI * task["Launch Time"]
        executor = self.application.executors.get(id)
        if id != "driver" and (executor is None or math.isnan(executor.cores)):  # the log does not add it
            executor = executor or Executor(id, math.nan, launched)
            executor.added = min(executor.added, launched)
            self.application.executors[id] = executor
        return executor

    def _stage_completed(self, line: bytes) -> None:
        info = json.loads(line)["Stage Info"]
        number = info["Stage ID"], info["Stage Attempt ID"]
        tasks, batch = self._tasks.pop(number, None), self._batch_of_stage.get(number[0])
        if tasks is None or batch is None or "Submission Time" not in info:
            return
        if not 0 <= MILLI * (info["Completion Time"] - info["Submission Time"]) < MOST_SECONDS:
            raise ValueError("no stage runs for so long")
        times = StageTimes(
            MILLI * info["Submission Time"],
            MILLI * info["Completion Time"],
            max(1, int(info["Number of Tasks"])),
            tasks.run,
            tasks.longest,
            tasks.cpu,
            tasks.waited,
            tasks.shuffled,
            PYTHON.search(line) is not None,
            WRITES.search(line) is not None,
        )
        figures = tasks.records, tasks.spilled, tasks.gc, tasks.failed, tasks.files, tasks.written
        self._stages[batch][number] = Stage(times, *figures, max(0.0, tasks.launched - times.begun))

    def _plan(self, line: bytes) -> None:
        plan = PLAN_OF.search(line)
        if plan is None:
            return
        if files := FILES_READ.findall(line):
            self._files[plan[1].decode(), int(plan[2])] = max(map(int, files))
        if (id := plan[1].decode()) not in self._windows:
            self._windows[id] = max(map(_length, LENGTHS.findall(line)), default=0.0)

    def _execution_end(self, line: bytes) -> None:
        # The end of a stopped query comes before those of its tasks and job.
        if ended := EXECUTION_ENDED.search(line):
            self._last = max(self._last, MILLI * int(ended[1]))

    def _query_started(self, line: bytes) -> None:
        event = json.loads(line)
        query = self._progress.query(str(event["id"]), event.get("name"))
        self._running.pop(query.id, None)
        query.unfinished = 0.0
        if newest := max((each for each in self._stages if each[0] == query.id), default=None):
            self._open.add(newest)
        if "timestamp" in event:
            query.starts.append(epoch(event["timestamp"]))

    def _query_progress(self, line: bytes) -> None:
        progress = json_of(json.loads(line)["progress"])
        key = str(progress["id"]), int(progress["batchId"])
        self._with_progress.add(key[0])
        if self._running.get(key[0], (-1, 0.0))[0] == key[1]:
            del self._running[key[0]]
        by_number, files = self._stages.pop(key, {}), self._files.pop(key, 0)
        # Stages that run at once begin in any order; their numbers follow the plan.
        self._progress.read(progress, [by_number[number] for number in sorted(by_number)], files)
        so_far = {*self._stages, *self._files, *self._numbers}
        for each in [each for each in so_far if each[0] == key[0] and each[1] <= key[1]]:
            self._stages.pop(each, None)
            self._files.pop(each, None)
            for stage in self._numbers.pop(each, ()):
                self._batch_of_stage.pop(stage, None)

    def _query_idle(self, line: bytes) -> None:
        event = json.loads(line)
        self._progress.query(str(event["id"])).idle = epoch(event["timestamp"])

    def _query_terminated(self, line: bytes) -> None:
        event = json.loads(line)
        query = self._progress.query(str(event["id"]))
        failure = cause_of_failure(str(event.get("exception") or ""))
        if not failure and query.id not in self._running:
            query.end()
        if failure and not SHUT_DOWN.search(failure):
            query.failure, query.failures = failure, query.failures + 1
            self._running.pop(query.id, None)
        self._interrupt(query.id)


def _length(found: tuple[bytes, bytes, bytes]) -> float:
    micros, interval, unit = found
    if micros:
        return 1e-6 * int(micros)
    units = list(UNITS_S.values())[list(UNITS_S).index(unit.upper()) :]
    return math.fsum(float(part) * each for part, each in zip(re.findall(rb"[\d.]+", interval), units, strict=False))


def _parsed(line: bytes) -> Json:
    # A task's accumulables are long.
    begin = line.find(ACCUMULABLES)
    end = line.find(b"}]}", begin)
    event: Json
    if begin >= 0 and end >= 0:
        try:
            event = json.loads(line[: begin + len(ACCUMULABLES)] + line[end + 1 :])
            return event
        except ValueError:
            pass
    event = json.loads(line)
    return event
