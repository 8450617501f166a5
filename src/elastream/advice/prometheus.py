"""An application from a range query of Prometheus: Spark's streaming gauges, or Elastream's metrics.

All batches between two scrapes count as the last one.
"""

import math
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from elastream.advice.application import KEPT_BATCHES, NAN, Application, LoggedBatch, LoggedQuery
from elastream.advice.progress import MALFORMED, MOST_EPOCH, MOST_RECORDS, MOST_SECONDS
from elastream.advice.web import NoSuchPage, Site
from elastream.core.wording import counted
from elastream.errors import InputError

DEFAULT_S, STEP_S = 3600.0, 15
GAUGES = "inputRate_total|processingRate_total|latency|eventTime_watermark|states_rowsTotal|states_usedBytes"
# Names that Spark's servlet and the JMX exporter give them, with the namespace, the instance and the query within.
SPARK = re.compile(rf"metrics_(.+?)_driver_spark_streaming_(.+)_({GAUGES})(?:_(?:value|number))?_?", re.IGNORECASE)
DURATION, LATENCY = "elastream_query_batch_duration_seconds", "elastream_query_latency_seconds"
RECORDS, TARGET, ALARM = "elastream_records_total", "elastream_target_latency_seconds", "elastream_alarm"
OWN = [*(f"{name}_{part}" for name in (DURATION, LATENCY) for part in ("sum", "count")), RECORDS, TARGET, ALARM]
SELECTOR = f'{{__name__=~"(?i:metrics_.+_spark_streaming_.+)|{"|".join(OWN)}"}}'
# Part by which an interval may differ from the usual one, which a trigger sets then; and that it exceeds a batch by.
ALIKE, IDLE = 0.1, 1.05
# Batches of a stretch from which the usual time between starts follows.
STRETCH = 10
# Shortest time between two batches: Spark's clock has no shorter one.
SHORTEST_S = 1e-3
UNKNOWN = (
    "each batch: Prometheus has the newest one of each scrape, and those before it are taken to be like it",
    "tasks, executors, settings and sources: no series has them",
)

Samples = dict[float, float]


class Span(NamedTuple):
    """Batches between two scrapes. every: seconds between starts; off: its relative error."""

    begun: float
    ended: float
    rows: float
    seconds: float
    every: float
    off: float = ALIKE


@dataclass
class _Series:
    of_queries: defaultdict[str, dict[str, Samples]] = field(default_factory=lambda: defaultdict(dict))
    others: dict[str, Samples] = field(default_factory=dict)


def read(source: str, site: Site, query: Mapping[str, str]) -> Application:
    """Read an application. query: `query`, `start`, `end` and `step` of the address.

    Raises:
        InputError: No such series, or several applications.
    """
    end = _number(query, "end", time.time())
    start = _number(query, "start", end - DEFAULT_S)
    parameters = {"query": query.get("query", SELECTOR), "start": start, "end": end, "step": query.get("step", STEP_S)}
    try:
        answer = site.json("/api/v1/query_range", **parameters)
        series = answer["data"]["result"]
        applications = _applications(series)
    except NoSuchPage:
        raise InputError(f"{source} is neither Spark's web interface nor Prometheus") from None
    except MALFORMED:
        raise InputError(f"{source} answers in a form that is not Prometheus's") from None
    if not applications:
        problem = f"none of {counted(len(series), 'series', 'series')} is" if series else "there is no series"
        raise InputError(
            f"{source}: {problem} of Elastream's metrics or Spark's streaming gauges between {start:.0f} and {end:.0f} "
            "(spark.sql.streaming.metricsEnabled=true makes Spark report them)"
        )
    if len(applications) > 1:
        raise InputError(
            f"{source} has {len(applications)} applications, such as {min(applications)}: give one of them in the "
            "address with ?query={...}"
        )
    ((name, only),) = applications.items()
    return _application(source, name, only)


def _number(query: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(query.get(name, default))
    except ValueError:
        raise InputError(f"{name}={query[name]} of the range query must be epoch seconds") from None


def _applications(series: list[Any]) -> dict[str, _Series]:
    by_name = defaultdict[str, _Series](_Series)
    for each in series:
        labels = each["metric"]
        name = str(labels.get("__name__", ""))
        samples = {float(at): value for at, text in each["values"] if math.isfinite(value := float(text))}
        match = SPARK.fullmatch(name)
        if match is not None:
            key = next(gauge for gauge in GAUGES.split("|") if gauge.lower() == match[3].lower())
            by_name[match[1]].of_queries[match[2]].setdefault(key, {}).update(samples)
        elif name in OWN and labels.get("run"):
            of = by_name[str(labels["run"])]
            if "query" in labels:
                of.of_queries[str(labels["query"])].setdefault(name, {}).update(samples)
            else:
                of.others.setdefault(f"{name} {labels.get('source', '')}".strip(), {}).update(samples)
    return dict(by_name)


def _application(source: str, name: str, series: _Series) -> Application:
    application = Application(source, "range query of Prometheus", name, unknown=list(UNKNOWN))
    if targets := series.others.get(TARGET):
        application.target = targets[max(targets)]
    for key, samples in series.others.items():
        if key.startswith(ALARM) and samples[max(samples)] > 0:
            application.remarks[f"the alarm of {key.removeprefix(ALARM).strip()} stands"] = 1.0
    records = series.others.get(RECORDS, {}) if len(series.of_queries) == 1 else {}
    for query, values in series.of_queries.items():
        spans = list(_of_gauges(values) if "latency" in values else _of_histograms(values, records))
        application.queries[query] = _query(query, spans, values)
    return application


def _of_gauges(values: Mapping[str, Samples]) -> Iterator[Span]:
    rates, speeds, latencies = (values.get(name, {}) for name in ("inputRate_total", "processingRate_total", "latency"))
    times = sorted(rates.keys() & speeds.keys() & latencies.keys())
    for before, at in pairwise(times):
        seconds, rate = latencies[at] / 1e3, rates[at]
        rows = speeds[at] * seconds
        if rows > 0 and rate > 0 and seconds > 0:
            yield Span(before, at, rows, seconds, max(seconds, rows / rate))


def _of_histograms(values: Mapping[str, Samples], records: Samples) -> Iterator[Span]:
    count, total = values.get(f"{DURATION}_count", {}), values.get(f"{DURATION}_sum", {})
    rows = values.get(f"{LATENCY}_count") or records
    times = sorted(count.keys() & total.keys() & rows.keys())
    before = times[0] if times else NAN
    for at in times[1:]:
        number, seconds, processed = (each[at] - each[before] for each in (count, total, rows))
        if number < 0:  # a new process counts from zero
            before = at
        elif number:
            if processed > 0 and seconds > 0:
                each = seconds / number
                # One batch more or less may have ended just at a scrape.
                yield Span(before, at, processed / number, each, max(each, (at - before) / number), max(ALIKE, 1 / number))
            before = at


def _query(name: str, spans: list[Span], values: Mapping[str, Samples]) -> LoggedQuery:
    query = LoggedQuery(name, name)
    usual = _usual(spans)
    interval = round(usual, 0 if usual >= 1 else 1)
    regular = spans and interval > IDLE * statistics.median(span.seconds for span in spans)
    state, watermark = (_line(values.get(name, {})) for name in ("states_rowsTotal", "eventTime_watermark"))
    stateful = any(values.get("states_rowsTotal", {}).values())
    numbers = []
    for span in spans:
        if not (span.rows < MOST_RECORDS and SHORTEST_S <= span.every < MOST_SECONDS and span.ended < MOST_EPOCH):
            continue
        on_trigger = regular and span.seconds < interval and abs(span.every / interval - 1) <= span.off
        every = interval if on_trigger else span.every
        numbers.append((span, every, range(math.ceil(span.begun / every), math.ceil(span.ended / every))))
    surplus = max(0, sum(len(each) for *_, each in numbers) - KEPT_BATCHES)
    for span, every, all_ in numbers:
        newest = all_[surplus:]
        surplus = max(0, surplus - len(all_))
        query.dropped += len(all_) - len(newest)
        for number in newest:
            start = number * every
            until = watermark(start) / 1e3
            query.add(
                LoggedBatch(
                    len(query.batches) + query.dropped,
                    start,
                    span.seconds,
                    span.rows,
                    state=state(start) if stateful else NAN,
                    watermark=until if until > 0 else NAN,
                    first=start - every,
                    last=start,
                )
            )
    return query


def _usual(spans: list[Span]) -> float:
    lasted = np.array([span.ended - span.begun for span in spans])
    times, numbers = np.cumsum(lasted), np.cumsum(lasted / [span.every for span in spans])
    until = np.searchsorted(numbers, numbers + STRETCH)
    since = np.flatnonzero(until < len(spans))
    until = until[since]
    if not since.size:
        return statistics.median(span.every for span in spans) if spans else NAN
    return float(np.median((times[until] - times[since]) / (numbers[until] - numbers[since])))


def _line(samples: Samples) -> Callable[[float], float]:
    """Return the value at a time between the samples; NaN without any."""
    times = sorted(samples)
    values = [samples[at] for at in times]
    return lambda at: float(np.interp(at, times, values)) if times else NAN
