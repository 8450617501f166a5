"""The pause of a repartition is predicted by earlier ones and by the speed of reading just now."""

import math

import pytest

from elastream.checkpoints.pause import MOST, Timing, add_timing, predicted_pause, read_timings


def timing(old, new, megabytes, slower=1.0):
    """A machine that takes 0.1 s a partition and 0.01 s a MB to read, and twice both to rewrite."""
    read = {count: slower * (0.1 * count + 0.01 * megabytes) for count in (old, new)}
    return Timing(old, new, megabytes, read[old], 2 * (read[old] + read[new]), read[new])


def seconds(each):
    return each.reading_old + each.rewriting + each.reading_new


@pytest.mark.parametrize("case", [(16, 64, 1000.0), (64, 16, 1000.0), (2, 200, 10.0)])
def test_pause_follows_partitions_and_megabytes(case):
    truth = timing(*case)
    assert predicted_pause([timing(16, 64, 10.0)], *case, truth.reading_old) == pytest.approx(seconds(truth))


def test_machine_that_reads_slower_now_pauses_longer():
    truth = timing(16, 64, 100.0, slower=3.0)
    earlier = [timing(16, 64, 10.0), timing(64, 16, 100.0)]
    assert predicted_pause(earlier, 16, 64, 100.0, truth.reading_old) == pytest.approx(seconds(truth))


def test_rates_are_never_negative():
    odd = [Timing(16, 64, 100.0, 9.0, 20.0, 2.0)]
    assert predicted_pause(odd, 64, 16, 100.0, 2.0) > 0


def test_without_earlier_repartitions_the_pause_is_unknown(tmp_path):
    assert math.isnan(predicted_pause(read_timings(tmp_path / "none"), 16, 64, 10.0, 1.0))


def test_newest_timings_are_kept_and_torn_lines_are_left_out(tmp_path):
    file = tmp_path / "cache" / "timings.jsonl"
    for number in range(MOST + 3):
        add_timing(file, timing(number + 1, 64, 10.0))
    with file.open("a") as torn:
        torn.write('{"old": 3}\nnonsense\n')
    assert [each.old for each in read_timings(file)] == list(range(4, MOST + 4))
