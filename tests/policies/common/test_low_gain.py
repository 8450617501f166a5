"""What hosts that came promised, and when it is said that they brought less than half of it."""

import pytest

from elastream.policies.common.load_history import HostTrial
from elastream.policies.common.reach import HALF_HELP, low_gain_reason


@pytest.mark.parametrize(
    ("processed", "behind", "low_gain"),
    [
        (200.0, 2.0, False),  # twice the cores, twice the records
        (151.0, 2.0, False),  # just more than half of what they promised
        (149.0, 2.0, True),
        (110.0, 1.05, False),  # no more arrives than 115.5/s: of 15.5 more, ten came
        (105.0, 1.3, True),  # 136.5/s arrive
        (90.0, 3.0, True),  # fewer than before
    ],
)
def test_hosts_promise_in_proportion_up_to_what_arrives(processed, behind, low_gain):
    before, now = HostTrial(2.0, 100.0, 2.0, 0.0), HostTrial(4.0, processed, 3.0, 60.0)
    said = low_gain_reason(before, now, behind)
    assert said.startswith(HALF_HELP) if low_gain else said == ""


def test_low_gain_is_explained_with_figures():
    said = low_gain_reason(HostTrial(2.0, 100.0, 2.0, 0.0), HostTrial(4.0, 120.0, 3.0, 60.0), 2.0)
    assert said == f"{HALF_HELP}: 2 cores processed 100/s, 4 process 120/s of 200/s"
