import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream import units
from elastream.errors import ElastreamError

READ = {
    units.duration: {
        "50ms": 0.05, "2s": 2, "10 min": 600, "1h": 3600, "1.5 s": 1.5, 3: 3, "250us": 25e-5, "1h30m": 5400, "1m30s": 90,
        "1 h 30 min": 5400, "1d2h3m4s5ms": 93784.005,
    },
    units.rate: {"550/s": 550, "12,000 / min": 200, 7: 7, "1_000/s": 1000, "40k/s": 40_000, "1.5M / s": 1.5e6},
    units.memory: {
        "512 MB": 512, "7GB": 7000, "1GiB": 1073.741824, 64: 64, "2Gi": 2147.483648, "512Mi": 536.870912, "1,024 MB": 1024,
    },
    units.bytes_per_second: {"100mbit": 12.5e6, "12 MB/s": 12e6, 5: 5},
    units.cores: {"500m": 0.5, "1500m": 1.5, "2": 2, 0.25: 0.25},
}  # fmt: skip


@pytest.mark.parametrize(
    ("reader", "text", "value"), [(reader, *each) for reader, texts in READ.items() for each in texts.items()]
)
def test_quantities_are_read_as_people_write_them(reader, text, value):
    assert reader(text) == pytest.approx(value)


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


@pytest.mark.parametrize("reader", [units.duration, units.rate, units.memory, units.cores, units.price])
@pytest.mark.parametrize("text", ["0,04", "1,5", "0,500", "1,00", "1,000,5", "12,34,567", "1.000,5", "1 000", ",5"])
def test_a_comma_that_groups_no_thousands_is_refused(reader, text):
    for unit in ("", {"duration": "s", "rate": "/s", "memory": " GB", "cores": "m", "price": "/h"}[reader.__name__]):
        with pytest.raises(ElastreamError, match="is not a"):
            reader(text + unit)


@pytest.mark.parametrize("text", ["30m1h", "1h30", "1h1h", "1h-30m", "-1h30m", "1h,30m", "1:30", "1,5h30m"])
def test_parts_of_a_duration_have_units_that_decrease(text):
    with pytest.raises(ElastreamError, match="is not a duration"):
        units.duration(text)


@pytest.mark.parametrize("text", ["500m/s", "500m", "5s", "1.5G/s"])
def test_a_rate_that_has_several_meanings_is_refused(text):
    with pytest.raises(ElastreamError, match="is not a rate"):
        units.rate(text)


@pytest.mark.parametrize(
    ("value", "truth"),
    [("no", False), ("Off", False), ("FALSE", False), (False, False), (0, False), ("yes", True), ("on", True), (1, True)],
)
def test_truths_are_read_as_people_write_them(value, truth):
    assert units.truth(value) is truth


@pytest.mark.parametrize("value", ["", "maybe", 2, 0.5, None, []])
def test_what_is_neither_true_nor_false_is_refused(value):
    with pytest.raises(ElastreamError, match="is neither true nor false"):
        units.truth(value)


@given(st.text(max_size=12))
def test_any_text_is_either_a_quantity_or_refused(text):
    for reader in (units.duration, units.rate, units.memory, units.bytes_per_second, units.cores):
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
