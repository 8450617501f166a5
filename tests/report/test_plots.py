"""Plots: a long curve has fewer points, paths are the curves, axes are round, and colours can be read."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elastream.report
from elastream.report.plots import COLOURS, HEIGHT, POINTS, WIDTH, Curve, Plot, plot_html, thinned

STYLE = (Path(elastream.report.__file__).parent / "templates" / "page.css").read_text()
VALUES = st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=1, max_size=300)


@given(VALUES, st.integers(4, 100))
def test_a_curve_keeps_its_ends_its_highest_and_its_lowest_value_in_order(values, most):
    times, values = np.arange(len(values), dtype=float), np.array(values)
    at, kept = thinned(times, values, most)
    assert len(at) <= max(most, 4)
    assert (np.diff(at) > 0).all()
    assert (at[0], at[-1]) == (times[0], times[-1])
    np.testing.assert_array_equal(kept, values[at.astype(int)])
    if not np.isnan(values).all():
        assert (np.nanmax(kept), np.nanmin(kept)) == (np.nanmax(values), np.nanmin(values))


def test_a_short_curve_is_left_as_it_is():
    times, values = np.arange(5.0), np.array([1.0, np.nan, 3.0, 2.0, 1.0])
    assert all(a is b for a, b in zip(thinned(times, values, 5), (times, values), strict=True))


def test_a_stretch_of_which_nothing_is_known_stays_unknown():
    values = np.where(np.arange(1000) < 500, np.nan, 1.0)
    at, kept = thinned(np.arange(1000.0), values, 20)
    assert np.isnan(kept[at < 400]).all()
    assert (kept[at > 600] == 1.0).all()


def plot(*curves, **options):
    return plot_html(Plot("c", options.pop("x", "seconds"), "y", curves, **options))


def paths(html):
    return re.findall(r'<path class="line k\d[^"]*" d="([^"]*)"', html)


def labels(html, axis):
    (part,) = re.findall(rf'<div class="{axis}">(.*?)</div>', html)
    return re.findall(r">([^<]*)</span>", part)


def test_a_path_goes_through_the_points_of_its_curve():
    (path,) = paths(plot(Curve("a", [0, 1, 2, 4], [0, 4, 2, 1])))
    assert path == f"M0 {HEIGHT}h0l{WIDTH // 4}-{HEIGHT} {WIDTH // 4} {HEIGHT // 2} {WIDTH // 2} {HEIGHT // 4}"
    (path,) = paths(plot(Curve("a", [0, 1, 4], [0, 4, 4], steps=True)))
    assert path == f"M0 {HEIGHT}h0h{WIDTH // 4}v-{HEIGHT}h{3 * WIDTH // 4}"


@pytest.mark.parametrize("gap", [float("nan"), float("inf")])
def test_an_unknown_value_is_a_gap_and_no_figure(gap):
    html = plot(Curve("a", [0, 1, 2], [1, gap, 1]))
    assert paths(html)[0].count("M") == 2
    assert "nan" not in html
    assert "a inf" not in html


def test_a_long_curve_is_short_text():
    times = np.arange(200_000.0)
    html = plot(Curve("a", times, np.sin(times)))
    assert len(paths(html)[0]) < 10 * POINTS


def test_times_are_those_of_a_clock():
    assert labels(plot(Curve("a", [0, 90], [0, 1])), "x") == [f"{s // 60}:{s % 60:02d}" for s in range(0, 91, 15)]
    assert labels(plot(Curve("a", [0, 240], [0, 1]), x="minutes"), "x") == [
        f"{m // 60}:{m % 60:02d}" for m in range(0, 241, 30)
    ]
    assert labels(plot(Curve("a", [0, 7200], [0, 1]), begins=86400.0 * 30 - 3600), "x")[::2] == [
        "30 Jan 23:00", "23:30", "31 Jan 00:00", "00:30", "01:00",
    ]  # fmt: skip
    assert labels(plot(Curve("a", [0, 4], [0, 1]), x="hosts"), "x") == [f"{n / 2:g}" for n in range(9)]


def test_two_axes_have_figures_of_their_own():
    html = plot(Curve("a", [0, 1], [0, 4]), Curve("b", [0, 1], [0, 40_000], axis=2), y2="z")
    assert labels(html, "y y1") == ["0", "1", "2", "3", "4"]
    assert labels(html, "y y2") == ["0", "10k", "20k", "30k", "40k"]


def test_texts_of_a_plot_cannot_become_markup():
    html = plot(Curve("<b>", [0, 1], [0, 1]), level=("<i x>", 1.0), note="<u>")
    assert not re.search("<b>[^c]|<i x>|<u>", html)


def luminance(colour):
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ground", ["paper", "card"])
@pytest.mark.parametrize("theme", [0, 1])
def test_text_and_curves_have_the_contrast_of_wcag_aa(theme, ground):
    colours = dict(re.findall(r"--(\w+): (#\w{6})", re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[theme]))
    names = ("ink", "soft", "faint", "good", "bad", "wait", *(f"k{number}" for number in range(COLOURS)))
    assert {
        name: round(contrast(colours[name], colours[ground]), 2)
        for name in names
        if contrast(colours[name], colours[ground]) < 4.5
    } == {}
