"""Random faults under load leave no trace in what is counted."""

from collections import Counter

import pytest
from _churn import SHARES, churn, schedule

FEW = {"tokens": 0.25, "zone": 0.1, "decommission": 0.1, "pause": 0.1}
"""What the small form has beside moves: a zone that is lost is one host killed, or several."""


def test_a_schedule_repeats_by_its_seed_and_has_events_of_every_kind() -> None:
    assert list(schedule(200, 3)) == list(schedule(200, 3)) != list(schedule(200, 4))
    assert Counter(schedule(500, 1)) == {
        "move": 295, "tokens": 150, "kill": 15, "kills": 10, "decommission": 15, "zone": 10, "pause": 5,
    }  # fmt: skip
    assert Counter(schedule(8, 1, FEW)) == {"move": 3, "tokens": 2, "zone": 1, "decommission": 1, "pause": 1}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("events", "hosts", "shares"), [(8, 3, FEW), pytest.param(30, 4, SHARES, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_random_events_and_a_false_alarm_leave_every_count_exact_and_the_query_running(events, hosts, shares) -> None:
    found = churn(events, hosts=hosts, shares=shares)
    assert found.events.keys() == {"move", *shares}
    assert found.lost > 0
    assert found.landed > 0
    assert found.starts == 0
    assert found.wrong == 0
