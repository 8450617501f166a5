"""E2DF's second level where hosts start slowly: what is chosen, and what is judged."""

from dataclasses import replace

import pytest

from elastream_papers.e2df import experiment, second_level
from elastream_papers.e2df.second_level import SecondLevel, chosen


def run(scenario: str, latency: float, running: float, seed: int, *, hosts: int = 16, spare: int = 5) -> experiment.E2dfRun:
    """A run that comes to these figures; each seed has another rise."""
    assumptions = replace(experiment.E2dfAssumptions(), rise=600.0 + seed)
    case = experiment.E2dfCase(scenario, assumptions, seed, hosts, spare)
    return experiment.E2dfRun(case, latency, 7.0, running, running, 1000.0, 0.0, 5, 5, 5, 0, ())


def tried(seed: int) -> list[experiment.E2dfRun]:
    spares, fleets = {1: 0.02, 2: 0.0051, 5: 0.005}, {8: 0.4, 10: 0.0052, 16: 0.005}
    return [
        *(run("both levels", latency, 7.0 + spare, seed, spare=spare) for spare, latency in spares.items()),
        *(run("application", latency, hosts, seed, hosts=hosts) for hosts, latency in fleets.items()),
    ]


def judged(hosts: float, latency: float) -> SecondLevel:
    runs = [
        each
        for seed in (1, 2, 3)
        for each in (
            run("both levels", latency + seed / 1e5, hosts + seed / 100, seed, spare=2),
            run("application", 0.005, 10.0, seed, hosts=10),
            run("application", 0.005, 16.0, seed, hosts=16),
        )
    ]
    return SecondLevel(tried(101), runs, 2, 10)


def test_the_least_spare_and_the_fewest_hosts_of_equal_latency_are_chosen():
    assert chosen([*tried(101), *tried(102)]) == (2, 10)


@pytest.mark.parametrize(
    ("hosts", "latency", "verdicts"),
    [
        (9.0, 0.005, ["held", "held", "held"]),
        (11.0, 0.005, ["held", "held", "missed"]),
        (17.0, 0.02, ["missed", "missed", "missed"]),
    ],
)
def test_host_time_counts_beside_latency_and_fewest_fixed_hosts(hosts, latency, verdicts):
    assert [check.verdict for check in judged(hosts, latency).bars()] == verdicts


def test_slow_hosts_and_one_spare_slot_hold_operators_up():
    cases = second_level._cases([("both levels", 16, 1), ("application", 16, 5)], (101,), experiment.E2dfAssumptions())
    elastic, fixed = (experiment.run_case(case) for case in cases)
    assert elastic.running < fixed.running
    assert elastic.latency > 1.1 * fixed.latency
