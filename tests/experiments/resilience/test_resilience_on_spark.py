"""What the page of chapter 6 on Spark says of given figures; nothing is measured here."""

import json

from elastream.experiments.page import render
from elastream.experiments.resilience.bed import Mended
from elastream.experiments.resilience.measured import Resilience
from elastream.experiments.resilience.on_spark import outcome


def fault(seconds):
    return Mended(normal=0.3, recovered=seconds, committed=seconds / 2, longest=0.8, batches=2)


def found(**given):
    usual = {
        "speeds": {"r = 0": [100e3] * 6, "r = 1": [95e3] * 6, "r = 2": [90e3] * 6, "outside": [50e3] * 6},
        "joined": {"idle": [1.5] * 6, "leased": [9.0] * 6},
        "moved": {(1, 5000): [1.1, 1.3], (2, 20000): [1.8]},
        "deltas": {1.0: 0.03, 2.0: 0.05, 5.0: 0.1},
        "faults": {1: [fault(1.1)] * 6, 2: [fault(1.2)] * 6},
        "zone": [fault(1.4)],
        "wrong": {"hosts killed": 0},
        "restarts": {"hosts killed": 0},
    }
    return Resilience(**{**usual, **given})


def verdicts(**given):
    return {check.name: check.verdict for check in outcome(found(**given), 60.0).checks}


def test_all_bars_are_held_where_everything_is_fast_and_exact():
    assert set(verdicts().values()) == {"held"}


def test_a_slow_recovery_from_two_losses_is_missed():
    said = verdicts(faults={1: [fault(1.1)] * 6, 2: [fault(2.0)] * 6})
    assert (said["s from the kill of 1 to a batch as before"], said["s from the kill of 2 to a batch as before"]) == (
        "held",
        "missed",
    )


def test_one_run_decides_nothing():
    assert verdicts(faults={1: [fault(9.0)]})["s from the kill of 1 to a batch as before"] == "undecided"


def test_a_wrong_count_is_missed_however_fast_all_was():
    assert verdicts(wrong={"a zone lost": 3})["counts that differ from a batch query's"] == "missed"


def test_checkpoints_that_do_not_grow_with_the_interval_are_missed():
    assert verdicts(deltas={1.0: 0.03, 2.0: 0.02})["checkpoint over whole state grows with the interval"] == "missed"


def test_what_was_not_measured_is_said_on_the_page():
    shown = outcome(
        found(speeds={"r = 0": [1.0], "r = 1": [1.0], "r = 2": [1.0]}, remarks=["state kept outside: no server"]), 1.0
    )
    assert "Not measured: state kept outside: no server." in render(shown.page)
    assert "records/s, r = 1 over state outside" not in render(shown.page).split("The thesis")[0]


def test_figures_are_json():
    json.dumps(outcome(found(), 60.0).to_json(), allow_nan=False)
