"""From when on records count, how many come, and how many wait, for sources that declare no load."""

import math
import os

import pytest

from elastream.core.latency import Basis
from elastream.spark.telemetry.origins import Origin, condensed
from support.batch_progress import START, batches, drop, line, logged, source

QUANTILES = [START + 0.9 + point / 100 for point in range(34)]


def begun(checkpoint, at=0.0):
    """A checkpoint whose query began at second `at`."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").touch()
    os.utime(checkpoint / "metadata", (START + at, START + at))
    return checkpoint


def taken_by(origin, *lines):
    """What `origin` says of the last of some batches: seconds and weights."""
    for batch in batches("q", *lines):
        moments = origin.add_batch(batch)
    return [(round(at - START, 3), weight) for at, weight in moments]


# -- time stamps -------------------------------------------------------------------------------------------------------


def stamps(records=100, stamped=100, at=QUANTILES):
    return {"lines": {"records": records, "stamped": stamped, "at": at}}


def test_records_with_time_stamps_count_from_these(tmp_path):
    origin = Origin(0, begun(tmp_path), stamped="lines")
    found = taken_by(origin, line(0, 2.0, 0.5, source(1, 2, 100), observed=stamps()))
    assert origin.basis is Basis.TIMESTAMPS
    assert (len(found), sum(weight for _, weight in found)) == (32, pytest.approx(100))
    assert (found[0][0], found[-1][0]) == (pytest.approx(0.91), pytest.approx(1.22))


def test_records_from_before_the_run_count_from_its_start(tmp_path):
    origin = Origin(0, begun(tmp_path, at=1.0), stamped="lines")
    found = taken_by(origin, line(0, 2.0, 0.5, source(1, 2, 100), observed=stamps()))
    assert min(at for at, _ in found) == 1.0


def test_records_without_a_time_stamp_are_bounded_by_the_last_poll(tmp_path):
    origin = Origin(0, begun(tmp_path), stamped="lines")
    some = line(1, 2.0, 0.5, source(1, 2, 100), observed=stamps(stamped=75))
    found = taken_by(origin, line(0, 0.5, 1.5, source(0, 1, 10)), some)
    assert found[-1] == (0.5, 25.0)
    assert origin.basis is Basis.BOUND
    assert taken_by(origin, line(2, 3.0, 0.5, source(2, 3, 9), observed=stamps(9, 0, None)))[-1][1] == 9


def test_a_batch_that_was_computed_twice_is_counted_once(tmp_path):
    origin = Origin(0, begun(tmp_path), stamped="lines")
    found = taken_by(origin, line(0, 2.0, 0.5, source(1, 2, 100), observed=stamps(200, 200)))
    assert sum(weight for _, weight in found) == pytest.approx(100)
    assert origin.basis is Basis.TIMESTAMPS


# -- files -------------------------------------------------------------------------------------------------------------


def file_source(start, end, rows):
    return source(None if start is None else {"logOffset": start}, {"logOffset": end}, rows)


def test_file_records_count_from_the_modification_time_by_size(tmp_path):
    folder, checkpoint = tmp_path / "in", begun(tmp_path / "checkpoint")
    drop(folder, "a b", 1.0, 100)
    drop(folder, "c", 2.0, 300)
    logged(checkpoint, 0, (str(folder / "a b").replace(" ", "%20"), 1.0), (folder / "c", 2.0))
    origin = Origin(0, checkpoint, place=str(folder))
    assert sorted(taken_by(origin, line(0, 3.0, 1.0, file_source(None, 0, 40)))) == [(1.0, 10.0), (2.0, 30.0)]
    assert origin.basis is Basis.FILES


def test_files_that_no_batch_has_taken_are_the_backlog_by_their_sizes(tmp_path):
    folder, checkpoint = tmp_path / "in", begun(tmp_path / "checkpoint")
    drop(folder, "a", 1.0, 100)
    logged(checkpoint, 0, (folder / "a", 1.0))
    origin = Origin(0, checkpoint, place=str(folder))
    origin.look(START + 0.5, under_way=True, interval=1.0)
    assert math.isnan(origin.backlog), "before the first batch it is not known how many records a file has"
    taken_by(origin, line(0, 2.0, 1.0, file_source(None, 0, 10)))
    origin.look(START + 3.0, under_way=False, interval=1.0)
    assert (origin.backlog, math.isnan(origin.arrivals)) == (0.0, True)
    drop(folder, "b", 4.0, 500)
    drop(folder, ".hidden", 4.0, 500)
    origin.look(START + 5.0, under_way=False, interval=1.0)
    assert (origin.backlog, origin.arrivals) == (pytest.approx(50.0), pytest.approx(50 / 2))
    logged(checkpoint, 1, (folder / "b", 4.0))
    origin.look(START + 6.0, under_way=True, interval=1.0)
    assert (origin.backlog, origin.arrivals) == (0.0, pytest.approx(50 / 3)), "planned, and not committed"


def test_a_source_that_nothing_comes_to_has_no_arrivals_after_a_while(tmp_path):
    origin = Origin(0, begun(tmp_path))
    taken_by(origin, line(0, 0.0, 1.0, source(0, 1, 10)), line(1, 1.0, 1.0, source(1, 2, 100)))
    assert origin.arrivals == pytest.approx(100.0)
    origin.look(START + 60.0, under_way=True, interval=1.0)
    assert origin.arrivals == pytest.approx(100.0), "a long batch says nothing of what comes meanwhile"
    for second in (61.0, 72.0):
        origin.look(START + second, under_way=False, interval=1.0)
    assert origin.arrivals == 0.0


def test_a_source_is_not_quiet_between_two_polls(tmp_path):
    origin = Origin(0, begun(tmp_path))
    # A batch every 12 s, as for a target latency of 30 s: between them nothing is asked for, and nothing is known to come.
    for batch in batches("q", *(line(n, 12.0 * n, 1.0, source(n, n + 1, 1200)) for n in range(3))):
        origin.add_batch(batch)
        for second in (2.0, 6.0, 11.9):
            origin.look(batch.start + second, under_way=False, interval=12.0)
    assert origin.arrivals == pytest.approx(100.0)
    origin.look(START + 24.0 + 30.0, under_way=False, interval=12.0)
    assert origin.arrivals == 0.0, "polls have found nothing for longer than arrivals are counted over"


def test_many_moments_are_condensed_to_a_few_that_weigh_as_much():
    found = condensed([(float(number), 1.0) for number in range(10_000)])
    assert len(found) == 256
    assert sum(weight for _, weight in found) == pytest.approx(10_000)
    assert found[128][0] == pytest.approx(5000, abs=40)
