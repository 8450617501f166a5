"""Two applications on hosts of two regions, with all managers in processes of their own: `examples/two_regions.py`."""

import pytest
import two_regions

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_applications_in_two_regions_survive_a_killed_manager(tmp_path):
    told = two_regions.main(tmp_path)
    assert set(told["results"]) == {"clicks", "orders"}
    for result in told["results"].values():
        assert result["exact"]
        assert result["query runs"] == 1
    for region, lines in told["history"].items():
        leased = [line for line in lines if line.startswith("lease ")]
        assert len(leased) == len(set(leased)), f"{region} leased a host twice"
    assert told["recalled"], "no host was recalled"
    for host, owner, _ in told["recalled"]:
        # Obeyed: some time after, it was not that application's.
        held = [holding.get(host) for _, holding in told["held"]]
        assert owner in held
        assert held[-1] != owner
