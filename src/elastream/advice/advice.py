"""Advice about an application: findings, sizes, and what its log does not tell."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from elastream.advice.application import Application, Executor
from elastream.advice.findings import Finding, findings_of, limit_of, may_end_state, steady_files
from elastream.advice.service import Latency
from elastream.advice.sizing import Point, Sizing, size
from elastream.advice.sources import read_source
from elastream.core.lateness import LEAST_BATCHES
from elastream.core.wording import amount, counted, duration_text, hosts_text, money, percent, rate_text
from elastream.errors import InputError
from elastream.evaluation.page import Heading, Page, Prose, Table
from elastream.policies.horizon.policy import IN_TIME
from elastream.report.plots import Curve, Plot
from elastream.units import format_duration

NAN = float("nan")
# Target latency (seconds) that is assumed without one, and in trigger intervals.
ASSUMED_TARGET_S, ASSUMED_TRIGGERS = 10.0, 2.0


@dataclass(frozen=True)
class Advice:
    """Advice about an application.

    Attributes:
        target: Target latency (seconds).
        assumed: True if it was not given.
        price: Of a host-hour; NaN if unknown.
    """

    application: Application
    target: float
    assumed: bool
    price: float
    findings: tuple[Finding, ...]
    sizing: Sizing

    @property
    def unknown(self) -> tuple[str, ...]:
        dropped = [
            f"the first {counted(query.dropped, 'batch', 'batches')} of {query.name}: only the newest are kept"
            for query in self.application.queries.values()
            if query.dropped
        ]
        warm = {query.name: len(query.warm) for query in self.application.queries.values()}
        short = [
            f"if {name} is slow, and why: {counted(number, 'warm batch', 'warm batches')}, and {LEAST_BATCHES} are needed"
            for name, number in warm.items()
            if number < LEAST_BATCHES
        ]
        lacking = [
            f"latency and sizes of {query.name}: the log lacks {number:,} of its {number + len(query.batches):,} batches "
            "(a StreamingQueryListener logs all)"
            for query in self.application.queries.values()
            if (number := query.lacking)
        ]
        steady = [
            f"whether a limit holds back files of {query.name}, or as many come for each batch: each read {number}"
            for query in self.application.queries.values()
            if (number := steady_files(query)) and not limit_of(query)[0]
        ]
        ends = [
            f"whether the watermark of {query.name} ends its state: the log lacks its windows, or is too short for them"
            for query in self.application.queries.values()
            if may_end_state(query)
        ]
        lines = self.application.unreadable
        torn = [f"{counted(lines, 'line')} that cannot be read"] if lines else []
        arrival = [
            "when a record was due: latency counts from the poll before its batch, and arrivals are even between polls"
        ]
        of_log = (*self.application.unknown, *dropped, *torn, *arrival)
        return (*short, *lacking, *steady, *ends, *self.sizing.unknown, *of_log)

    @property
    def verdict(self) -> str:
        sizing, parts = self.sizing, [counted(len(self.findings), "finding")]
        if sizing.fixed is not None:
            parts.append(
                f"{_hosts(sizing, sizing.fixed.hosts)} fixed for {percent(IN_TIME)} within {format_duration(self.target)}"
            )
        elif sizing.curve:
            most = _hosts(sizing, sizing.curve[-1].hosts)
            parts.append(f"no fleet of up to {most} keeps {percent(IN_TIME)} within {format_duration(self.target)}")
        if sizing.horizon is not None:
            parts.append(f"{_hosts(sizing, sizing.horizon.hosts)} on average with horizon")
        return "; ".join(parts)

    def tables(self) -> Iterator[Table]:
        yield _queries_table(self)
        if self.findings:
            rows = tuple((each.subject, each.evidence, each.change, each.sure.value) for each in self.findings)
            yield Table("Findings", ("about", "evidence", "change", "sure"), rows)
        if self.sizing.curve:
            yield _sizes_table(self)
        if self.sizing.settings:
            yield _settings_table(self)
            yield _calibration_table(self.sizing)
        yield Table("What the log does not tell", ("",), tuple((each,) for each in self.unknown))

    def page(self) -> Page:
        application = self.application
        about = f"{application.kind}, {application.source}" + (
            f", Spark {application.version}" if application.version else ""
        )
        tables = list(self.tables())
        plots = [_plot(self.sizing, self.target)] if len(self.sizing.curve) > 1 else []
        about_all = Prose(about), Prose(self.verdict), Heading("Advice")
        return Page(f"Advice for {application.name or application.source}", (*about_all, *tables[:-1], *plots, tables[-1]))

    def to_json(self) -> dict[str, Any]:
        application = self.application
        return {
            "source": application.source,
            "application": application.name,
            "spark": application.version,
            "target": self.target,
            "target_assumed": self.assumed,
            "queries": [
                {"name": name, **figures}
                for name, figures in ((q.name, _figures(self, id)) for id, q in application.queries.items())
            ],
            "findings": [asdict(each) for each in self.findings],
            "sizing": asdict(replace(self.sizing, unknown=())),
            "unknown": self.unknown,
        }


def advise(source: str, target: float | None = None, price: float = NAN, cores: int | None = None) -> Advice:
    """Return advice about an application.

    Args:
        source: Path or address for `read_source`.
        target: Seconds. None: the application's own, else 10 s or, if longer, two trigger intervals.
        price: Of a host-hour.
        cores: Of all tasks, if the source does not tell them.

    Raises:
        InputError: The source cannot be read, or has no finished batch.
    """
    application = read_source(source)
    if cores is not None:
        _add_cores(application, cores)
    if target is None:
        target = application.target
    triggers = [query.trigger for query in application.queries.values() if not math.isnan(query.trigger)]
    aimed = max([ASSUMED_TARGET_S, *(ASSUMED_TRIGGERS * each for each in triggers)]) if target is None else target
    limits = {id: rows for id, query in application.queries.items() if (rows := limit_of(query)[1]) < math.inf}
    findings = findings_of(application, aimed, explicit=target is not None)
    return Advice(application, aimed, target is None, price, findings, size(application, aimed, price, limits))


def _add_cores(application: Application, cores: int) -> None:
    if application.executors:
        cores_text = counted(application.slots(application.span[1]) * application.task_cpus, "core")
        raise InputError(f"{application.source} says itself that its tasks had {cores_text}: leave out --cores")
    application.executors["driver"] = Executor("driver", cores, -math.inf)


def _figures(advice: Advice, id: str) -> dict[str, Any]:
    query = advice.application.queries[id]
    warm = query.warm
    latency = Latency.logged(query, warm, advice.target) if warm else Latency()
    seconds = query.batches[-1].end - query.batches[0].start
    durations = sorted(batch.seconds for batch in warm)
    whole = 1 + query.lacking / len(query.batches)
    return {
        "batches": len(query.batches),
        "rate": sum(batch.rows for batch in query.batches) * whole / seconds if seconds > 0 else NAN,
        "trigger": query.trigger,
        "batch": durations[len(durations) // 2] if durations else NAN,
        "p50": latency.p50,
        "p99": latency.p99,
        "in_time": latency.in_time,
    }


def _queries_table(advice: Advice) -> Table:
    rows = []
    for id, query in advice.application.queries.items():
        f = _figures(advice, id)
        durations = (duration_text(f[name]) for name in ("trigger", "batch", "p50", "p99"))
        rows.append((query.name, amount(f["batches"]), rate_text(f["rate"]), *durations, percent(f["in_time"])))
    assumed = ", assumed: give --target-latency" if advice.assumed else ""
    name = advice.application.name or advice.application.source
    header = ("query", "batches", "records", "trigger", "batch", "p50", "p99", "in time")
    return Table(f"{name}: queries as logged; target {format_duration(advice.target)}{assumed}", header, tuple(rows))


def _hosts(sizing: Sizing, hosts: float) -> str:
    if sizing.unit == "executor":
        each = f" of {counted(sizing.cores_each, 'core')}"
        return hosts_text(round(hosts, 1)).replace("host", "executor") + each
    return hosts_text(round(hosts, 1)).replace("host", "core")


def _sizes_table(advice: Advice) -> Table:
    sizing = advice.sizing
    error = ""
    if not math.isnan(sizing.error[1]):
        error = f"; error p50 {percent(sizing.error[0])}, p99 {percent(sizing.error[1])} by cross-validation"
    if 0 < sizing.useful <= sizing.curve[-1].hosts:
        error += f"; beyond {_hosts(sizing, sizing.useful)} no task is left"
    rows = [_row(point, "as logged" if point.logged else "") for point in sizing.curve]
    good: list[bool | None] = [None if point.in_time >= IN_TIME else False for point in sizing.curve]
    if sizing.horizon is not None:
        rows.append(_row(sizing.horizon, "horizon, on average"))
        good.append(None)
    if sizing.fixed is not None:
        at = sizing.curve.index(sizing.fixed)
        rows[at] = (*rows[at][:-1], ", ".join(filter(None, ("buy this if it stays fixed", rows[at][-1]))))
    header = (f"{sizing.unit}s", "cores", "p50", "p99", "in time", "busy", "a month", "")
    return Table(f"Sizes{error}", header, tuple(rows), tuple(good))


def _settings_table(advice: Advice) -> Table:
    sizing = advice.sizing
    fleet = "the fixed fleet" if sizing.fixed else _hosts(sizing, sizing.curve[-1].hosts)
    rows = (
        (
            each.query,
            amount(each.partitions or NAN),
            "none keeps the target" if math.isnan(each.trigger) else duration_text(each.trigger),
            amount(each.batch_rows // 1),
        )
        for each in sizing.settings
    )
    header = ("query", "shuffle partitions", "trigger, at most", "records a batch, at most (maxOffsetsPerTrigger)")
    return Table(f"Settings for {fleet}; a batch may take half of {format_duration(advice.target)}", header, tuple(rows))


def _calibration_table(sizing: Sizing) -> Table:
    rows = (
        (
            each.query,
            *map(duration_text, (each.work, each.driver, each.tasks)),
            amount(round(each.spread, 2)),
            duration_text(each.state),
            *map(percent, each.error),
        )
        for each in sizing.calibration
    )
    header = ("query", "work a record", "driver a batch", "work a batch", "longest task over mean", "state a batch")
    return Table("Model of a batch, from the log", (*header, "error p50", "error p99"), tuple(rows))


def _row(point: Point, note: str) -> tuple[str, ...]:
    return (
        amount(round(point.hosts, 1)),
        amount(round(point.cores, 1)),
        duration_text(point.p50),
        duration_text(point.p99),
        percent(point.in_time),
        percent(point.busy),
        money(point.cost),
        note,
    )


def _plot(sizing: Sizing, target: float) -> Plot:
    hosts = [point.hosts for point in sizing.curve]
    lines = [
        Curve("p99", hosts, [point.p99 for point in sizing.curve], 1),
        Curve("p50", hosts, [p.p50 for p in sizing.curve]),
    ]
    if not math.isnan(error := sizing.error[1]):
        for name, factor in (("p99, more", 1 + error), ("p99, less", max(0.0, 1 - error))):
            lines.append(Curve(name, hosts, [factor * point.p99 for point in sizing.curve], 1, dash="dot"))
    top = 2.5 * max(target, min(point.p99 for point in sizing.curve))
    return Plot("Latency by size", f"{sizing.unit}s", "seconds", tuple(lines), level=("target", target), top=top)
