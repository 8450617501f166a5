"""A run as a few lines of HTML without scripts, for any notebook."""

import html
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from elastream.core.frames import Floats
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric
from elastream.core.wording import amount, clock, duration_text, rate_text
from elastream.recording.recorder import Recording
from elastream.report.page import Card, cards
from elastream.report.plots import thinned
from elastream.report.summary import Summary

# Size of a curve's picture [pixels].
WIDTH, HEIGHT = 250, 64
# Most points of a curve: about one per pixel.
POINTS = 240
GOOD, BAD = "#1f7f5f", "#b23a52"
# Legible on the white and on the dark ground of notebooks.
BLUE, ORANGE, GREEN, RED = "#3b7dd8", "#c47322", "#2b9373", "#c94f6d"
GREY = "#8a8f98"

STYLE = "font:13px/1.4 system-ui,sans-serif;font-variant-numeric:tabular-nums;max-width:56rem"
CARD = "padding:.35rem .9rem .35rem 0"


def sentence(recording: Recording, summary: Summary) -> str:
    """Return how a run ended, on one line: `"word_count finished after 3.0 min"`."""
    name = recording.header.flow + (" (simulated)" if recording.header.plant == "simulated" else "")
    reason = recording.ending.reason if recording.ending else ""
    return f"{name} {summary.status} after {duration_text(summary.seconds)}" + (f": {reason}" if reason else "")


def fragment(recording: Recording, summary: Summary, report: Path | None) -> str:
    """Return a run's figures, three curves and the path of its report, if there is one, as HTML."""
    shown = "".join(_card(card) for card in cards(summary, recording))
    place = "no report was written"
    if report is not None:
        place = f'report <a href="{html.escape(report.absolute().as_uri())}">{html.escape(str(report))}</a>'
    return (
        f'<div style="{STYLE}"><div style="font-size:15px"><b>{html.escape(sentence(recording, summary))}</b>, '
        f"policy {html.escape(recording.header.policy)}</div>"
        f'<div style="display:grid;grid-template-columns:repeat(4,auto)">{shown}</div>'
        f'<div style="display:flex;flex-wrap:wrap;gap:1rem;margin:.4rem 0">{"".join(_curves(recording))}</div>'
        f'<div style="color:{GREY}">{place}</div></div>'
    )


def _card(card: Card) -> str:
    colour = "" if card.good is None else f";color:{GOOD if card.good else BAD}"
    aside = f'<div style="color:{GREY};font-size:11px">{html.escape(card.aside)}</div>' if card.aside else ""
    return (
        f'<div style="{CARD}"><b style="font-size:17px{colour}">{html.escape(card.value)}</b>'
        f"<div>{html.escape(card.label)}</div>{aside}</div>"
    )


def _curves(recording: Recording) -> list[str]:
    leased, ready = recording.leased, recording.host_count()[HostState.RUNNING]
    target = recording.header.target_latency
    of = recording.application
    panels = (
        ("load", rate_text, (("offered", recording.whole(Metric.ARRIVAL_RATE), ORANGE),
                             ("processed", of(Metric.THROUGHPUT), BLUE)), None),
        ("latency", duration_text, (("p99", of(Metric.LATENCY_P99), RED), ("p50", of(Metric.LATENCY_P50), BLUE)), target),
        ("hosts", amount, (("leased", leased, ORANGE), ("ready", ready, GREEN)), None),
    )  # fmt: skip
    return [
        _picture(title, write, recording.times, lines, level)
        for title, write, lines, level in panels
        if any(not np.isnan(values).all() for _, values, _ in lines)
    ]


def _picture(
    title: str,
    write: Callable[[float], str],
    times: Floats,
    lines: Sequence[tuple[str, Floats, str]],
    level: float | None,
) -> str:
    """Return a panel of curves from 0 to their highest value, which its heading names."""
    top = max([float(np.nanmax(values)) for _, values, _ in lines if not np.isnan(values).all()] + [level or 0.0, 1e-9])
    end = max(float(times[-1]), 1e-9)
    drawn = "".join(_line(times, values, colour, end, top) for _, values, colour in lines)
    if level is not None:
        y = _y(level, top)
        drawn += f'<path d="M0 {y}H{WIDTH}" stroke="{GREY}" stroke-dasharray="4 3" fill="none"/>'
    names = " ".join(f'<span style="color:{colour}">{html.escape(name)}</span>' for name, _, colour in lines)
    notes = f" <span style='color:{GREY}'>target {duration_text(level)}</span>" if level is not None else ""
    notes += f' <span style="color:{GREY}">highest {write(top)}</span>'
    return (
        f'<div><div style="font-size:11px"><b>{title}</b> {names}{notes}</div>'
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f'<path d="M0 {HEIGHT - 1}H{WIDTH}" stroke="{GREY}" stroke-opacity=".4"/>{drawn}</svg>'
        f'<div style="font-size:10px;color:{GREY};display:flex;justify-content:space-between">'
        f"<span>0:00</span><span>{clock(end)}</span></div></div>"
    )


def _y(value: float, top: float) -> float:
    return round(HEIGHT - 2 - (HEIGHT - 4) * value / top, 1)


def _line(times: Floats, values: Floats, colour: str, end: float, top: float) -> str:
    path, pen = [], "M"
    for time, value in zip(*thinned(times, values, POINTS), strict=True):
        if math.isnan(value):
            pen = "M"
            continue
        path.append(f"{pen}{WIDTH * time / end:.1f} {_y(value, top)}")
        pen = "L"
    return f'<path d="{"".join(path)}" stroke="{colour}" stroke-width="1.4" fill="none"/>'
