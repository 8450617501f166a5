"""Advice on state partitions before a query has any."""

from dataclasses import replace

import pytest

from elastream.core.fitting import width_remark
from support.fake_plant import FakePlant


@pytest.mark.parametrize(
    ("partitions", "max_hosts", "advice"),
    [
        (200, 4, "200 state partitions: each costs a task in every batch; 32 suit up to 4 hosts"),
        (3, 4, "3 state partitions: no more cores can take state; 32 suit up to 4 hosts"),
        (64, 4, ""),
        (200, 1_000_000, ""),
        (0, 4, ""),
        (200, 0, ""),  # no host may be leased
    ],
)
def test_width_that_does_not_suit_the_largest_fleet_is_named(partitions, max_hosts, advice):
    remark = width_remark(partitions, replace(FakePlant().context, max_hosts=max_hosts))
    assert advice in remark
    assert bool(remark) is bool(advice)
