"""One self-contained HTML page per run: timeline, figures, decisions, leases, operators, environment.

Unknown figures are a dash.
"""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from elastream.core.decision import Decision, Fault
from elastream.core.frames import Floats
from elastream.core.hosts import Lease
from elastream.core.latency import basis_text, is_bound, mixture_quantile
from elastream.core.metrics import Metric
from elastream.core.wording import (
    UNKNOWN,
    amount,
    clock,
    duration_text,
    money,
    percent,
    quantity,
    rate_text,
)
from elastream.errors import ElastreamError, in_one_line
from elastream.policies.common.provision import TARGET_UTILISATION
from elastream.policies.savings import savings_text
from elastream.recording.directory import write_text
from elastream.recording.recorder import Recording
from elastream.report.flow import flow_of_run
from elastream.report.rings import state_at_the_end
from elastream.report.summary import Summary, summarise
from elastream.report.template import rendered
from elastream.report.timeline import timeline


@dataclass(frozen=True, slots=True)
class SelectionShares:
    element: str  # its name
    shares: tuple[tuple[str, float], ...]  # share of the time for each option
    switches: int  # their number
    # share of the time in which guards allowed no option, so that the last one stayed; NaN without guards
    closed: float = math.nan


def selections_of(recording: Recording) -> tuple[SelectionShares, ...]:
    if not len(recording.times):
        return ()
    begin, end = float(recording.times[0]), max(recording.end, float(recording.times[-1]))
    whole = max(end - begin, 1e-9)
    selections = []
    for element in _elements(recording):
        spans = list(_spans(recording, element, end))
        seconds: dict[str, float] = {}
        for option, since, until in spans:
            seconds[option] = seconds.get(option, 0.0) + until - since
        shares = sorted(((option, each / whole) for option, each in seconds.items()), key=lambda each: -each[1])
        selections.append(
            SelectionShares(element, tuple(shares), max(0, len(spans) - 1), _closed(recording, element, end) / whole)
        )
    return tuple(selections)


def _elements(recording: Recording) -> tuple[str, ...]:
    header = recording.header
    operators = [each["name"] for each in header.operators if len(each["alternates"]) > 1]
    return tuple(dict.fromkeys([*operators, *(each["choice"] for each in header.edges if each.get("choice"))]))


def _spans(recording: Recording, element: str, end: float) -> Iterator[tuple[str, float, float]]:
    times = recording.series.times
    changes: list[tuple[str, float]] = []
    for number, query, composition in recording.series.compositions:
        option = composition["alternates"].get(element) or composition["choices"].get(element)
        if not query and option is not None and (not changes or changes[-1][0] != option):
            changes.append((option, times[number]))
    for (option, since), (_, until) in pairwise([*changes, ("", end)]):
        yield option, since, until


def _closed(recording: Recording, element: str, end: float) -> float:
    """Return the seconds in which guards allowed nothing; NaN without guards."""
    times = recording.series.times
    changes = [
        (fields is not None and not fields["allowed"], times[number])
        for number, name, fields in recording.series.standings
        if name == element
    ]
    if not changes:
        return math.nan
    return math.fsum(until - since for (closed, since), (_, until) in pairwise([*changes, (False, end)]) if closed)


log = logging.getLogger(__name__)

STATUS = {
    "finished": "finished: the whole load was processed",
    "stopped": "stopped before the load had ended",
    "failed": "failed",
    "died": "died: the recording breaks off without an end entry",
}

# Decisions shown from the beginning and from the end; of leases, twice as many from the beginning. A page with those of
# weeks opens slowly.
MAX_ROWS = 200

# Latest reasons for missing standby replicas that are shown.
LACKING = 5


@dataclass(frozen=True, slots=True)
class Card:
    """A figure of the summary: value, label and annotation. good: True if it meets its target; None without one."""

    value: str
    label: str
    aside: str = ""
    good: bool | None = None


def write_report(recording: Recording, path: Path | str, summary: Summary | None = None) -> Path:
    """Write the report to `path` and return the path; `summary` of a run of weeks takes seconds to compute."""
    return write_text(Path(path), render(recording, summary), "report")


def report_problem(recording: Recording, path: Path | str, summary: Summary | None = None) -> str:
    """Write the report as `write_report` does; on failure log one sentence and return it, otherwise return ""."""
    try:
        write_report(recording, path, summary)
    except Exception as error:
        ours = isinstance(error, ElastreamError)
        sentence = in_one_line(error) if ours else f"the report {path} cannot be written: {in_one_line(error)}"
        log.warning("%s", sentence, exc_info=not ours)
        return sentence
    return ""


def render(recording: Recording, summary: Summary | None = None) -> str:
    summary, header = summary or summarise(recording), recording.header
    decisions = list(_quiet_or_not(recording.decisions))
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(header.started)) if header.started else UNKNOWN
    return rendered(
        "report.html.j2",
        header=header,
        simulated=header.plant == "simulated",
        started=started,
        seconds=summary.seconds,
        status=STATUS.get(summary.status, summary.status),
        failed=summary.status in ("failed", "died"),
        reason=recording.ending.reason if recording.ending else "",
        cards=cards(summary, recording),
        timeline=timeline(recording),
        flow=flow_of_run(header),
        decisions=decisions[:MAX_ROWS],
        later=decisions[max(MAX_ROWS, len(decisions) - MAX_ROWS) :],
        left_out=max(0, len(decisions) - 2 * MAX_ROWS),
        rounds=len(recording.decisions),
        alarms=recording.alarms[:MAX_ROWS],
        alarms_left_out=max(0, len(recording.alarms) - MAX_ROWS),
        leases=[
            (lease, bar(lease, 0.0, max(recording.end, lease.until or 0.0))) for lease in recording.hosts[: 2 * MAX_ROWS]
        ],
        leases_left_out=max(0, len(recording.hosts) - 2 * MAX_ROWS),
        end=recording.end,
        units=sum(lease.units(recording.end) for lease in recording.hosts),
        cost=summary.cost,
        lacked=summary.lacked,
        unknown=UNKNOWN,
        operators=[_operator_row(recording, operator) for operator in header.operators],
        facts=_facts(recording),
        dynamic=selections_of(recording),
        state=state_at_the_end(recording),
        lacking=[(recording.series.times[number], why) for number, why in recording.series.lacking[-LACKING:] if why],
    )


def cards(summary: Summary, recording: Recording) -> list[Card]:
    target = recording.header.target_latency
    within_target = None if target is None or math.isnan(summary.latency_p99) else summary.latency_p99 <= target
    lost = f", {summary.lost} lost" if summary.lost else ""
    least = "≥ " if is_bound(summary.latency_basis) and not math.isnan(summary.records_within_target) else ""
    longest = "" if math.isnan(summary.longest_batch) else f"longest batch {duration_text(summary.longest_batch)}"
    return [
        Card(f"{least}{percent(summary.records_within_target)}", "of the records in time", in_time_aside(summary, target)),
        Card(
            duration_text(summary.latency_p99), "latency, 99th percentile", basis_text(summary.latency_basis), within_target
        ),
        Card(duration_text(summary.latency_p50), "latency, median", longest),
        Card(f"{money(summary.cost)} {summary.currency}".rstrip(), "cost", _cost_aside(summary)),
        Card(amount(summary.records), "records processed", _processed(summary)),
        Card(amount(summary.peak_hosts), "hosts at most", f"{summary.leases} leased, {summary.releases} released{lost}"),
        Card(f"{summary.host_minutes:,.1f}", "host-minutes", "leased, summed over hosts"),
        Card(
            amount(summary.rounds), "planning rounds", f"{summary.moves} tasks moved, {summary.refused} proposals refused"
        ),
    ]


def in_time_aside(summary: Summary, target: float | None) -> str:
    if target is None:
        return "no target latency"
    if math.isnan(summary.records_within_target) and math.isnan(summary.within_target):
        return f"target {duration_text(target)}; no latency was measured"
    return f"and {percent(summary.within_target)} of the time; target {duration_text(target)}"


def costs_text(summary: Summary) -> str:
    unit = f" {summary.currency}" if summary.currency else ""
    each = "" if math.isnan(summary.cost_per_million) else f", {money(summary.cost_per_million)} a million records"
    queries = ", ".join(f"{query} {money(cost)}" for query, cost in summary.costs.items())
    return f"{money(summary.cost)}{unit}{each}" + (f" ({queries})" if queries else "")


def _cost_aside(summary: Summary) -> str:
    own = costs_text(summary).partition(", ")[2]
    return "; ".join(filter(None, [own, savings_aside(summary)]))


def savings_aside(summary: Summary) -> str:
    """Return the annotation of the cost: that of other fleets on the same load; empty if unknown."""
    text = savings_text(summary.fleets)
    return text and f"{text}. The peak: {_need(summary)}"


def _need(summary: Summary) -> str:
    return f"{rate_text(summary.static_rate)} needs {summary.static_cores:.3g} cores, filled to {TARGET_UTILISATION:.0%}"


def _processed(summary: Summary) -> str:
    if not math.isnan(summary.batches):
        return f"in {amount(summary.batches)} micro-batches"
    return f"{rate_text(summary.records / summary.seconds)} on average" if summary.seconds else ""


def _quiet_or_not(decisions: Sequence[Decision]) -> Iterator[tuple[str, list[Decision], list[Fault]]]:
    """Yield planning rounds one by one, or grouped under a common note if they have no proposals and outcomes."""
    for quiet, group in groupby(decisions, key=lambda d: d.repeats if not (d.proposals or d.outcomes) else None):
        rounds = list(group)
        if quiet is None:
            yield from (("", [decision], list(decision.faults)) for decision in rounds)
        else:
            faults = {fault.said: fault for decision in rounds for fault in decision.faults}
            yield rounds[-1].remarks or "nothing to do", rounds, list(faults.values())


def bar(lease: Lease, begin: float, end: float) -> tuple[float, float, float]:
    """Return begin, readiness and end of a lease in percent of the time from `begin` to `end`."""
    ready, until = lease.ready_at(), end if lease.until is None else lease.until
    times = (lease.since, until if ready is None else ready, until)
    first, second, third = (round(100 * min(max(at - begin, 0.0) / max(end - begin, 1e-9), 1.0), 2) for at in times)
    return first, second, third


def _operator_row(recording: Recording, operator: dict[str, Any]) -> dict[str, Any]:
    name = operator["name"]

    def series(metric: Metric) -> Floats:
        return recording.operator(name, metric)

    rate = series(Metric.PROCESSED_RATE)
    p50, p99 = series(Metric.DURATION_P50), series(Metric.DURATION_P99)
    weights = np.nan_to_num(rate)
    high = mixture_quantile(0.99, weights, p50, p99)
    level = operator["max_duration"]
    return {
        "name": name,
        "kind": operator["kind"],
        "rate": _mean(rate),
        "peak": float(np.nanmax(rate)) if not np.isnan(rate).all() else math.nan,
        "service": _mean(series(Metric.SERVICE_TIME)),
        "p50": mixture_quantile(0.5, weights, p50, p99),
        "p99": high,
        "level": level,
        "kept": None if level is None or math.isnan(high) else high <= level,
    }


def _mean(values: Floats) -> float:
    values_known = values[~np.isnan(values)]
    return float(values_known.mean()) if len(values_known) else math.nan


def _facts(recording: Recording) -> list[tuple[str, str]]:
    header, ending = recording.header, recording.ending
    rows = [("plant", "simulated" if header.plant == "simulated" else f"{header.plant}, real"), ("policy", header.policy)]
    rows += [(str(key), str(value)) for key, value in header.environment.items()]
    if recording.forgotten:
        rows.append(("details", f"from {clock(recording.forgotten)} on; of the time before only the figures are kept"))
    rows += [("resumed", each) for each in header.resumptions]
    for kind in header.host_types:
        billing = kind["billing"]
        unit = duration_text(billing["unit"])
        price = f"{kind['price']:g} for each {unit}"
        rows.append((f"host type {kind['name']}", f"{kind['cores']:g} cores, {kind['memory']:g} MB, {price}"))
    for key, fact in (ending.facts if ending else {}).items():
        rows.append((str(key), quantity(key, fact) if isinstance(fact, int | float) else str(fact)))
    return rows
