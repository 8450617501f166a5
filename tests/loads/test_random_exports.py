"""A property: random loads, written as other programs write them, are read exactly or refused, and never read wrong."""

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from elastream.errors import InputError
from elastream.loads import Pattern, load_from
from support.property_examples import examples

INTERVALS_S = (1, 15, 60, 300, 3600, 86400)
# Name of a column -> seconds in which it counts; None: a count in the interval of its line.
NAMES: dict[str, float | None] = {
    "requests": None, "count": None, "Orders": None, "value": None, "numInputRows": None, "n": None,
    "rate": 1.0, "QPS": 1.0, "requests/s": 1.0, "inputRowsPerSecond": 1.0, "sum(rate(orders_total[5m]))": 1.0,
    "events per minute": 60.0, "records/h": 3600.0, "sum(increase(a_total[5m]))": 300.0,
}  # fmt: skip
# Names that leave it open.
OPEN = ("requests_total", "error_rate", "Throughput", "avg", "orders (k)", "latency_ms", "load")


@dataclass(frozen=True)
class Content:
    """Known content of a file: a value for each interval, None for a missing one."""

    start: datetime
    interval: int
    name: str
    values: tuple[float | None, ...]

    @property
    def times(self) -> list[datetime]:
        return [self.start + timedelta(seconds=self.interval * at) for at in range(len(self.values))]

    def totals(self, gaps: str) -> list[float]:
        """Return the records of each interval; raises IndexError where nothing can be held."""
        held: list[float] = []
        for value in self.values:
            held.append(value if value is not None else 0.0 if gaps == "empty" else held[-1])
        per = NAMES.get(self.name)
        return held if per is None else [value * self.interval / per for value in held]


@st.composite
def contents(draw: st.DrawFn) -> Content:
    whole = st.integers(0, 2_000_000).map(float)
    values = st.one_of(
        whole, st.integers(0, 10**9).map(lambda each: each / 1000), st.sampled_from([0.0, 1000.0, 1.234, 6.5])
    )
    some = draw(st.sampled_from([values, whole, st.one_of(values, st.none())]))
    return Content(
        start=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=draw(st.integers(0, 1_000_000))),
        interval=draw(st.sampled_from(INTERVALS_S)),
        name=draw(st.sampled_from([*NAMES, *NAMES, *OPEN])),
        values=tuple(draw(st.lists(some, min_size=2, max_size=40))),
    )


def by_pandas(content: Content, draw: st.DrawFn, path: Path) -> Path:
    """Write as `DataFrame.to_csv` or `to_parquet` does."""
    times = pd.DatetimeIndex(content.times)
    times = times.tz_localize(None) if draw(st.booleans()) else times
    time: pd.Index = times if draw(st.booleans()) else pd.Index([int(each.timestamp()) for each in content.times])
    frame = pd.DataFrame({draw(st.sampled_from(["time", "timestamp", "Date"])): time, content.name: content.values})
    if draw(st.booleans()):
        frame = frame.iloc[:, ::-1]
    if draw(st.integers(0, 4)) == 0:
        frame.to_parquet(path.with_suffix(".parquet"))
        return path.with_suffix(".parquet")
    mark = draw(st.sampled_from([",", ";", "\t"]))
    decimal = draw(st.sampled_from(".," if mark != "," else "."))
    frame.to_csv(
        path, sep=mark, decimal=decimal, index=draw(st.booleans()), na_rep=draw(st.sampled_from(["", "NaN", "null"]))
    )
    return path


def by_polars(content: Content, draw: st.DrawFn, path: Path) -> Path:
    """Write as `DataFrame.write_csv` does: microseconds, floats, empty nulls, a header or none."""
    zone = draw(st.sampled_from(["", "+0000", "Z"]))
    rows = [
        [f"{time:%Y-%m-%dT%H:%M:%S.%f}{zone}", "" if value is None else repr(value)]
        for time, value in zip(content.times, content.values, strict=True)
    ]
    # Without a header a number is a count in the interval of its line.
    header = [] if draw(st.booleans()) and NAMES.get(content.name, 0.0) is None else [["ts", content.name]]
    return _written(path, [*header, *rows], draw(st.sampled_from([",", ";", "|"])))


def by_excel(content: Content, draw: st.DrawFn, path: Path) -> Path:
    """Write as spreadsheets do: local dates, decimal commas, thousands in groups."""
    form = draw(st.sampled_from(["%d.%m.%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p", "%d/%m/%Y %H:%M:%S", "%Y-%m-%d %H:%M:%S"]))
    german, grouped = draw(st.booleans()), draw(st.booleans())
    digits = draw(st.integers(0, 3))
    if any(value is not None and round(value, digits) != value for value in content.values):
        digits = 3
    swap = str.maketrans(",.", ".,") if german else {}

    def cell(value: float | None) -> str:
        return "" if value is None else (f"{value:,.{digits}f}" if grouped else f"{value:.{digits}f}").translate(swap)

    rows = [[time.strftime(form), cell(value)] for time, value in zip(content.times, content.values, strict=True)]
    written = _written(path, [["Date", content.name], *rows], ";" if german else ",")
    if draw(st.booleans()):
        written.write_text(("sep=;\n" if german else "sep=,\n") + written.read_text(encoding="utf-8"), encoding="utf-8-sig")
    return written


def by_prometheus(content: Content, draw: st.DrawFn, path: Path) -> Path:
    """Write as Prometheus' API and exporters of it do: seconds since 1970 with jitter, texts, NaN."""
    late = draw(st.lists(st.integers(-12, 12), min_size=len(content.values), max_size=len(content.values)))
    points = [
        (round(time.timestamp() + milliseconds / 1000, 3), "NaN" if value is None else repr(value))
        for time, milliseconds, value in zip(content.times, late, content.values, strict=True)
    ]
    if draw(st.booleans()):
        result = [{"metric": {"__name__": content.name, "job": "a"}, "values": points}]
        path = path.with_suffix(".json")
        path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))
        return path
    return _written(path, [["timestamp", "job", content.name], *([time, "a", value] for time, value in points)], ",")


def _written(path: Path, rows: Sequence[Sequence[object]], mark: str, quoting: int = csv.QUOTE_MINIMAL) -> Path:
    text = io.StringIO()
    csv.writer(text, delimiter=mark, quoting=quoting, lineterminator="\n").writerows(rows)  # type: ignore[arg-type]
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


JITTER_S = 0.012


def jitter_of(writer: object) -> float:
    return 2 * JITTER_S if writer is by_prometheus else 0.0


WRITERS: tuple[Callable[[Content, st.DrawFn, Path], Path], ...] = (by_pandas, by_polars, by_excel, by_prometheus)


def check(load: Pattern, content: Content, gaps: str, jitter: float) -> None:
    assert content.name in NAMES, "a name that leaves its meaning open was read"
    error = jitter / content.interval  # of the recorded interval, by which rates are multiplied
    exact = NAMES[content.name] is None
    assert [piece.total for piece in load.pieces] == pytest.approx(
        content.totals(gaps), rel=1e-9 if exact else error + 1e-6
    )
    assert load.seconds == pytest.approx(content.interval * len(content.values), rel=error + 1e-6)


@settings(max_examples=examples(1000), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=contents(), writer=st.sampled_from(WRITERS), gaps=st.sampled_from(["hold", "empty"]), data=st.data())
def test_a_random_load_is_read_exactly_or_refused(tmp_path, content, writer, gaps, data):
    for file in tmp_path.iterdir():
        file.unlink()
    path = writer(content, data.draw, tmp_path / "load.csv")
    try:
        load = load_from(f"{path}:gaps={gaps}")
    except InputError:
        event(f"{writer.__name__} refused")
        return
    event(f"{writer.__name__} read")
    check(load, content, gaps, jitter_of(writer))


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=contents(), writer=st.sampled_from(WRITERS), data=st.data())
def test_a_whole_number_under_a_clear_name_is_read(tmp_path, content, writer, data):
    values = tuple(1000.0 if value is None else float(math.floor(value)) for value in content.values)
    content = Content(content.start, max(60, content.interval), "requests", values)
    for file in tmp_path.iterdir():
        file.unlink()
    path = writer(content, data.draw, tmp_path / "load.csv")
    try:
        load = load_from(path)
    except InputError as error:
        sentence = str(error)
    else:
        check(load, content, "hold", jitter_of(writer))
        return
    # Two dates, thousands that can be decimals, a result of a query whose unit is not said.
    assert any(each in sentence for each in ("can be two dates", "can have thousands or decimals", "is not said"))
