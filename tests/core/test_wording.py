"""Quantities as people read them: the unit is that of the table of metrics, and unknown is a dash."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.wording import amount, clock, gist, money, percent, quantities, quantity


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("latency_p99", 0.0479, "48 ms"),
        ("batch_duration", 1.9, "1.9 s"),
        ("service_time", 0.0021, "2.1 ms"),
        ("arrival_rate", 12_345.0, "12.3k/s"),
        ("throughput", 0.0, "0/s"),
        ("utilisation", 0.746, "75%"),
        ("compliance", 0.9999, "99.99%"),
        ("compliance", 1.0, "100%"),
        ("backlog", 39_810.0, "39,810"),
        ("hosts", 3.0, "3"),
        ("cost", 0.02, "0.0200"),
        ("cost", 12.5, "12.50"),
        ("hosts needed", 2.345, "2.35"),
        ("memory", 512.0, "512 MB"),
        ("traffic", 12_500_000.0, "12.5 MB/s"),
        ("bandwidth", 80.0, "80 B/s"),
        ("longest batch", 0.25, "250 ms"),
        ("owed", 12.5, "12.50"),
    ],
)
def test_a_quantity_is_written_in_the_unit_that_its_table_says(name: str, value: float, text: str) -> None:
    assert quantity(name, value) == text


@given(st.floats(0, 1, exclude_max=True))
def test_less_than_all_is_never_written_as_all_of_it(fraction: float) -> None:
    assert not percent(fraction).startswith("100")


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (83, "1:23"), (7267, "2:01:07")])
def test_time_of_a_run_reads_as_on_a_stopwatch(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_infinity_is_written_as_such() -> None:
    assert (amount(math.inf), amount(-math.inf)) == ("∞", "-∞")


def test_small_money_is_not_rounded_away() -> None:
    assert (money(0.0), money(0.0004), money(1234.5)) == ("0.00", "0.0004", "1,234.50")


def test_several_quantities_stand_on_one_line() -> None:
    seen = {"arrival_rate": 250.0, "hosts": 3.0, "latency_p99": math.nan}
    assert quantities(seen) == "arrival rate 250/s, hosts 3, latency p99 –"


def test_the_gist_of_a_sentence_ignores_figures_but_not_host_names() -> None:
    assert gist("h1 waits 10s, at 22.3k/s of 1,000 and 75%") == gist("h1 waits 500s, at 980/s of 3 and 9%")
    assert gist("h1 waits") != gist("h2 waits")
