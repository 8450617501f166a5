"""Where the time goes after a fault: Spark's event log as a time line. A tool to look with; nothing else needs it."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

SETTINGS: Mapping[str, str] = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}
"""Beside `spark.eventLog.dir`."""


def timeline(log: Path, at: float, until: float) -> Sequence[str]:
    """What Spark's event log `log` says happened from `at` to `until`, a line each, with seconds since `at`."""
    rows: list[tuple[float, str]] = []
    for line in log.read_text().splitlines():
        event = json.loads(line)
        rows += _said(event)
    began = [(when, what) for when, what in rows if at - 1.5 <= when <= until]
    return [f"{when - at:+7.3f}  {what}" for when, what in sorted(began)]


def _said(event: Mapping[str, Any]) -> list[tuple[float, str]]:
    match event["Event"]:
        case "SparkListenerExecutorRemoved":
            return [(event["Timestamp"] / 1e3, f"executor {event['Executor ID']} removed: {event['Removed Reason'][:60]}")]
        case "SparkListenerExecutorAdded":
            return [(event["Timestamp"] / 1e3, f"executor {event['Executor ID']} added")]
        case "SparkListenerStageCompleted":
            info = event["Stage Info"]
            name = f"stage {info['Stage ID']}.{info['Stage Attempt ID']}"
            failed = f": failed, {info['Failure Reason'][:90]!r}" if "Failure Reason" in info else ""
            submitted = info.get("Submission Time", info["Completion Time"]) / 1e3
            return [
                (submitted, f"{name} submitted, {info['Number of Tasks']} tasks"),
                (info["Completion Time"] / 1e3, f"{name} ended{failed}"),
            ]
        case "SparkListenerTaskEnd":
            task, reason = event["Task Info"], event["Task End Reason"]["Reason"]
            name = f"task {event['Stage ID']}.{event['Stage Attempt ID']}/{task.get('Partition ID', task['Index'])}"
            where = f"on {task['Executor ID']} ({task['Locality']})"
            metrics = event.get("Task Metrics") or {}
            read = metrics.get("Shuffle Read Metrics", {}).get("Fetch Wait Time", 0)
            took = (task["Finish Time"] - task["Launch Time"]) / 1e3
            said = f"{name} {where} launched; {took:.3f} s, fetch wait {read / 1e3:.3f} s, {reason}"
            return [(task["Launch Time"] / 1e3, said)]
        case kind if kind.endswith("QueryProgressEvent"):
            found = event["progress"]
            found = json.loads(found) if isinstance(found, str) else found
            began = datetime.fromisoformat(found["timestamp"].replace("Z", "+00:00")).timestamp()
            parts = ", ".join(f"{name} {ms / 1e3:.2f}" for name, ms in found["durationMs"].items() if ms > 20)
            end = began + found["durationMs"].get("triggerExecution", 0) / 1e3
            return [(end, f"BATCH {found['batchId']} ended: {parts}")]
    return []
