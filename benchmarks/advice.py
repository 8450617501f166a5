"""Findings of `elastream advise` on jobs of plain PySpark, and its predictions for another fleet. 85 minutes.

Each job runs on two cores with an event log, and nothing of Elastream in it. A fault counts if the finding of its
kind is there; a finding in a job without a fault is false. Some read the tests' Kafka broker.

Five jobs run on one core and on two. Each record predicts the other fleet, from each source of advice. Their records
wait rather than compute, so that other programs on the machine count little.

`--part log` reads an event log of a gigabyte.
"""

import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _common import Report, main_of_parts
from _plain_jobs import CLEAN, FAULTS, FLEETS, Job, counts, logged, rate, write
from _sources import advices

from elastream.advice.advice import advise
from elastream.errors import EnvironmentProblem

# Seconds between batches of the job whose log is made large, and its size (bytes).
EVERY_S, LARGE, BATCH = 2.0, 10**9, "streaming.sql.batchId"
# Target latency of the fleets (seconds), and largest error of a prediction that holds.
TARGET_S, ERROR = 10.0, 0.25


def predicted(jobs: Mapping[str, Job]) -> Iterator[dict[str, Any]]:
    """Yield p50 and p99 (seconds) of each job on one and two cores, as measured and as the other record predicts."""
    for name, job in jobs.items():
        with TemporaryDirectory() as folder:
            logs = {}
            for cores in (2, 1):
                (Path(folder) / str(cores)).mkdir()
                logs[cores] = logged(job, Path(folder) / str(cores), cores)
            for cores, log in logs.items():
                other = 3 - cores
                real = advise(str(logs[other]), TARGET_S).sizing.logged
                for source, advice in advices(log, cores, TARGET_S):
                    point = next((each for each in advice.sizing.curve if each.hosts == other), None)
                    pairs = ((real.p50, real.p99), (point.p50, point.p99) if point else (math.nan, math.nan))
                    held = all(abs(there / here - 1) <= ERROR for here, there in zip(*pairs, strict=True))
                    yield {
                        "job": name,
                        "to": other,
                        "source": source,
                        "real": pairs[0],
                        "predicted": pairs[1],
                        "held": held,
                    }


def find(report: Report, quick: bool) -> None:
    found, false = 0, 0
    for planted, jobs in ((True, FAULTS), (False, CLEAN)):
        for name, job in list(jobs.items())[: 2 if quick else None]:
            with TemporaryDirectory() as folder:
                findings = advise(str(logged(job, Path(folder)))).findings
            there = {each.kind: each.evidence for each in findings}
            report.figures[name] = there
            found += planted and name.partition(",")[0] in there
            false += not planted and bool(there)
    number = 2 if quick else len(FAULTS)
    report.at_least("share of planted faults that are found", found / number, 0.9)
    report.at_most("jobs without a fault that have findings", false, 2)


def predict(report: Report, quick: bool) -> None:
    rows = list(predicted(dict(list(FLEETS.items())[: 1 if quick else None])))
    report.figures["fleets"] = rows
    for source in dict.fromkeys(row["source"] for row in rows):
        held = [row["held"] for row in rows if row["source"] == source]
        report.at_least(f"predictions within 25 % from {source}", sum(held) / len(held), 0.8)


class Repeated:
    """An event log whose batches from the fourth on come again and again, with other numbers and times."""

    def __init__(self, log: Path) -> None:
        self._lines = [line for part in sorted(log.glob("events_*")) for line in part.read_text().splitlines()]
        events = [json.loads(line) for line in self._lines]
        kinds = [str(event["Event"]).rpartition(".")[2] for event in events]
        fourth = next(at for at, event in enumerate(events) if event.get("Properties", {}).get(BATCH) == "3")
        last = max(at for at, kind in enumerate(kinds) if kind.endswith("QueryProgressEvent"))
        self._first = max(at for at in range(fourth) if kinds[at] == "SparkListenerSQLExecutionStart")
        self._body = self._lines[self._first : last + 1]
        jobs = [event for event in events[self._first : last] if event["Event"] == "SparkListenerJobStart"]
        self._batches = int(jobs[-1]["Properties"][BATCH]) - 2
        self._jobs = jobs[-1]["Job ID"] - jobs[0]["Job ID"] + 1
        self._stages = max(jobs[-1]["Stage IDs"]) - min(jobs[0]["Stage IDs"]) + 1
        self._ms = round(1e3 * EVERY_S) * self._batches

    def write(self, file: Path, size: int) -> None:
        with file.open("w") as out:
            out.writelines(f"{line}\n" for line in self._lines[: self._first])
            for time_ in itertools.count():
                if out.tell() >= size:
                    return
                out.writelines(f"{self._again(line, time_)}\n" for line in self._body)

    def _again(self, line: str, times: int) -> str:
        steps = {"Job ID": self._jobs, "Stage ID": self._stages, "Parent ID": self._stages}

        def number(match: re.Match[str]) -> str:
            return f"{match[1]}{int(match[3]) + times * steps.get(match[2], self._batches)}"

        def later(match: re.Match[str]) -> str:
            at = datetime.fromisoformat(match[2]) + timedelta(milliseconds=times * self._ms)
            return f"{match[1]}{at.isoformat(timespec='milliseconds').replace('+00:00', 'Z')}"

        def stages(match: re.Match[str]) -> str:
            return f'"Stage IDs":[{",".join(str(int(each) + times * self._stages) for each in match[1].split(","))}]'

        line = re.sub(r'("(Job ID|Stage ID|Parent ID|batchId|streaming\.sql\.batchId)"\s*:\s*"?)(\d+)', number, line)
        line = re.sub(r'"Stage IDs":\[([\d,]+)\]', stages, line)
        line = re.sub(r'("timestamp"\s*:\s*")([\dT:.-]+Z)', later, line)
        shift = times * self._ms
        return re.sub(
            r'("(?:Submission|Completion|Launch|Finish) Time":)(\d+)', lambda m: f"{m[1]}{int(m[2]) + shift}", line
        )


def read_large(report: Report, quick: bool) -> None:
    """Measure the command on an event log of a gigabyte, in a process of its own."""
    settings = {"spark.sql.shuffle.partitions": "24", "spark.eventLog.compress": "false"}
    every = f"{EVERY_S:g} seconds"
    job = Job(lambda spark, folder: write(counts(rate(spark, 2000)), folder, every, "update"), 30.0, settings)
    with TemporaryDirectory() as folder:
        large, size = Path(folder, "large"), LARGE // (20 if quick else 1)
        Repeated(logged(job, Path(folder))).write(large, size)
        began = time.monotonic()
        command = [str(Path(sys.executable).with_name("elastream")), "advise", str(large)]
        _, status, used = os.wait4(subprocess.Popen(command, stdout=subprocess.DEVNULL).pid, 0)
        seconds, most = time.monotonic() - began, used.ru_maxrss * 1024 / 1e6
    report.figures["event log"] = {"MB": size / 1e6, "seconds": seconds, "MB of memory": most}
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise EnvironmentProblem("elastream advise failed")
    report.at_most("seconds for an event log of 1 GB", seconds, 60.0)
    report.at_most("MB of memory for it", most, 1000.0)


PARTS = {"findings": find, "fleets": predict, "log": read_large}

if __name__ == "__main__":
    main_of_parts("advice", __doc__, PARTS)
