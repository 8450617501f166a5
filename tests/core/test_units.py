import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream import units
from elastream.errors import ElastreamError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50ms", 0.05), ("2s", 2), ("10 min", 600), ("1h", 3600), ("1.5 s", 1.5), (3, 3), ("250us", 25e-5)],
)
def test_durations_are_read_as_people_write_them(text, seconds):
    assert units.duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("550/s", 550), ("12,000 / min", 200), (7, 7), ("1_000/s", 1000), ("40k/s", 40_000), ("1.5M / s", 1.5e6)],
)
def test_rates_are_read_as_people_write_them(text, rate):
    assert units.rate(text) == pytest.approx(rate)


@pytest.mark.parametrize(("text", "megabytes"), [("512 MB", 512), ("7GB", 7000), ("1GiB", 1073.741824), (64, 64)])
def test_memory_is_read_as_people_write_it(text, megabytes):
    assert units.memory(text) == pytest.approx(megabytes)


@pytest.mark.parametrize(("text", "amount"), [("100mbit", 12.5e6), ("12 MB/s", 12e6), (5, 5)])
def test_bandwidth_is_read_as_people_write_it(text, amount):
    assert units.bytes_per_second(text) == pytest.approx(amount)


@pytest.mark.parametrize(
    ("text", "amount", "seconds"),
    [("0.04/h", 0.04, 3600.0), ("2 / min", 2.0, 60.0), (0.04, 0.04, None), ("0.04", 0.04, None)],
)
def test_prices_are_read_as_clouds_list_them(text, amount, seconds):
    assert units.price(text) == (amount, seconds)


@pytest.mark.parametrize("reader", [units.duration, units.rate, units.memory, units.bytes_per_second, units.price])
@pytest.mark.parametrize("text", ["", "fast", "5 parsecs", "-3", "..", "1e"])
def test_what_is_no_quantity_is_named_in_the_refusal(reader, text):
    with pytest.raises(ElastreamError) as refused:
        reader(text)
    assert repr(text) in str(refused.value)


@given(st.text(max_size=12))
def test_any_text_is_either_a_quantity_or_refused(text):
    for reader in (units.duration, units.rate, units.memory, units.bytes_per_second):
        with contextlib.suppress(ElastreamError):
            assert reader(text) >= 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.048, "48 ms"), (1.9, "1.9 s"), (150, "2.5 min"), (10800, "3.0 h"), (0.0021, "2.1 ms")]
)
def test_durations_are_written_in_the_unit_a_person_would_choose(seconds, text):
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(("rate", "text"), [(550, "550/s"), (12_300, "12.3k/s"), (3.3e6, "3.30M/s")])
def test_rates_are_written_short(rate, text):
    assert units.format_rate(rate) == text
