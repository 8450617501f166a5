"""When a host may go back, by what is paid of it."""

import pytest

from elastream.core.hosts import Billing, HostType, Lease
from elastream.policies.common.measures import due_back


@pytest.mark.parametrize(
    ("billing", "age", "due"),
    [
        (Billing(1.0, 60.0), 30.0, False),
        (Billing(1.0, 60.0), 61.0, True),
        (Billing(3600.0), 1800.0, False),
        (Billing(3600.0), 3500.0, False),  # the load may rise before its hour ends
        (Billing(3600.0), 3570.0, True),
        (Billing(3600.0), 3595.0, False),  # it would still be stopping when the next hour begins
        (Billing(3600.0), 3700.0, False),
        (Billing(3600.0), 7170.0, True),
        (Billing(600.0), 500.0, False),
        (Billing(600.0), 560.0, True),
    ],
)
def test_a_host_goes_back_when_its_minimum_is_over_and_its_unit_ends(billing, age, due):
    lease = Lease("h1", HostType("h", 1.0, billing=billing, stop=10.0), 100.0)
    assert due_back(lease, 100.0 + age, pace=2.0) is due


@pytest.mark.parametrize(("age", "due"), [(3300.0, False), (3450.0, True), (3520.0, True), (3540.0, False)])
def test_a_host_that_is_drained_first_goes_a_round_sooner(age, due):
    lease = Lease("h1", HostType("h", 1.0, billing=Billing(3600.0), stop=10.0), 100.0)
    assert due_back(lease, 100.0 + age, pace=60.0, empties=60.0) is due


def test_what_costs_nothing_may_always_go():
    assert due_back(Lease("h1", HostType("h", 1.0, price=0.0), 0.0), 1.0, 2.0)
