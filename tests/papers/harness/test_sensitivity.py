"""Curves of bars over assumptions."""

from elastream.evaluation.findings import Check
from elastream.evaluation.page import Table
from elastream_papers.harness.sensitivity import sensitivity, turned


def checks(*values: float) -> tuple[Check, ...]:
    return tuple(Check.at_least(f"bar {n}", value, 1.0, "a source") for n, value in enumerate(values))


VARIED = {("work", 0.5): checks(0.5, 2.0), ("work", 2.0): checks(3.0, 2.0), ("share", 2.0): checks(1.5, 1.5)}


def test_an_assumption_has_a_curve_for_each_bar_that_it_turns():
    assert turned(checks(2.0, 2.0), VARIED) == {
        "work": {"bar 0": {"0.5": ("0.5", "missed"), "1": ("2.0", "held"), "2": ("3.0", "held")}},
        "share": {},
    }


def test_curves_are_plotted_and_listed_with_what_turns_nothing():
    plot, table, rest = sensitivity(checks(2.0, 2.0), VARIED)
    assert [(curve.name, list(curve.y)) for curve in plot.lines] == [("work", [1.0, 2.0, 2.0])]
    assert isinstance(table, Table)
    assert table.rows == (("work", "bar 0", "missed: 0.5", "held: 2.0", "held: 3.0"),)
    assert "share" in rest.text
    assert sensitivity(checks(2.0), {}) == []
