"""Recorded loads: what is read exactly, and what is refused by file and line."""

import gzip
from pathlib import Path

import pytest

from elastream.errors import InputError
from elastream.loads import trace


def written(folder: Path, text: str, name: str = "load.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_counts_with_times_are_played_at_their_interval(tmp_path: Path) -> None:
    load = trace(written(tmp_path, "time,count\n2024-01-01 00:00:00,3\n2024-01-01 00:01:00,7\n2024-01-01 00:02:00,0\n"))
    assert load.seconds == 180
    assert [load.count(t) for t in (60, 120, 180)] == [3, 10, 10]


def test_counts_without_times_need_an_interval(tmp_path: Path) -> None:
    path = written(tmp_path, "3\n7\n")
    assert trace(path, "10s").count(20) == 10
    with pytest.raises(InputError, match="set `interval`"):
        trace(path)


def test_an_interval_given_replaces_the_recorded_one(tmp_path: Path) -> None:
    load = trace(written(tmp_path, "s,n\n0,30\n60,60\n"), "1s")
    assert (load.seconds, load.rate(0.5), load.count(2)) == (2, 30, 90)
    assert trace(written(tmp_path, "s,n\n0,3\n"), "60s").seconds == 60


def test_gzipped_traces_are_read(tmp_path: Path) -> None:
    path = tmp_path / "load.csv.gz"
    path.write_bytes(gzip.compress(b"s,n\n0,3\n1,7\n"))
    assert trace(path).count(2) == 10


@pytest.mark.parametrize(
    ("text", "seconds", "records"),
    [
        ("minute,requests\n0,30\n1,60\n", 120, 90),
        ("t_ms,count\n1700000000000,3\n1700000005000,4\n", 10, 7),
        ("host,timestamp,requests,errors\na,2024-01-01 00:00,3,9\na,2024-01-01 00:01,4,9\n", 120, 7),
        ("seconds;count\n0;3\n10;4\n", 20, 7),
        ("\ufefftime,rate\n0,3\n10,4\n", 20, 70),
        ("when,clicks\n2024-01-01,3\n2024-01-02,4\n", 2 * 86400, 7),
    ],
)
def test_a_header_says_which_column_is_which(tmp_path: Path, text: str, seconds: float, records: int) -> None:
    load = trace(written(tmp_path, text))
    assert (load.seconds, load.count(seconds)) == (seconds, records)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no count"),
        ("time,count\n", "holds no count"),
        ("s,n\n0,3\n60,-1\n", "line 3: a count of -1 records"),
        ("s,n\n0,3\n60,nan\n", "line 3: a gap, no value"),
        ("s,n\n0,3\n60,many\n", "line 3: '60,many' is not a time and a count"),
        ("t,n\n0,3\n\nnoon,4\n", "line 4: 'noon,4' is not a time and a count"),
        ("s,n\n0,3\n60,4\n240,5\n300,6\n360,6\n", "line 4: a gap, 2 intervals of 60 s before it"),
        ("s,n\n0,3\n60,4\n90,5\n150,1\n", "line 4: 30 s after the line before it, not a multiple of 60 s"),
        ("s,n\n0,3\n60,4\n30,5\n90,5\n150,1\n", "line 4: 30 s before the line before it; lines must be in order of time"),
        ("s,n\n0,3\n0,4\n", "do not increase"),
        ("id,count\n17,3\n18,4\n", "line 2: the first column has numbers (17), and its name is none of a time: call it"),
        ("requests,errors\n17,3\n18,4\n", "line 2: the first column has numbers (17), and its name is none of a time"),
        ("time,a,b\n0,3,4\n", "line 1: which of the columns 'a', 'b' holds the counts is not said: call it 'count'"),
        ("0,3\n60,4\n", "line 1: 0,3 can be a time and a count, or a number with a decimal comma"),
        ("s,n\n0,3\n4\n", "line 3: 1 field, and the first line has 2"),
        ("s,n\n0,3\n", "has one line, so its interval is unknown: add a line or set `interval`"),
    ],
)
def test_a_damaged_trace_is_refused_naming_file_and_line(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as refused:
        trace(path)
    assert says in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_missing_file_and_a_false_gzip_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file"):
        trace(tmp_path / "none.csv")
    with pytest.raises(InputError, match="gzipped"):
        trace(written(tmp_path, "0,1\n", "plain.csv.gz"))


def test_gaps_can_be_held_or_left_empty(tmp_path: Path) -> None:
    path = written(tmp_path, "s,n\n0,3\n60,4\n180,5\n240,5\n")
    assert trace(path, gaps="hold").count(1e9) == 3 + 4 + 4 + 5 + 5
    assert trace(path, gaps="empty").count(1e9) == 3 + 4 + 5 + 5


@pytest.mark.parametrize("gaps", ["hld", 3, None])
def test_what_gaps_cannot_mean_is_refused(tmp_path: Path, gaps: object) -> None:
    path = tmp_path / "t.csv"
    path.write_text("minutes,count\n0,5\n1,6\n")
    with pytest.raises(InputError, match=f"t.csv: gaps is {gaps!r}; it must be 'refuse', 'hold' or 'empty'"):
        trace(path, gaps=gaps)  # type: ignore[arg-type]


def test_an_hour_that_a_change_of_the_offset_skips_is_no_gap(tmp_path):
    (tmp_path / "load.csv").write_text(
        "2024-03-31T01:58:00+01:00,10\n2024-03-31T01:59:00+01:00,20\n2024-03-31T03:00:00+02:00,30\n"
    )
    assert trace(tmp_path / "load.csv").seconds == 180.0
