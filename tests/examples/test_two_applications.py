"""Two applications of one pool on Spark: `examples/two_applications.py`, as a person would run it."""

import pytest
import two_applications

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_two_word_counts_share_machines_and_count_exactly(tmp_path):
    told = two_applications.main(tmp_path)
    assert set(told["results"]) == {"clicks", "orders"}
    for result in told["results"].values():
        assert result["exact"]
        assert result["query runs"] == 1
    both = [holding for _, holding in told["held"] if len(holding) == 2 and all(holding.values())]
    first = next(number for number, (_, holding) in enumerate(told["held"]) if holding in both)
    # From when each had its first machine until one ended, neither was without.
    together = [holding for _, holding in told["held"][first:] if len(holding) == 2]
    assert all(holding["clicks"] >= 1 and holding["orders"] >= 1 for holding in together[:-1])
    assert max(holding["clicks"] for holding in both) == 2
    assert max(holding["orders"] for holding in both) == 2
    assert all(sum(holding.values()) <= 3 for _, holding in told["held"])
    assert sum(told["bill"].values()) == pytest.approx(sum(result["owed"] for result in told["results"].values()), abs=3.0)
