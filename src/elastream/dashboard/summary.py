"""The summary of a finished run on the terminal."""

import math
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from elastream.core.latency import basis_text, is_bound
from elastream.core.wording import UNKNOWN, amount, clock, counted, duration_text, percent, quantity, rate_text
from elastream.recording.recorder import Recording
from elastream.report.page import costs_text, savings_aside
from elastream.report.summary import Summary, summarise

MAX_RESUMPTIONS = 5


def print_summary(
    recording: Recording, console: Console, report: Path | None = None, summary: Summary | None = None
) -> None:
    header, ending, figures = recording.header, recording.ending, summary or summarise(recording)
    target = header.target_latency
    simulated = " (simulated)" if header.plant == "simulated" else ""
    reason = f": {ending.reason}" if ending and ending.reason else ""
    title = Text.assemble(
        (f"{header.flow}{simulated}", "bold"), f" {figures.status} after {duration_text(figures.seconds)}"
    )
    title.append(reason, style="red" if figures.status in ("failed", "died") else "")
    rate = rate_text(figures.records / figures.seconds) if figures.seconds else UNKNOWN
    batches = "" if math.isnan(figures.batches) else f" in {amount(figures.batches)} micro-batches"
    basis = f" ({text})" if (text := basis_text(figures.latency_basis)) else ""
    rows = [
        ("records", f"{amount(figures.records)}{batches}, {rate} on average"),
        ("latency", f"p50 {duration_text(figures.latency_p50)}, p99 {duration_text(figures.latency_p99)}{basis}"),
    ]
    if target is not None:
        least = "at least " if is_bound(figures.latency_basis) and not math.isnan(figures.records_within_target) else ""
        records, time = percent(figures.records_within_target), percent(figures.within_target)
        rows.append(("in time", f"{least}{records} of the records, {time} of the time (target {duration_text(target)})"))
    if not math.isnan(figures.longest_batch):
        rows.append(("longest batch", duration_text(figures.longest_batch)))
    lost = f", {figures.lost} lost" if figures.lost else ""
    others = f"; {aside}" if (aside := savings_aside(figures)) else ""
    refused = counted(figures.refused, "proposal")
    rows += [
        ("hosts", f"{figures.peak_hosts} at most, {figures.leases} leased, {figures.releases} released{lost}"),
        ("host-minutes", f"{figures.host_minutes:,.1f}"),
        ("cost", f"{costs_text(figures)}{others}"),
        ("decisions", f"{counted(figures.rounds, 'round')}, {counted(figures.moves, 'task')} moved, {refused} refused"),
        *(("remark", str(each)) for each in figures.lacked),
        *(("resumed", each) for each in header.resumptions[-MAX_RESUMPTIONS:]),
    ]
    if recording.forgotten:
        rows.append(("details", f"from {clock(recording.forgotten)} on; of the time before only the figures are kept"))
    shown_above = {"records", "batches", "latency_p50", "latency_p99", "longest batch", "moves", "owed"}
    facts = ending.facts if ending else {}
    rows += [
        (name.replace("_", " "), value if isinstance(value, str) else quantity(name, value))
        for name, value in facts.items()
        if name not in shown_above
    ]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    console.print()
    console.print(title)
    console.print(table)
    if report is not None:
        console.print()
        # Not wrapped: a path broken over two lines cannot be clicked or copied.
        console.print(Text.assemble(("report  ", "dim"), str(report)), soft_wrap=True)
