"""The OTD experiment: its runs, its bars and its page."""

import json

import numpy as np
import pytest

from elastream.experiments.otd.experiment import (
    COUNT,
    MAIN,
    SIZES,
    OtdAssumptions,
    OtdCase,
    bars,
    best_use,
    efforts,
    make,
    run_case,
    word_shares,
)
from elastream.experiments.otd.page import outcome
from elastream.experiments.page import render


def figures(traffic, cpu):
    return {
        "communication": {p: {"traffic between nodes, at the end": v} for p, v in traffic.items()},
        "computation": {
            p: {"CPU use of workers, settled": settled, "CPU use of workers, mean": mean}
            for p, (settled, mean) in cpu.items()
        },
    }


def test_bars_hold_at_the_papers_own_results_and_not_below():
    even, theirs, less = (0.51, 0.51), (0.7702, 0.75), (0.76, 0.74)
    assert all(c.holds for c in bars(figures({"even": 0.5, "otd": 0.06}, {"even": even, "otd": theirs})))
    assert not any(c.holds for c in bars(figures({"even": 0.5, "otd": 0.07}, {"even": even, "otd": less})))


@pytest.mark.parametrize("cluster", [MAIN, *SIZES], ids=lambda cluster: cluster.name)
def test_the_start_is_even_over_workers_and_over_nodes(cluster):
    seen = make(OtdCase("communication", "even", cluster)).observe()
    counts = np.bincount(seen.tasks.host, minlength=cluster.hosts)
    assert np.ptp(counts) <= 1
    regions = [seen.leases[host].type.region for host in seen.hosts.ids]
    for operator in ("split", "count"):
        mine = seen.tasks.host[seen.tasks.operator == seen.operators.rows[operator]]
        per_node = [sum(regions[h] == f"n{k}" for h in mine) for k in range(cluster.nodes)]
        assert max(per_node) - min(per_node) <= 1


def test_half_of_the_first_bolts_tasks_calculate_and_which_ones_changes():
    table = efforts(OtdCase("computation", "even"))
    assert ((table == 1.0).sum(axis=1) == MAIN.first // 2).all()
    assert len({tuple(row) for row in table}) > 1


def test_at_best_six_heavy_tasks_have_a_worker_each_and_all_others_two():
    given = OtdAssumptions(light=0.0)
    counting = given.words * 12_000 * COUNT
    assert best_use(OtdCase("computation", "even", assumptions=given)) == pytest.approx((6 + counting) / 8)


def test_words_are_shared_unequally_among_the_tasks_that_count_them():
    shares = word_shares(OtdCase("computation", "even"))
    assert shares.size == MAIN.second
    assert shares.sum() == pytest.approx(1)
    assert shares.max() > 2 * shares.min()


def test_what_is_settled_leaves_out_what_follows_a_change():
    run = run_case(OtdCase("computation", "otd"))
    settled = [cpu for time, cpu, *_ in run.series if (time - 2.5) % 120 > 50]
    assert len(settled) == 5 * 14
    assert run.settled == pytest.approx(np.mean(settled))
    assert run.settled > run.cpu


def test_otd_uses_more_of_the_cpu_than_the_even_deployment_and_never_more_than_the_exact_packing():
    even, otd = (run_case(OtdCase("computation", policy)) for policy in ("even", "otd"))
    assert even.cpu < otd.cpu < otd.settled <= even.best
    assert otd.refused == 0
    assert otd.moves < 20


def test_otd_brings_tasks_that_talk_together():
    run = run_case(OtdCase("communication", "otd"))
    assert run.series[0][2] == pytest.approx(0.5, abs=0.02)
    assert run.remote_end < 0.06


def test_the_outcome_can_be_written_and_shown():
    runs = [
        run_case(OtdCase(application, policy, seed=2))
        for application in ("communication", "computation")
        for policy in ("even", "otd as published", "otd")
    ]
    found = outcome(runs, 1.0)
    json.dumps(found.to_json(), allow_nan=False)
    page = render(found.page)
    assert "simulated" in page
    assert "Figure 12" in page
    assert len(found.checks) == 3
