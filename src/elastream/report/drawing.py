"""What all panels of a run's time line are drawn with: its time axis, its colours, the titles of panels."""

from collections.abc import Sequence
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

ORIGIN = 946_684_800_000
"""Epoch milliseconds that stand for time 0 of a run: a date axis labels minutes and seconds well at every zoom, but reads
small numbers as years."""

PALETTE = ("#3b7dd8", "#d9822b", "#2e9e7b", "#a663cc", "#c94f6d", "#7a8b2f", "#5c6f82", "#b0703c")
"""Line colours, distinguishable on white and near-black and with common colour deficiencies."""


def x_of(time: float) -> int:
    """Where `time`, seconds after the start, is on the time axis."""
    return ORIGIN + round(time * 1000)


def axis_of(letter: str, number: int) -> str:
    """Plotly's name of an axis, numbered from 1."""
    return letter if number == 1 else f"{letter}{number}"


def add_title(layout: Json, title: str, named: Sequence[str], y: float) -> None:
    """Write a panel's title, and its curves' names in HTML, above height `y` of the figure."""
    layout["annotations"].append(
        {
            "text": f"<b>{title}</b>   {'   '.join(named)}",
            "xref": "paper",
            "yref": "paper",
            "x": 0,
            "y": y,
            "xanchor": "left",
            "yanchor": "bottom",
            "showarrow": False,
            "align": "left",
            "font": {"size": 12.5},
        }
    )
