"""Recorded speeds and links: what is read, and what is refused by file and line."""

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from elastream.errors import InputError
from elastream.loads import SpeedSpread, recorded_links, recorded_speeds

SPEEDS = "seconds,host,speed\n0,a,1.0\n0,b,0.9\n60,a,0.5\n60,b,0.8\n120,a,0.6\n120,b,0.7\n"
LINKS = "minute,from,to,latency,bandwidth\n0,a,b,1,1\n0,a,c,2,0.5\n0,c,b,1.5,0.9\n1,a,b,3,1\n1,a,c,2,0.4\n1,c,b,1,1\n"


def written(folder: Path, text: str, name: str = "machines.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_hosts_are_the_rows_in_the_order_of_their_first_lines(tmp_path):
    trace = recorded_speeds(written(tmp_path, SPEEDS))
    assert trace.interval == 60
    assert trace.factors.tolist() == [[1.0, 0.5, 0.6], [0.9, 0.8, 0.7]]
    packed = tmp_path / "machines.csv.gz"
    packed.write_bytes(gzip.compress(SPEEDS.encode()))
    assert (recorded_speeds(packed).factors == trace.factors).all()


def test_without_times_each_host_has_one_speed_for_good(tmp_path):
    trace = recorded_speeds(written(tmp_path, "host;speed\na;1\nb;0.5\n"))
    assert (trace.interval, trace.factors.tolist()) == (math.inf, [[1.0], [0.5]])
    assert trace.at(np.array([1]), 1e9).tolist() == [0.5]


def test_links_are_read_once_a_pair_in_whichever_direction(tmp_path):
    trace = recorded_links(written(tmp_path, LINKS))
    assert trace.interval == 60
    a, b, c = np.array([0]), np.array([1]), np.array([2])
    assert [each.item() for each in trace.at(a, b, 60.0)] == [3.0, 1.0]
    assert [each.item() for each in trace.at(c, a, 0.0)] == [2.0, 0.5]
    assert [each.item() for each in trace.at(b, c, 0.0)] == [1.5, 0.9]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (SPEEDS.replace("60,b,0.8\n", ""), "line 6: a gap: host 'b' has no value for 1 interval of 60 s before it"),
        (SPEEDS.replace("120,b,0.7\n", ""), "line 5: a gap: host 'b' has no value for 1 interval of 60 s after it"),
        (SPEEDS.replace("0,b,0.9\n", "", 1), "line 4: a gap: host 'b' has no value for 1 interval of 60 s before it"),
        (SPEEDS.replace("60,b,0.8", "60,b,"), "line 5: the speed is ''; it must be a number above 0"),
        (SPEEDS.replace("60,b,0.8", "60,b,nan"), "line 5: the speed is 'nan'; it must be a number above 0"),
        (SPEEDS.replace("60,b,0.8", "60,b,-1"), "line 5: the speed is '-1'"),
        (SPEEDS.replace("60,b,0.8", "0,b,0.8"), "line 5: host 'b' has a value at 0 s or later already, in line 3"),
        (SPEEDS.replace("60,b,0.8", "soon,b,0.8"), "line 5: 'soon' is not a time"),
        (SPEEDS.replace("60,b,0.8", "60,b"), "line 5: 2 fields, and the first line names 3"),
        (SPEEDS.replace("60,b,0.8", "60,b,0,8"), "line 5: 4 fields, and the first line names 3"),
        (SPEEDS.replace("120,a", "150,a").replace("120,b", "150,b"), "line 6: 90 s after the last line of host 'a'"),
        ("host,value\na,1\n", "line 1: no column is called 'speed'; there is 'host', 'value'"),
        ("host,speed\n", "holds no value"),
        ("", "line 1: no column is called 'host'; there is nothing"),
    ],
)
def test_gaps_and_what_is_no_factor_are_refused_by_line(tmp_path, text, sentence):
    path = written(tmp_path, text)
    with pytest.raises(InputError) as refused:
        recorded_speeds(path)
    assert str(refused.value).startswith(str(path))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (LINKS.replace("1,a,c,2,0.4\n", ""), "line 3: a gap: the link a>c has no value for 1 interval of 60 s after it"),
        (LINKS.replace("0,c,b,1.5,0.9\n", "").replace("1,c,b,1,1\n", ""), "has no line of the link b>c"),
        (LINKS + "0,b,a,1,1\n1,b,a,1,1\n", "line 8: the link a>b is listed as b>a as well"),
        (LINKS.replace("0.5", "0"), "line 3: the bandwidth is '0'; it must be a number above 0"),
    ],
)
def test_links_that_lack_a_pair_or_a_moment_are_refused(tmp_path, text, sentence):
    with pytest.raises(InputError) as refused:
        recorded_links(written(tmp_path, text))
    assert sentence in str(refused.value)


def test_hosts_are_drawn_from_the_machines_of_a_benchmark(tmp_path):
    path = written(tmp_path, "value,VM_id\n90,1\n110,1\n50,2\n")
    trace = SpeedSpread(path, hosts=50).over(60.0)
    assert sorted(set(trace.factors[:, 0].tolist())) == [0.5, 1.0]
    with pytest.raises(InputError, match="line 2: the value is 'x'"):
        SpeedSpread(written(tmp_path, "value,VM_id\nx,1\n")).over(60.0)
