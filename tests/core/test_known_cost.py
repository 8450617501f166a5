"""A cost of 0 without a price is unknown."""

import math

import pytest

from elastream.core.hosts import HostType, known_cost

FREE, PRICED = HostType("free", cores=1.0, price=0.0), HostType("priced", cores=1.0, price=2.0)


@pytest.mark.parametrize(
    ("cost", "types", "known"),
    [(0.0, [FREE], math.nan), (0.0, [], math.nan), (0.0, [FREE, PRICED], 0.0), (3.0, [FREE], 3.0)],
    ids=["no price", "no type", "a price, nothing paid yet", "paid, by a pool's own price"],
)
def test_cost_without_a_price_is_unknown(cost, types, known):
    assert known_cost(cost, types) == pytest.approx(known, nan_ok=True)
