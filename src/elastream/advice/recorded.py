"""An application from a recording of Elastream: batches without tasks, and hosts."""

import math
from collections import Counter
from pathlib import Path

import numpy as np

from elastream.advice.application import Application, Executor, LoggedBatch, LoggedQuery
from elastream.core.metrics import Metric
from elastream.errors import InputError
from elastream.recording.recorder import Recording

UNKNOWN = "the parts of a batch, its tasks and the rows of its state: a recording has none of them"


def read_recording(source: str) -> Application:
    """Read a run's folder or recording. Raises InputError if it is damaged or has no micro-batches."""
    if not Path(source).exists():
        raise InputError(f"{source} is a recording of Elastream on another machine: copy it here first")
    recording = Recording.read(source)
    header, begun = recording.header, recording.header.started
    application = Application(source, "recording of Elastream", header.flow, unknown=[UNKNOWN])
    application.target = header.target_latency
    application.version = str(header.environment.get("spark", ""))
    application.begun, application.ended = begun, begun + recording.end
    for batch in recording.batches:
        query = application.queries.setdefault(batch.segment, LoggedQuery(batch.segment, batch.segment))
        number = len(query.batches) if math.isnan(batch.number) else int(batch.number)
        start, end = begun + batch.start, begun + batch.end
        # Latencies that are bounds are one for all records, which tell no arrival.
        bound = batch.oldest == batch.newest
        arrived = (math.nan, math.nan) if bound else (end - batch.oldest, end - batch.newest)
        query.add(LoggedBatch(number, start, batch.seconds, batch.records, first=arrived[0], last=arrived[1]))
    if not application.queries:
        raise InputError(f"{source} has no micro-batches: `elastream simulate --calibrate` is for such a recording")
    _add_hosts(application, recording)
    _add_remarks(application, recording)
    return application


def _add_hosts(application: Application, recording: Recording) -> None:
    seconds = np.diff(recording.times, prepend=0.0)
    for lease in recording.hosts:
        ready = lease.ready_at()
        if ready is None:
            continue
        end = math.inf if lease.until is None else application.begun + lease.until
        busy = float(np.nansum(recording.host(lease.host, Metric.CPU) * seconds)) * lease.type.width
        name = f"{lease.host} {ready:g}" if lease.host in application.executors else lease.host
        application.executors[name] = Executor(name, lease.type.width, application.begun + ready, end, lease.note, busy)


def _add_remarks(application: Application, recording: Recording) -> None:
    ending = recording.ending
    if ending is not None and ending.status == "failed":
        for query in application.queries.values():
            query.failure = ending.reason
    remarks = Counter[str]()
    for decision in recording.decisions:
        remarks.update(each for each in set(decision.note.split("; ")) if each.startswith(tuple(application.queries)))
    application.remarks = {text: count / len(recording.decisions) for text, count in remarks.items()}
    application.remarks |= {alarm.said: 1.0 for alarm, cleared in recording.alarms if cleared is None}
