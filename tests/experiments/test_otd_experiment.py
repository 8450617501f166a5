"""The OTD experiment: its runs, its bars and its page."""

import json

import numpy as np
import pytest

from elastream.experiments.otd import MAIN, SIZES, Assumptions, Case, bars, best_use, efforts, make, run_case
from elastream.experiments.otd_page import outcome
from elastream.experiments.page import render


def figures(traffic, cpu):
    return {
        "communication": {p: {"traffic between nodes, at the end": v} for p, v in traffic.items()},
        "computation": {p: {"CPU use of workers, mean": v} for p, v in cpu.items()},
    }


def test_bars_hold_at_the_papers_own_results_and_not_below():
    assert all(c.holds for c in bars(figures({"even": 0.5, "otd": 0.06}, {"even": 0.51, "otd": 0.7702})))
    assert not any(c.holds for c in bars(figures({"even": 0.5, "otd": 0.07}, {"even": 0.51, "otd": 0.76})))


@pytest.mark.parametrize("cluster", [MAIN, *SIZES], ids=lambda cluster: cluster.name)
def test_the_start_is_even_over_workers_and_over_nodes(cluster):
    seen = make(Case("communication", "even", cluster)).observe()
    counts = np.bincount(seen.tasks.host, minlength=cluster.hosts)
    assert np.ptp(counts) <= 1
    regions = [seen.leases[host].type.region for host in seen.hosts.ids]
    for operator in ("split", "count"):
        mine = seen.tasks.host[seen.tasks.operator == seen.operators.rows[operator]]
        per_node = [sum(regions[h] == f"n{k}" for h in mine) for k in range(cluster.nodes)]
        assert max(per_node) - min(per_node) <= 1


def test_half_of_the_first_bolts_tasks_calculate_and_which_ones_changes():
    table = efforts(Case("computation", "even"))
    assert ((table == 1.0).sum(axis=1) == MAIN.first // 2).all()
    assert len({tuple(row) for row in table}) > 1


def test_six_heavy_tasks_on_eight_workers_use_three_quarters_of_them():
    given = Assumptions(light=0.0)
    assert best_use(Case("computation", "even", assumptions=given)) == pytest.approx(6 / 8)


def test_otd_uses_more_of_the_cpu_than_the_even_deployment_and_never_more_than_the_exact_packing():
    even, otd = (run_case(Case("computation", policy)) for policy in ("even", "otd"))
    assert even.cpu < otd.cpu <= even.best + 0.02
    assert otd.refused == 0
    assert otd.moves < 20


def test_otd_brings_tasks_that_talk_together():
    run = run_case(Case("communication", "otd"))
    assert run.series[0][2] == pytest.approx(0.5, abs=0.02)
    assert run.remote_end < 0.06


def test_the_outcome_can_be_written_and_shown():
    runs = [
        run_case(Case(a, p, seed=2)) for a in ("communication", "computation") for p in ("even", "otd as published", "otd")
    ]
    found = outcome(runs, 1.0)
    json.dumps(found.to_json(), allow_nan=False)
    page = render(found.page)
    assert "simulated" in page
    assert "Figure 12" in page
    assert len(found.checks) == 2
