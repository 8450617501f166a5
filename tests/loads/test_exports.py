"""Recorded loads as other programs export them: read exactly, or refused with the way to say what is meant."""

import gzip
import json
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from elastream.cli.app import app
from elastream.errors import ElastreamError, InputError
from elastream.loads import Pattern, load_from, pattern_from, trace

START = 1_772_323_200  # 1 March 2026, 0:00 UTC


@pytest.fixture
def read(tmp_path: Path):
    def read(text: str, name: str = "load.csv", **options: object) -> Pattern:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return trace(tmp_path / name, **options)  # type: ignore[arg-type]

    return read


def lines(*rows: tuple[object, ...], header: str = "", mark: str = ",") -> str:
    return header + "\n" * bool(header) + "".join(mark.join(map(str, row)) + "\n" for row in rows)


def minutes(*values: object) -> list[tuple[object, ...]]:
    return [(f"2026-03-01T00:{at:02}:00Z", value) for at, value in enumerate(values)]


def totals(load: Pattern) -> list[float]:
    return [piece.total for piece in load.pieces]


# Rates and counts by the names of columns.


@pytest.mark.parametrize(
    ("name", "per_minute"),
    [
        ('"sum(rate(http_requests_total[5m]))"', 6000),
        ('"sum by (job) (rate(orders_total{code=~""5..""}[1m]))"', 6000),
        ('"sum(rate(orders_total[1m])) by (job)"', 6000),
        ('"sum(increase(orders_total[5m]))"', 20),
        ("job:requests:rate5m", 6000),
        ("inputRowsPerSecond", 6000),
        ("inputrowspersecond", 6000),
        ("requests_rate", 6000),
        ("QPS", 6000),
        ("Requests/s", 6000),
        ("orders/s", 6000),
        ("rps", 6000),
        ("records-per-second", 6000),
        ("Rate (1/s)", 6000),
        ("events/min", 100),
        ("requests per 5 min", 20),
        ("RPM", 100),
        ("records/h", 100 / 60),
        ("requests_1m", 100),
        ("requests", 100),
        ("numInputRows", 100),
        ("count(*)", 100),
        ("clicks", 100),
    ],
)
def test_a_columns_name_says_how_many_records_a_minute_has(read, name, per_minute):
    load = read(lines(*minutes(100, 100, 100), header=f"Time,{name}"))
    assert totals(load) == pytest.approx([per_minute] * 3)


@pytest.mark.parametrize(
    "name",
    [
        "http_requests_total",
        "error_rate",
        "hit_rate",
        "avg(rate(orders[5m]))",
        '"histogram_quantile(0.99, rate(x_bucket[5m]))"',
        "irate(orders[1m]) * 60",
        "rate(a[5m]) / rate(b[5m])",
        '"{job=""orders""}"',
        "orders per user",
        "requests (k)",
        "krps",
        "Throughput",
        "max requests",
        "requests p99",
        "requests_s",
        "ops",
        "orders %",
        "CPU",
        "bytes/s",
        "latency_ms",
        "derivative",
        "_col1",
        "A-series",
        "Anfragen pro Sekunde",
        "每秒请求数",
        "rate(container_cpu_usage_seconds_total[5m])",
    ],
)
def test_a_name_with_several_meanings_is_refused_with_ways_to_say_it(read, name):
    plain = name.strip('"').replace('""', '"')
    with pytest.raises(InputError, match="is not said") as refused:
        read(lines(*minutes(100, 100), header=f"Time,{name}"))
    assert f"load.csv:rate={plain}" in str(refused.value)
    assert totals(read(lines(*minutes(100, 100), header=f"Time,{name}"), rate=plain)) == [6000, 6000]
    assert totals(read(lines(*minutes(100, 100), header=f"Time,{name}"), count=plain)) == [100, 100]


def test_a_column_with_a_unit_beside_other_words_holds_no_times(read):
    rows = [(12 + at, START + 60 * at, 6000 + at) for at in range(4)]
    load = read(lines(*rows, header="latency_ms,timestamp,requests"))
    assert (load.seconds, load.period_total) == (240, 24006)


@pytest.mark.parametrize("index", ["", "Unnamed: 0", "index", "id"])
def test_an_index_is_no_load(read, index):
    rows = [(at, START + 60 * at, 100) for at in range(3)]
    assert totals(read(lines(*rows, header=f"{index},timestamp,orders"))) == [100] * 3


def test_of_errors_and_requests_the_requests_are_the_load(read):
    rows = [(START + 60 * at, 1, 100) for at in range(3)]
    assert totals(read(lines(*rows, header="timestamp,errors_count,requests_rate"))) == [6000] * 3


@pytest.mark.parametrize(
    "header",
    [
        "Time,eu,us",
        "Time,requests,records",
        "Time,requests,requests_per_second",
        "Time,inputRowsPerSecond,processedRowsPerSecond",
        "Time,clicks,Throughput",
        "Time,value,value",
    ],
)
def test_two_candidates_are_refused(read, header):
    with pytest.raises(InputError, match=r"which of the columns .* is not said: call it 'count' or 'rate', or write"):
        read(lines((0, 600, 900), (60, 600, 900), header=header))


def test_several_columns_can_be_added(read):
    text = lines((0, 600, 900), (60, 600, 900), header="Time,eu,us")
    assert totals(read(text, count=["eu", "us"])) == [1500, 1500]
    assert totals(read(text, rate="us")) == [54_000, 54_000]


def test_rates_of_several_units_are_not_added(read):
    text = lines((0, 1, 60), (60, 1, 60), header="Time,orders/s,bytes/min")
    with pytest.raises(InputError, match="rates of several units cannot be added"):
        read(text, rate=["orders/s", "bytes/min"])
    assert totals(read(text, rate="bytes/min")) == [60, 60]


def test_a_column_counts_once_and_holds_no_times(read):
    text = lines((0, 1), (60, 2), header="Time,n")
    assert totals(read(text, count=["n", "n"])) == [1, 2]
    with pytest.raises(InputError, match="'Time' holds the times"):
        read(text, count="Time")


@pytest.mark.parametrize("option", [{"count": "eu"}, {"rate": "eu"}, {"time": "eu"}, {"count": ["Time", "eu"]}])
def test_a_column_that_is_not_there_is_named(read, option):
    with pytest.raises(InputError, match=r"line 1: no column is called 'eu'; there is 'Time', 'n'"):
        read(lines((0, 1), (60, 1), header="Time,n"), **option)


@pytest.mark.parametrize(
    ("argument", "records"),
    [
        ("load.csv:rate=sum(rate(a{b=~'c,d'}[5m]))", 12_000),
        ("load.csv:count=sum(rate(a{b=~'c,d'}[5m])),gaps=hold", 200),
        ("load.csv:count=other,count=sum(rate(a{b=~'c,d'}[5m]))", 210),
        ("load.csv:rate=other,interval=1s,time=Time", 10),
    ],
)
def test_the_command_line_says_which_column_and_what_it_holds(tmp_path, monkeypatch, argument, records):
    monkeypatch.chdir(tmp_path)
    rows = [(0, 100, 5), (60, 100, 5)]
    Path("load.csv").write_text(lines(*rows, header="Time,\"sum(rate(a{b=~'c,d'}[5m]))\",other"))
    load = load_from(argument)
    assert load.count(1e9) == (records if "interval" not in argument else 600)
    assert load.seconds == (120 if "interval" not in argument else 2)


@pytest.mark.parametrize("options", ["speed=1", "rate", "gaps=hold,gaps=empty", "gaps=perhaps", "time_zone=MEZ"])
def test_a_wrong_option_of_a_load_is_one_sentence(tmp_path, options):
    (tmp_path / "load.csv").write_text("time,count\n0,1\n60,1\n")
    with pytest.raises(InputError):
        load_from(f"{tmp_path}/load.csv:{options}")


def test_a_document_says_which_column_and_what_it_holds(tmp_path):
    (tmp_path / "load.csv").write_text("Time,eu,us\n0,600,900\n60,,900\n")
    document = {"trace": {"path": "load.csv", "rate": ["eu", "us"], "gaps": "hold"}}
    assert pattern_from(document, tmp_path).count(1e9) == 180_000


def test_simulate_takes_a_column_of_rates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("qps.csv").write_text(lines(*minutes(100, 400), header="Time,answers"))
    Path("shop.yaml").write_text(
        "dataflow: shop\ntarget_latency: 20s\noperators:\n  orders: {source: simulated}\n"
        "  price: {from: orders, cost: 1ms}\n  out: {from: price, sink: simulated}\n"
        "host_types: {one: {cores: 1, price: 0.04/h}}\n"
    )
    runner = CliRunner()
    policy = ("--policy", "static:1", "--json", "out.json")
    result = runner.invoke(app, ["simulate", "shop.yaml", "--load", "qps.csv:rate=answers", *policy])
    assert result.exit_code == 0, result.output
    assert "30,000" in result.output or "30000" in Path("out.json").read_text()


# Numbers and widths.


@pytest.mark.parametrize("text", ["12,5\n13,5\n14,5\n", "0,5\n1,5\n2,5\n", "0,6,000\n1,7,000\n", "1740787200,6,000\n"])
def test_without_names_what_can_be_a_decimal_comma_is_refused(read, text):
    with pytest.raises(InputError, match="line 1: "):
        read(text)


@pytest.mark.parametrize("text", ["0;3\n60;4\n", "0.0,3\n60.0,4\n", "2026-03-01 00:00,3\n2026-03-01 00:01,4\n"])
def test_without_names_what_can_be_one_thing_only_is_read(read, text):
    assert (read(text).seconds, totals(read(text))) == (120, [3, 4])


@pytest.mark.parametrize("row", ["0,6,000", "0,600,ok", "0", "0,600,,1"])
def test_a_line_of_another_width_than_the_first_is_refused(read, row):
    with pytest.raises(InputError, match=r"load\.csv, line 2: \d fields?, and the first line has 2"):
        read(f"minute,requests\n{row}\n1,700\n")


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (['"6,000"', '"1,234,567"', "999"], [6000, 1_234_567, 999]),
        (['"1,234.5"', "0.25", "1e3"], [1234.5, 0.25, 1000]),
        (['"0,5"', '"12,25"', "7"], [0.5, 12.25, 7]),
        (["1 234", "1\u202f234", "1'234"], [1234, 1234, 1234]),
    ],
)
def test_numbers_in_a_file_with_commas(read, cells, numbers):
    assert totals(read(lines(*enumerate(cells), header="minute,requests"))) == numbers


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [(["0,5", "12,25"], [0.5, 12.25]), (["1.234,5", "999"], [1234.5, 999]), (["12,5", "6,000"], [12.5, 6])],
)
def test_numbers_in_a_file_with_semicolons(read, cells, numbers):
    assert totals(read(lines(*enumerate(cells), header="minute;requests", mark=";"))) == numbers


@pytest.mark.parametrize("mark", [";", "\t"])
@pytest.mark.parametrize("cells", [("6,000", "7,000"), ("1.234", "999"), ("0.5", "0,5")])
def test_thousands_that_can_be_decimals_are_refused(read, mark, cells):
    with pytest.raises(InputError, match="column 'requests': "):
        read(lines(*enumerate(cells), header=f"minute{mark}requests", mark=mark))


def test_more_records_than_there_can_be_are_refused_with_their_file(read):
    with pytest.raises(InputError, match=r"load\.csv: a load of 1\.66667e\+98/s .* makes no sense"):
        read("minute,requests\n0,1e100\n1,1\n")


@pytest.mark.parametrize("cell", ["5%", "1.5k", "5 req/s", "true", "0x10", '"12,34,567"', '"1,2,3"', "inf", "$5", "-1"])
def test_what_is_no_number_of_records_is_refused(read, cell):
    with pytest.raises(InputError, match=r"load\.csv, line 3: "):
        read(f"minute,requests\n0,600\n1,{cell}\n")


# Times.


def test_milliseconds_of_jitter_are_none_of_the_loads_business(read):
    late = [0.0, 0.003, 0.001, -0.002, 0.012]
    rows = [(f"{START + 15 * at + late[at % 5]:.3f}", 150) for at in range(40)]
    load = read(lines(*rows, header="timestamp,count"))
    assert {piece.seconds for piece in load.pieces} == {15}
    assert load.period_total == 6000
    with pytest.raises(InputError, match="a gap, 1 interval of 15 s before it"):
        read(lines(*rows[:7], *rows[8:], header="timestamp,count"))


@pytest.mark.parametrize(("late", "accepted"), [(2.4, True), (12.0, False), (30.0, False)])
def test_a_scrape_may_be_late_by_a_few_per_cent(read, late, accepted):
    text = lines(*((START + 60 * at + late * (at % 2), 60) for at in range(20)), header="timestamp,count")
    if accepted:
        assert totals(read(text)) == [60] * 20
    else:
        with pytest.raises(InputError, match="not a multiple of"):
            read(text)


def test_intervals_that_grow_slowly_have_their_own_lengths(read):
    times = [START + 60 * at + 0.02 * at**2 for at in range(40)]
    load = read(lines(*((time, 60) for time in times), header="timestamp,count"))
    assert [piece.seconds for piece in load.pieces[:-1]] == pytest.approx([b - a for a, b in pairwise(times)])


@pytest.mark.parametrize("unit", [1, 1000, 10**6, 10**9])
def test_the_unit_of_an_epoch_is_seen_by_its_size(read, unit):
    load = read(lines(*(((START + 60 * at) * unit, 600) for at in range(4)), header="Time,requests"))
    assert (load.begins, load.seconds) == (START, 240)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("ms", START, START + 60),
        ("seconds", START * 1000, START * 1000 + 60_000),
        ("date", 20260301, 20260302),
        ("timestamp", 20260301, 20260302),
        ("timestamp", 2026030100, 2026030101),
        ("unix", 29_013_120, 29_013_121),
        ("time", 202603010000, 202603010001),
        ("time", 2025, 2026),
        ("timestamp", "1.74079E+09", "1.74080E+09"),
        ("Date", 46082, 46083),
        ("Time", 46082.5, 46082.50069444),
    ],
)
def test_numbers_that_are_no_times_of_their_unit_are_refused(read, name, first, second):
    with pytest.raises(InputError, match=r"load\.csv, line 2: "):
        read(lines((first, 600), (second, 600), header=f"{name},requests"))


AUTUMN = ["00:00", "01:00", "02:00", "02:00", "03:00", "04:00"]


def test_an_hour_that_comes_twice_needs_its_time_zone(read):
    text = lines(*((f"2026-10-25 {hour}", at) for at, hour in enumerate(AUTUMN)), header="timestamp,count")
    with pytest.raises(InputError, match=r"line 5: at the time of the line before it; .*`time_zone`"):
        read(text)
    load = read(text, time_zone="Europe/Vienna")
    assert (load.seconds, totals(load)) == (6 * 3600, [0, 1, 2, 3, 4, 5])
    with pytest.raises(InputError, match="line 5: at the time of the line before it"):
        read(text, time_zone="America/New_York")


def test_an_hour_that_comes_twice_and_is_there_once_is_refused(read):
    text = lines(*((f"2026-10-25 {hour}", 1) for hour in sorted({*AUTUMN})), header="timestamp,count")
    with pytest.raises(InputError, match="cannot be those of Europe/Vienna"):
        read(text, time_zone="Europe/Vienna", gaps="hold")


def test_an_hour_that_the_clock_leaves_out_is_no_gap_in_its_time_zone(read):
    hours = ["00:00", "01:00", "03:00", "04:00"]
    text = lines(*((f"2026-03-29 {hour}", 1) for hour in hours), header="timestamp,count")
    with pytest.raises(InputError, match=r"line 4: a gap, 1 interval of 3600 s before it .*`time_zone`"):
        read(text)
    assert read(text, time_zone="Europe/Vienna").seconds == 4 * 3600


def test_a_day_on_which_the_clock_changes_has_23_hours(read):
    text = lines(*((f"2026-03-{day}", 1) for day in range(27, 32)), header="date,rate")
    load = read(text, time_zone="Europe/Vienna")
    assert [piece.seconds / 3600 for piece in load.pieces] == [24, 24, 23, 24, 24]
    assert load.period_total == (5 * 24 - 1) * 3600


@pytest.mark.parametrize(
    "form", ["%d/%m/%Y %H:%M", "%m/%d/%Y %I:%M %p", "%d.%m.%Y %H:%M:%S", "%d-%m-%Y %H:%M", "%Y/%m/%d %H:%M:%S"]
)
@pytest.mark.parametrize("day", [13, 1])
def test_dates_of_other_countries_are_read_where_their_order_is_sure(read, form, day):
    begin = datetime(2026, 3, day, 22)
    rows = [(begin + timedelta(hours=at)).strftime(form) for at in range(6)]
    load = read(lines(*((text, 600) for text in rows), header="timestamp,count"))
    assert (load.seconds, load.begins) == (6 * 3600, (begin - datetime(1970, 1, 1)).total_seconds())


@pytest.mark.parametrize(
    "dates",
    [
        [f"03/01/2026 00:0{at}" for at in range(6)],
        [f"01.03.2026 00:0{at}" for at in range(6)],
        [f"0{at}/01/2026" for at in range(1, 7)],
        [f"0{at}/03/2026" for at in range(1, 7)],
    ],
)
def test_dates_of_which_day_or_month_may_be_first_are_refused(read, dates):
    with pytest.raises(InputError, match="can be two dates, with the day or the month first"):
        read(lines(*((each, 600) for each in dates), header="timestamp;count", mark=";"))


@pytest.mark.parametrize(
    "time", ["13/03/26 00:00", "2026-03-01 00:00 CET", "noon", "00:00", "2026-13-01", "31/31/2026", "2026-03-01 00.01"]
)
def test_what_is_no_sure_time_is_refused(read, time):
    with pytest.raises(InputError, match="line 2: "):
        read(lines((time, 1), (time, 1), header="time,count"))


def test_a_date_and_a_time_of_day_may_have_columns_of_their_own(read):
    load = read("date,time,count\n2026-03-01,23:59,1\n2026-03-02,00:00,2\n")
    assert (load.begins, load.seconds) == (START + 86_340, 120)


def test_numbers_as_large_as_an_epoch_are_times_under_a_times_name(read):
    rows = [(START + at, 5) for at in (0, 60)]
    assert read(lines(*rows, header="kafka_timestamp,requests")).begins == START
    with pytest.raises(InputError, match=r"the first column has numbers .* and its name is none of a time"):
        read(lines(*rows, header="order_no,requests"))


def test_times_with_and_without_an_offset_are_refused(read):
    with pytest.raises(InputError, match="some times have an offset from UTC, and others have none"):
        read("time,count\n2026-03-01T00:00Z,1\n2026-03-01T00:01,1\n")


def test_a_month_is_no_late_other_month(read):
    with pytest.raises(InputError, match="not a multiple of"):
        read(lines(*((f"2026-0{month}-01", 1) for month in (4, 5, 6, 7)), header="date,count"))


# Gaps and series.


@pytest.mark.parametrize("missing", ["null", "", "NaN", "nan", "N/A", "-", "None"])
def test_a_missing_value_is_a_gap(read, missing):
    text = lines(*minutes(600, 500, missing, 700), header="timestamp,value")
    with pytest.raises(InputError, match=r"line 4: a gap, no value: write load\.csv:gaps=hold"):
        read(text)
    assert totals(read(text, gaps="hold")) == [600, 500, 500, 700]
    assert totals(read(text, gaps="empty")) == [600, 500, 0, 700]


def test_nothing_can_be_held_before_the_first_value(read):
    with pytest.raises(InputError, match="no line before it to hold"):
        read("minute,requests\n0,\n1,5\n", gaps="hold")


def test_an_empty_line_in_a_single_column_is_a_gap(read):
    with pytest.raises(InputError, match="line 3: a gap"):
        read("requests\n1\n\n3\n", interval="60s")


LONG = "Series;Time;Value\neu;2026-03-01T00:00Z;1\neu;2026-03-01T00:01Z;1\nus;2026-03-01T00:00Z;2\nus;2026-03-01T00:01Z;4\n"


def test_several_series_are_chosen_by_name_or_added(read):
    with pytest.raises(InputError, match=r"holds 2 series \('eu', 'us'\): write load\.csv:series=eu .*load\.csv:series=\*"):
        read(LONG)
    assert totals(read(LONG, series="us")) == [2, 4]
    assert totals(read(LONG, series="*")) == totals(read(LONG, series=["eu", "us"])) == [3, 5]
    with pytest.raises(InputError, match="no series has the name 'asia'"):
        read(LONG, series="asia")


def test_series_that_are_scraped_in_turn_are_no_denser_series(read):
    text = "time,pod,count\n0,a,1\n30,b,2\n60,a,1\n90,b,2\n120,a,1\n150,b,2\n"
    with pytest.raises(InputError, match="holds 2 series"):
        read(text)
    with pytest.raises(InputError, match="at different times, so they cannot be added"):
        read(text, series="*")
    assert (read(text, series="b").seconds, totals(read(text, series="b"))) == (180, [2, 2, 2])


def test_a_time_that_one_of_several_series_lacks_is_a_gap(read):
    text = "time,host,count\n0,a,1\n0,b,2\n60,a,1\n120,a,1\n120,b,2\n"
    with pytest.raises(InputError, match="a gap"):
        read(text, series="*")
    assert totals(read(text, series="*", gaps="empty")) == [3, 1, 3]
    assert totals(read(text, series="*", gaps="hold")) == [3, 3, 3]


@pytest.mark.parametrize(
    ("series", "per_minute"), [("sum(rate(orders_total[5m]))", 6000), ("orders/s", 6000), ("GET /orders", 100), ("eu", 100)]
)
def test_the_name_of_a_series_says_what_its_values_are(read, series, per_minute):
    text = lines(*((f'"{series}"', *row) for row in minutes(100, 100)), header="Series,Time,Value")
    assert totals(read(text)) == [per_minute] * 2


def test_series_of_counts_and_of_rates_are_not_added(read):
    text = "Series,Time,Value\norders/s,0,1\norders,0,2\norders/s,60,1\norders,60,2\n"
    with pytest.raises(InputError, match="is not said"):
        read(text, series="*")
    assert totals(read(text, series="orders/s")) == [60, 60]
    assert totals(read(text, series="orders")) == [2, 2]


def test_notes_beside_the_numbers_are_no_series(read):
    assert totals(read("minute,requests,note\n0,1,ok\n1,2,late\n2,3,ok\n3,4,ok\n")) == [1, 2, 3, 4]


# Kinds of files.


@pytest.mark.parametrize("name", ["UPPER.CSV", "tabs.tsv", "TABS.TSV"])
def test_names_in_capitals_and_tabs_are_read(tmp_path, name):
    mark = "\t" if "TSV" in name.upper() else ","
    (tmp_path / name).write_text(lines((0, 600), (60, 600), header=f"time{mark}count", mark=mark))
    assert totals(load_from(str(tmp_path / name))) == totals(load_from(tmp_path / name)) == [600, 600]


def test_the_line_that_names_a_separator_is_skipped(read):
    assert totals(read("sep=;\nminute;requests\n0;600\n1;700\n")) == [600, 700]


def test_an_export_of_cloudwatch_has_names_above_its_header(read):
    head = "Full label,orders\nLabel,orders\nRegion,eu-central-1\nTimestamp,Value\n"
    rows = [(f"2026/03/01 00:0{at}:00", "600.0") for at in range(6)]
    load = read(head + lines(*rows))
    assert (load.begins, load.seconds, load.period_total) == (START, 360, 3600)
    assert totals(read(head.replace("orders", "orders/s") + lines(*rows))) == [36_000] * 6
    with pytest.raises(InputError, match="is not said"):
        read(head.replace("Label,orders", "Label,Average of orders") + lines(*rows))


def test_parquet_is_read_as_pandas_writes_it(tmp_path):
    times = pd.date_range("2026-03-01", periods=3, freq="min", tz="UTC", name="time")
    frame = pd.DataFrame({"requests": [600, None, 700]}, index=times)
    frame.to_parquet(tmp_path / "index.parquet")
    frame.reset_index().to_parquet(tmp_path / "column.PARQUET")
    for name in ("index.parquet", "column.PARQUET"):
        load = load_from(f"{tmp_path / name}:gaps=hold")
        assert (load.begins, totals(load)) == (START, [600, 600, 700])
    frame.convert_dtypes().to_parquet(tmp_path / "nullable.parquet")
    assert totals(load_from(f"{tmp_path}/nullable.parquet:gaps=empty")) == [600, 0, 700]
    (tmp_path / "false.parquet").write_text("PAR1")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        load_from(tmp_path / "false.parquet")


def prometheus(*metrics: dict[str, str], values: tuple[str, ...] = ("10.5", "10.5", "NaN", "10.5")) -> str:
    points = [[START + 60 * at, value] for at, value in enumerate(values)]
    result = [{"metric": metric, "values": points} for metric in metrics]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def test_a_range_result_of_prometheus_is_read_once_its_unit_is_said(tmp_path):
    path = tmp_path / "range.json"
    path.write_text(prometheus({"job": "orders"}))
    with pytest.raises(InputError, match=r"'value' holds counts, .* or range\.json:rate=value"):
        load_from(path)
    with pytest.raises(InputError, match="a gap, no value"):
        load_from(f"{path}:rate=value")
    assert load_from(f"{path}:rate=value,gaps=hold").period_total == 4 * 630
    assert load_from(f"{path}:count=value,gaps=empty").period_total == 31.5


def test_series_of_prometheus_are_chosen_by_a_label(tmp_path):
    path = tmp_path / "range.json"
    path.write_text(prometheus({"job": "a", "zone": "x"}, {"job": "b", "zone": "x"}, values=("1", "1")))
    with pytest.raises(InputError, match="holds 2 series"):
        load_from(f"{path}:rate=value")
    assert load_from(f"{path}:rate=value,series=a").period_total == 120
    assert load_from(f"{path}:rate=value,series=*").period_total == 240


@pytest.mark.parametrize(
    "text",
    [
        '{"status": "error", "error": "query timed out", "data": {}}',
        '{"status": "success", "data": {"resultType": "vector", "result": []}}',
        '{"status": "success", "data": {"resultType": "matrix", "result": []}}',
        '{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": [["x", "1"]]}]}}',
        '{"status": "success", "data": {"resultType": "matrix", "result": [{}]}}',
    ],
)
def test_an_answer_of_prometheus_without_a_range_is_refused(tmp_path, text):
    (tmp_path / "range.json").write_text(text)
    with pytest.raises(InputError, match=r"range\.json"):
        load_from(tmp_path / "range.json")


def test_a_file_of_another_kind_is_named(tmp_path):
    (tmp_path / "load.xlsx").write_bytes(b"PK")
    with pytest.raises(ElastreamError, match=r"load\.xlsx is a file of another kind"):
        load_from(tmp_path / "load.xlsx")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
@pytest.mark.parametrize("mark", ["\t", ","])
def test_text_of_spreadsheets_is_read_by_its_byte_order_mark(tmp_path, encoding, mark):
    text = lines((0, 600), (60, 700), header=f"time{mark}Zahl", mark=mark)
    (tmp_path / "load.csv").write_text(text, encoding=encoding)
    with gzip.open(tmp_path / "load.csv.gz", "wt", encoding=encoding) as packed:
        packed.write(text)
    assert totals(load_from(tmp_path / "load.csv")) == totals(load_from(tmp_path / "load.csv.gz")) == [600, 700]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-32", "latin-1"])
def test_text_in_an_encoding_that_no_mark_names_is_refused(tmp_path, encoding):
    (tmp_path / "load.csv").write_text(lines((0, 600), (60, 700), header="time,größe"), encoding=encoding)
    with pytest.raises(InputError, match=r"load\.csv"):
        load_from(tmp_path / "load.csv")


@pytest.mark.parametrize("gaps", ["hold", "empty"])
@pytest.mark.parametrize("times", [(0, START, START + 1), (START, START + 1, START * 2), (START, START + 1, START + 2e7)])
def test_a_clock_that_jumps_by_years_is_no_gap(read, gaps, times):
    text = lines(*((f"{time:.0f}", 5) for time in times), header="time,requests")
    with pytest.raises(InputError, match=r"intervals of 1 s: a time is wrong"):
        read(text, gaps=gaps)


def test_the_total_among_series_is_not_added_to_them(read):
    text = "time,region,requests\n0,eu,1\n0,us,2\n0,Total,3\n60,eu,1\n60,us,2\n60,Total,3\n"
    with pytest.raises(InputError, match="'Total' can be the sum of the others"):
        read(text, series="*")
    assert totals(read(text, series="Total")) == totals(read(text, series=["eu", "us"])) == [3, 3]


def test_a_line_with_too_few_fields_is_no_matter_of_commas(read):
    with pytest.raises(InputError, match=r"line 3: 1 field, and the first line has 2$"):
        read("time,requests\n0,1\n60\n")


@pytest.mark.parametrize("mark", [";", "\t"])
def test_without_names_a_time_behind_a_count_is_refused(read, mark):
    with pytest.raises(InputError, match=rf"line 1: {START} looks like a time behind a count"):
        read(lines(*((5 + at, START + 60 * at) for at in range(3)), mark=mark))
