"""Random faults under load leave no trace in what is counted."""

from collections import Counter

import pytest
from _churn import churn, schedule


def test_a_schedule_repeats_by_its_seed_and_has_faults_of_both_kinds() -> None:
    assert list(schedule(200, 3)) == list(schedule(200, 3)) != list(schedule(200, 4))
    assert Counter(schedule(2000, 1)) == {"move": 1960, "kill": 20, "decommission": 20}
    assert Counter(schedule(50, 1)) == {"move": 48, "kill": 1, "decommission": 1}


@pytest.mark.spark
@pytest.mark.parametrize(("events", "hosts"), [(8, 3), pytest.param(50, 4, marks=pytest.mark.slow)])
def test_moves_kills_and_decommissions_leave_every_count_exact_and_the_query_running(events: int, hosts: int) -> None:
    found = churn(events, hosts=hosts)
    assert (found.kills, found.decommissions) == (1, 1)
    assert found.landed > 0
    assert found.starts == 0
    assert found.wrong == 0
