"""Policies that the Linear Road benchmark offers."""

import pytest
from linear_road_on_spark import POLICIES, policy_of


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_can_be_made_with_its_parameters(name: str) -> None:
    assert policy_of(name).name.startswith(name)
