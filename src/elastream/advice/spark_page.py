"""An application through Spark's REST interface and its pages of streaming queries.

The interface lacks the queries. Plots of a query's page hold its newest batches.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import unescape
from typing import Any
from urllib.parse import quote

from elastream.advice.application import Application, Executor, Stage
from elastream.advice.progress import MALFORMED, ProgressReader, epoch
from elastream.advice.web import NoSuchPage, Site
from elastream.core.lateness import StageTimes
from elastream.errors import InputError

Json = Mapping[str, Any]
MILLI, NANO = 1e-3, 1e-9
# Pages of Spark's web interface that a browser's address may end with.
PAGES = re.compile(r"/(jobs|stages|storage|environment|executors|SQL|StreamingQuery|streaming)(/.*)?$")
OF_HISTORY = re.compile(r"/history(?:/([^/]+)(?:/([^/]+))?)?$")
# A query's page: its runs, its names, and its plots by the identifier of their place.
RUNS = re.compile(r'href="([^"]*statistics/?)\?id=([0-9a-f-]{36})')
FACT = re.compile(r"<strong>(Name|Id): </strong>([^<]*)<")
NUMBER = re.compile(r"timeTipStrings\[(\d+)\] = 'batch (\d+) ")
PLACE = re.compile(r"drawTimeline\('#([a-z-]+)-timeline', (v\d+)")
STACK = re.compile(r"drawAreaStack\('#duration-area-stack', v\d+, (v\d+)\)")
CLOCK = re.compile(r"timeFormat\[(\d+)\] = '([^']+)'")
DATA = re.compile(r"var (v\d+) = (\[\{.*?\}\]);", re.DOTALL)
OF_BATCH = re.compile(r"\bid = ([0-9a-f-]{36})\b.*\bbatch = (\d+)", re.DOTALL)
# Share of its time for which a task's CPU works, below which Python works or waits in a job of PySpark.
LITTLE_CPU = 0.1
UNKNOWN = "limits of sources, lag of partitions, files, and why a query failed: Spark's web interface does not tell"


def application_in(base: str, named: Sequence[str]) -> tuple[str, str]:
    """Return the server's address and the named application, or "". named: parts of the path behind `/api/v1`."""
    base = PAGES.sub("", base)
    match = OF_HISTORY.search(base)
    if match is not None:
        return base[: match.start()], "/".join(filter(None, match.groups()))
    return base, "/".join(named[1:2]) if named[:1] == ["applications"] else ""


def read(source: str, site: Site, name: str) -> Application:
    """Read an application. Raises InputError without one, or if there are several and no `name`."""
    about = _about(source, site, name.split("/")[0])
    attempt = about["attempts"][0]
    path = "/".join(quote(each) for each in (about["id"], attempt.get("attemptId")) if each)
    rest = f"/api/v1/applications/{path}"
    try:
        application = Application(source, "web interface of Spark", str(about["name"]), unknown=[UNKNOWN])
        application.id, application.version = str(about["id"]), str(attempt.get("appSparkVersion", ""))
        application.begun = MILLI * attempt["startTimeEpoch"]
        application.settings = {str(k): str(v) for k, v in site.json(f"{rest}/environment")["sparkProperties"]}
        executors = site.json(f"{rest}/allexecutors")
        jobs = site.json(f"{rest}/jobs")
        application.jobs = len(jobs)
        spans = [(_time(each["submissionTime"]), _time(each["completionTime"])) for each in jobs if _is_foreign(each)]
        application.others = sorted(spans, key=lambda span: span[1])
        stages = _stages(site.json(f"{rest}/stages", status="complete", withSummaries="true", quantiles="1.0"))
        reader = ProgressReader(application)
        for progress in _progress(site, path):
            by_number = stages.get(_key(progress), {})
            reader.read(progress, [by_number[number] for number in sorted(by_number)])
        if any(query.batches for query in application.queries.values()):
            for each in executors:
                _add_executor(application, each)
    except MALFORMED as error:
        raise InputError(f"{source} answers in a form that is not Spark's: {type(error).__name__} {error}") from None
    return application


def _about(source: str, site: Site, name: str) -> Json:
    if name:
        about: Json = site.json(f"/api/v1/applications/{quote(name)}")
        return about
    applications = site.json("/api/v1/applications", limit=2)
    if len(applications) == 1:
        only: Json = applications[0]
        return only
    if not applications:
        raise InputError(f"{source} has no application")
    raise InputError(f"{source} has several applications: name one, as in {site.base}/history/{applications[0]['id']}")


def _add_executor(application: Application, each: Json) -> None:
    """Add an executor, whose tasks ran as much in the batches as on average."""
    if each["totalCores"] > 0:
        removed = _time(each["removeTime"]) if each.get("removeTime") else float("inf")
        reason, id, added = str(each.get("removeReason", "")), str(each["id"]), _time(each["addTime"])
        begun, ended = application.span
        until = min(removed, ended)
        run = MILLI * each["totalDuration"] * max(0.0, until - max(added, begun)) / max(1e-9, until - added)
        application.executors[id] = Executor(id, float(each["totalCores"]), added, removed, reason, run)


def _time(text: str) -> float:
    return epoch(text.replace("GMT", "+00:00"))


def _is_foreign(job: Json) -> bool:
    return "completionTime" in job and OF_BATCH.search(str(job.get("description", ""))) is None


def _stages(answer: Sequence[Json]) -> dict[tuple[str, int], dict[int, Stage]]:
    """Return the stages of batches by query and number, by their own number; none before Spark 3.1."""
    stages = defaultdict[tuple[str, int], dict[int, Stage]](dict)
    for each in answer:
        batch = OF_BATCH.search(str(each.get("description", "")))
        longest = (each.get("taskMetricsDistributions") or {}).get("executorRunTime")
        if batch is None or not longest or "completionTime" not in each:
            continue
        run, cpu = MILLI * each["executorRunTime"], NANO * each["executorCpuTime"]
        times = StageTimes(
            _time(each["submissionTime"]),
            _time(each["completionTime"]),
            max(1, int(each["numTasks"])),
            run,
            MILLI * longest[-1],
            cpu,
            MILLI * each.get("shuffleFetchWaitTime", 0),
            each["shuffleReadBytes"] > 0,
            "py4j" in str(each.get("details", "")) and cpu < LITTLE_CPU * run,
        )
        records = each["shuffleReadRecords"] + each["inputRecords"]
        gc, failed = MILLI * each.get("jvmGcTime", 0), int(each["numFailedTasks"])
        stages[batch[1], int(batch[2])][int(each["stageId"])] = Stage(times, records, each["diskBytesSpilled"], gc, failed)
    return stages


def _key(progress: Json) -> tuple[str, int]:
    return progress["id"], progress["batchId"]


def _progress(site: Site, path: str) -> Iterator[Json]:
    for root in ("", f"/history/{path}"):
        try:
            page = site.text(f"{root}/StreamingQuery/")
        except NoSuchPage:
            continue
        runs = dict.fromkeys(run for _, run in RUNS.findall(page))
        if runs:
            batches = [each for run in runs for each in _of_page(site.text(f"{root}/StreamingQuery/statistics/", id=run))]
            yield from sorted(batches, key=lambda each: each["timestamp"])
            return


def _of_page(page: str) -> Iterator[Json]:
    facts, data = dict(FACT.findall(page)), dict(DATA.findall(page))
    plots = {place: _points(data[name]) for place, name in PLACE.findall(page) if name in data}
    stack, clock = STACK.search(page), dict(CLOCK.findall(page))
    parts = {}
    if stack is not None and stack[1] in data:
        for each in json.loads(data[stack[1]].replace("{x:", '{"x":')):
            parts[each["x"]] = {name: float(value) for name, value in each.items() if name != "x"}
    for at, number in NUMBER.findall(page):
        rows, seconds = plots["input-rows"].get(at), plots["batch-duration"].get(at)
        if rows is None or seconds is None:
            continue
        state = {
            name: plots[f"aggregated-{place}"].get(at, 0.0)
            for name, place in STATE.items()
            if f"aggregated-{place}" in plots
        }
        gap = plots.get("watermark-gap", {}).get(at)
        name = unescape(facts.get("Name", ""))
        yield {
            "id": facts["Id"],
            "name": None if name == UNNAMED else name,
            "timestamp": _iso(int(at)),
            "batchId": int(number),
            "durationMs": {**parts.get(clock.get(at, ""), {}), "triggerExecution": seconds},
            "sources": [{"numInputRows": round(rows)}],
            "stateOperators": [state] if state else [],
            "eventTime": {} if gap is None else {"watermark": _iso(int(at) - 1e3 * gap)},
        }


# Places of the page's plots of state, by names of progress, and its word for a query without a name.
STATE = {
    "numRowsTotal": "num-total-state-rows",
    "numRowsRemoved": "num-removed-state-rows",
    "memoryUsedBytes": "state-memory-used-bytes",
}
UNNAMED = "<no name>"


def _points(text: str) -> dict[str, float]:
    return {str(each["x"]): float(each["y"]) for each in json.loads(text)}


def _iso(ms: float) -> str:
    return datetime.fromtimestamp(MILLI * ms, UTC).isoformat(timespec="milliseconds")
