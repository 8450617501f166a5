"""Random faults under load leave no trace in what is counted."""

from collections import Counter

import pytest
from churn import churn, schedule

FEW = ("move", "tokens", "pause", "zone", "decommission")
"""What the small form has, on hosts of which two may go without others in their place, as these take most of the time to
come: a zone that is lost is one host killed, or several."""

LIGHT = 300
"""Lines a second that hosts keep up with beside other tests: else each batch takes what came in the last, and is longer."""


def test_a_schedule_repeats_by_its_seed_and_has_events_of_every_kind() -> None:
    assert schedule(200, 3) == schedule(200, 3) != schedule(200, 4)
    assert Counter(schedule(500)) == {
        "move": 295, "tokens": 150, "kill": 15, "kills": 10, "decommission": 15, "zone": 10, "pause": 5,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("events", "options"),
    [
        (FEW, {"hosts": 3, "cores": 0.9, "rate": LIGHT, "refill": False}),
        (schedule(30), {}),
    ],
    ids=["few", "all"],
)
def test_random_faults_leave_counts_exact_and_the_query_running(events, options) -> None:
    found = churn(events, **options)
    assert found.events == Counter(events)
    assert found.lost > 0
    assert found.opened > 0
    assert found.files <= found.behind, "more was read from the checkpoint than copies lacked"
    assert found.landed > 0
    assert found.starts == 0
    assert found.wrong == 0
