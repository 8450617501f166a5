"""Common parts of the timeline's panels: time axis, colours, titles, and thinning of long curves."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from elastream.core.frames import Floats

Json: TypeAlias = dict[str, Any]

# Epoch milliseconds for time 0 of a run: a date axis labels minutes and seconds well, but would show small numbers as
# years.
ORIGIN = 946_684_800_000

# Line colours, distinguishable on white and near-black and with common colour deficiencies.
PALETTE = ("#3b7dd8", "#d9822b", "#2e9e7b", "#a663cc", "#c94f6d", "#7a8b2f", "#5c6f82", "#b0703c")


def x_of(time: float) -> int:
    """Return the position on the time axis of `time`, seconds after the start."""
    return ORIGIN + round(time * 1000)


def axis_of(number: int) -> str:
    """Return Plotly's name of a y axis, numbered from 1."""
    return "y" if number == 1 else f"y{number}"


def scatter(axis: str, name: str, x: Sequence[int | None], y: Sequence[object], **options: Any) -> Json:
    """Return a trace over time on the y axis `axis`."""
    return {"type": "scatter", "name": name, "x": x, "y": y, "xaxis": "x", "yaxis": axis, **options}


def add_axis(layout: Json, axis: str, low: float, high: float, **options: Any) -> None:
    """Add a y axis between heights `low` and `high` of the figure."""
    common = {"domain": [low, high], "anchor": "x", "zeroline": False, "fixedrange": True}
    layout[f"yaxis{axis[1:]}"] = {**common, **options}


def add_title(layout: Json, title: str, named: Sequence[str], y: float) -> None:
    """Add a panel's title and its curves' names (HTML) above height `y` of the figure."""
    layout["annotations"].append(
        {
            "text": f"<b>{title}</b>   {'   '.join(named)}", "xref": "paper", "yref": "paper", "x": 0, "y": y,
            "xanchor": "left", "yanchor": "bottom", "showarrow": False, "align": "left", "font": {"size": 12.5},
        }
    )  # fmt: skip


def thinned(times: Floats, values: Floats, most: int) -> tuple[Floats, Floats]:
    """Return at most `most` points (>= 4) of a curve: the lowest and the highest of each section, in order.

    First and last point stay. An unknown section is one unknown point; a partly unknown one shows its known points.

    Args:
        times: Shape (points,).
        values: Shape (points,).
        most: Number of points.
    """
    if len(values) <= most:
        return times, values
    sections = np.array_split(np.arange(1, len(values) - 1), (most - 2) // 2)
    chosen = [0]
    for section in sections:
        here = values[section]
        if np.isnan(here).all():
            chosen.append(int(section[0]))
        else:
            chosen += sorted({int(section[np.nanargmin(here)]), int(section[np.nanargmax(here)])})
    rows = [*chosen, len(values) - 1]
    return times[rows], values[rows]
