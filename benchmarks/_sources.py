"""Other sources of advice about a job, made from its event log: lines of progress, Spark's gauges, Elastream's metrics."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from elastream.advice.advice import Advice, advise
from elastream.advice.progress import epoch
from elastream.advice.sources import lines_of

# Seconds between scrapes of Prometheus.
STEP_S = 5.0


def advices(log: Path, cores: int, target: float) -> Iterator[tuple[str, Advice]]:
    """Yield the advice from each source about a job on so many cores."""
    yield "event log", advise(str(log), target)
    batches = list(_progress(log))
    lines = log.with_suffix(".progress")
    lines.write_text("".join(json.dumps(each) + "\n" for each in batches))
    yield "progress", advise(str(lines), target, cores=cores)
    for name, series in (("gauges", _gauges(batches)), ("metrics", _metrics(batches))):
        with _prometheus(series) as address:
            yield name, advise(address, target, cores=cores)


def _progress(log: Path) -> Iterator[Mapping[str, Any]]:
    for line in lines_of(log):
        if b"QueryProgressEvent" in line and "addBatch" in (batch := json.loads(line)["progress"])["durationMs"]:
            yield batch


def _of_sources(batch: Mapping[str, Any], field: str) -> float:
    return sum(float(each.get(field) or 0) for each in batch["sources"])


def _seconds(batch: Mapping[str, Any]) -> float:
    return float(batch["durationMs"]["triggerExecution"]) / 1e3


def _scrapes(batches: list[Mapping[str, Any]]) -> Iterator[tuple[float, list[Mapping[str, Any]]]]:
    """Yield times of scrapes, and the batches that had ended by then."""
    ends = [epoch(batch["timestamp"]) + _seconds(batch) for batch in batches]
    for at in np.arange(ends[0], ends[-1] + STEP_S, STEP_S).tolist():
        yield at, [batch for batch, end in zip(batches, ends, strict=True) if end <= at]


def _gauges(batches: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    values: dict[str, list[list[Any]]] = {"inputRate_total": [], "processingRate_total": [], "latency": []}
    for at, ended in _scrapes(batches):
        newest = ended[-1]
        rates = (_of_sources(newest, f"{name}RowsPerSecond") for name in ("input", "processed"))
        for series, value in zip(values.values(), (*rates, 1e3 * _seconds(newest)), strict=True):
            series.append([at, str(value)])
    return [_series(f"metrics_app_driver_spark_streaming_q_{name}_Value", each) for name, each in values.items()]


def _metrics(batches: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    duration, latency = "elastream_query_batch_duration_seconds", "elastream_query_latency_seconds"
    values: dict[str, list[list[Any]]] = {f"{duration}_count": [], f"{duration}_sum": [], f"{latency}_count": []}
    for at, ended in _scrapes([batch for batch in batches if _of_sources(batch, "numInputRows")]):
        sums = len(ended), sum(map(_seconds, ended)), sum(_of_sources(each, "numInputRows") for each in ended)
        for series, value in zip(values.values(), sums, strict=True):
            series.append([at, str(value)])
    return [_series(name, each, run="r", query="q") for name, each in values.items()]


def _series(name: str, values: list[list[Any]], **labels: str) -> dict[str, Any]:
    return {"metric": {"__name__": name, **labels}, "values": values}


@contextmanager
def _prometheus(series: list[dict[str, Any]]) -> Iterator[str]:
    answer = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path.startswith("/api/v1/query_range") else 404)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
