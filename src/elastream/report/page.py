"""Renders one self-contained HTML page per run: timeline, figures, decisions, leases, operators, environment.

Scripts and data are inlined, so that the file works offline. All figures come from the recording; unknown ones are shown
as a dash.
"""

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, select_autoescape

from elastream.model.action import Outcome, describe
from elastream.model.cloud import Lease
from elastream.model.decision import Decision, Fault
from elastream.model.observation import Floats, Metric
from elastream.model.wording import UNKNOWN, amount, clock, duration_text, money, percent, quantities, quantity, rate_text
from elastream.recording.directory import write_text
from elastream.recording.recorder import Recording
from elastream.recording.summary import Summary, mixture_quantile, summarise
from elastream.report.timeline import timeline

__all__ = ["render", "write_report"]

STATUS = {
    "finished": "finished: the whole load was processed",
    "stopped": "stopped before the load had ended",
    "failed": "failed",
    "died": "died: the recording breaks off without an end entry",
}


@dataclass(frozen=True, slots=True)
class Card:
    """A figure of the summary: value, label and annotation. good: whether it meets its target; None without one."""

    value: str
    label: str
    aside: str = ""
    good: bool | None = None


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A planning round with proposals or outcomes, or (`quiet`) a sequence of rounds without any."""

    rounds: str
    time: str
    quiet: str = ""
    seen: str = ""
    done: tuple[tuple[str, str, str], ...] = ()
    refused: tuple[tuple[str, str, str], ...] = ()
    expected: tuple[tuple[str, str, str], ...] = ()
    note: str = ""
    faults: tuple[Fault, ...] = ()


def write_report(recording: Recording, path: Path | str) -> Path:
    """Write the report of `recording` to `path` and return the path. Raises EnvironmentProblem if that fails."""
    return write_text(Path(path), render(recording), "report")


def render(recording: Recording) -> str:
    """The report of `recording` as HTML text."""
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("elastream.report"),
        autoescape=select_autoescape(["html", "j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    summary, header = summarise(recording), recording.header
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(header.started)) if header.started else UNKNOWN
    return environment.get_template("report.html.j2").render(
        header=header,
        simulated=header.plant == "simulated",
        started=started,
        length=duration_text(summary.seconds),
        status=STATUS.get(summary.status, summary.status),
        failed=summary.status in ("failed", "died"),
        reason=recording.ending.reason if recording.ending else "",
        cards=cards(summary, recording),
        figure=_inline(timeline(recording)),
        plotly=get_plotlyjs(),
        decisions=list(_decision_rows(recording.decisions)),
        rounds=len(recording.decisions),
        alarms=[
            (alarm, clock(alarm.since), "not cleared" if cleared is None else clock(cleared))
            for alarm, cleared in recording.alarms
        ],
        leases=[_lease_row(lease, recording.end) for lease in recording.hosts],
        lease_total=(amount(sum(lease.units(recording.end) for lease in recording.hosts)), money(summary.cost)),
        operators=[_operator_row(recording, operator) for operator in header.operators],
        facts=_facts(recording),
    )


def cards(summary: Summary, recording: Recording) -> list[Card]:
    """The figures at the top of the page, most important first."""
    target = recording.header.target_latency
    share = None if math.isnan(summary.within_target) else summary.within_target
    batches = f"in {amount(summary.batches)} micro-batches" if not math.isnan(summary.batches) else ""
    rate = rate_text(summary.records / summary.seconds) if summary.seconds else UNKNOWN
    promised = f"target {duration_text(target)}" if target is not None else "no target set"
    kept = None if target is None or math.isnan(summary.latency_p99) else summary.latency_p99 <= target
    lost = f", {summary.lost} lost" if summary.lost else ""
    return [
        Card(amount(summary.records), "records processed", batches or f"{rate} on average"),
        Card(duration_text(summary.latency_p50), "latency, median"),
        Card(duration_text(summary.latency_p99), "latency, 99th percentile", promised, kept),
        Card(percent(share), "of the time within target", "" if target is not None else promised),
        Card(amount(summary.peak_hosts), "hosts at most", f"{summary.leases} leased, {summary.releases} given back{lost}"),
        Card(f"{summary.host_minutes:,.1f}", "host-minutes", "leased, summed over hosts"),
        Card(money(summary.cost), "cost", "in whole billing time units"),
        Card(
            amount(summary.rounds), "planning rounds", f"{summary.moves} tasks moved, {summary.refused} proposals refused"
        ),
    ]


def _inline(data: Any) -> str:
    """JSON text that is safe inside a script element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _decision_rows(decisions: Sequence[Decision]) -> Iterator[DecisionRow]:
    for quiet, group in groupby(decisions, key=lambda d: d.note if not (d.proposals or d.outcomes) else None):
        rounds = list(group)
        if quiet is not None:
            first, last = rounds[0], rounds[-1]
            times = _span(clock(first.time), clock(last.time))
            faults = tuple({fault.said: fault for each in rounds for fault in each.faults}.values())
            yield DecisionRow(
                _span(str(first.round), str(last.round)), times, quiet=quiet or "nothing to do", faults=faults
            )
            continue
        for decision in rounds:
            yield DecisionRow(
                rounds=str(decision.round),
                time=clock(decision.time),
                seen=quantities(decision.seen),
                done=tuple((describe(o.action), o.action.why, _result(o)) for o in decision.outcomes),
                refused=tuple((describe(p.action), p.by, p.refused) for p in decision.proposals if p.refused),
                expected=tuple(
                    (name.replace("_", " "), quantity(name, value), quantity(name, decision.actual.get(name)))
                    for name, value in decision.predicted.items()
                ),
                note=decision.note,
                faults=decision.faults,
            )


def _result(outcome: Outcome) -> str:
    return "" if outcome.succeeded and not outcome.reason else f"{outcome.status.value}: {outcome.reason}"


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first} – {last}"


def _lease_row(lease: Lease, end: float) -> dict[str, Any]:
    ready, until = lease.ready_at(), lease.until if lease.until is not None else end
    whole = max(end, until, 1e-9)
    return {
        "host": lease.host,
        "type": lease.type.name,
        "since": clock(lease.since),
        "ready": UNKNOWN if ready is None else clock(ready),
        "wait": duration_text(None if ready is None else ready - lease.since),
        "until": UNKNOWN if lease.until is None else clock(lease.until),
        "state": lease.state.value,
        "units": amount(lease.units(end)),
        "cost": money(lease.cost(end)),
        # Percent of the run, for the bar: leased from, ready from, to.
        "bar": [round(100 * at / whole, 2) for at in (lease.since, until if ready is None else ready, until)],
    }


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
        "rate": rate_text(_mean(rate)),
        "peak": rate_text(float(np.nanmax(rate)) if not np.isnan(rate).all() else math.nan),
        "service": duration_text(_mean(series(Metric.SERVICE_TIME))),
        "p50": duration_text(mixture_quantile(0.5, weights, p50, p99)),
        "p99": duration_text(high),
        "level": duration_text(level),
        "kept": None if level is None or math.isnan(high) else high <= level,
    }


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _facts(recording: Recording) -> list[tuple[str, str]]:
    """(name, value) of the environment, the host types, and the facts that the plant recorded at the end."""
    header, ending = recording.header, recording.ending
    rows = [("plant", "simulated" if header.plant == "simulated" else f"{header.plant}, real"), ("policy", header.policy)]
    rows += [(str(key), str(value)) for key, value in header.environment.items()]
    for kind in header.host_types:
        billing = kind["billing"]
        unit = duration_text(billing["unit"])
        price = f"{kind['price']:g} for each {unit}"
        rows.append((f"host type {kind['name']}", f"{kind['cores']:g} cores, {kind['memory']:g} MB, {price}"))
    for key, fact in (ending.facts if ending else {}).items():
        rows.append((str(key), quantity(key, fact) if isinstance(fact, int | float) else str(fact)))
    return rows
