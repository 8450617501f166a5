"""The pause of a repartition is predicted by earlier ones on this machine."""

import pytest

from elastream.checkpoints.repartition import MOST_PAUSES, Pause, add_pause, predicted_pause, read_pauses


def pause(partitions, megabytes):
    """A machine that takes 5 s, 0.1 s a partition and 0.02 s a MB."""
    return Pause(partitions, megabytes, 5 + 0.1 * partitions + 0.02 * megabytes)


EARLIER = [pause(20, 10.0), pause(80, 10.0), pause(80, 100.0), pause(40, 500.0)]


@pytest.mark.parametrize(("partitions", "megabytes"), [(80, 1000.0), (200, 10.0), (2, 1.0)])
def test_pause_follows_partitions_and_megabytes(partitions, megabytes):
    truth = pause(partitions, megabytes).seconds
    assert predicted_pause(EARLIER, partitions, megabytes) == pytest.approx((truth, truth))
    assert predicted_pause(EARLIER, partitions, megabytes).text == f"about {truth:.0f} s"


def test_one_earlier_repartition_predicts_its_like_and_a_range_for_others():
    assert predicted_pause([Pause(80, 10.0, 20.0)], 80, 10.0).text == "about 20 s"
    assert predicted_pause([Pause(80, 10.0, 20.0)], 80, 100.0).text == "20 to 200 s"


def test_odd_measurements_never_predict_a_negative_pause():
    odd = [Pause(80, 10.0, 30.0), Pause(20, 100.0, 3.0), Pause(200, 1.0, 1.0)]
    assert predicted_pause(odd, 2, 1000.0).shortest >= 0


def test_without_earlier_repartitions_the_pause_is_unknown(tmp_path):
    assert predicted_pause(read_pauses(tmp_path / "none"), 80, 10.0).text == "unknown"


def test_newest_pauses_are_kept_and_torn_lines_are_left_out(tmp_path):
    file = tmp_path / "cache" / "pauses.jsonl"
    for number in range(MOST_PAUSES + 3):
        add_pause(file, pause(number + 1, 10.0))
    with file.open("a") as torn:
        torn.write('{"partitions": 3}\nnonsense\n')
    assert [each.partitions for each in read_pauses(file)] == list(range(4, MOST_PAUSES + 4))
