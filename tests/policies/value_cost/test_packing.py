"""Which host loses an instance first: the weights of Eq. 4.10."""

from dataclasses import replace

import pytest

from elastream.core.hosts import HostType
from elastream.policies.value_cost.assembly import Assembly
from elastream.policies.value_cost.problem import Host
from elastream.policies.value_cost.steps import weights
from support.scheduling_problems import LARGE, chain, deployed, steady

ANY = (1.0, 1.0, 1.0)


def weighed(*hosts: tuple[HostType, float, dict[str, int]]) -> list[float]:
    """Weights (4.10) for an instance of o0 at 1800 s of hosts leased at given times, with given instances."""
    of = chain([ANY], [ANY])
    plan = deployed(of, [(kind, counts) for kind, _, counts in hosts])
    leased = tuple(replace(host, since=since) for host, (_, since, _) in zip(plan.hosts, hosts, strict=True))
    assembly = Assembly(of, replace(plan, hosts=leased), replace(steady(of, 1.0), time=1800.0))
    return weights(assembly, of.row["o0"]).tolist()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((LARGE, 0.0, {"o0": 1}), (LARGE, 1000.0, {"o0": 1})),
        # As printed, Eq. 4.10 has the part of the cores that is free: the fuller host would be emptied.
        ((LARGE, 0.0, {"o0": 1}), (LARGE, 0.0, {"o0": 1, "o1": 3})),
        ((LARGE, 0.0, {"o0": 3}), (LARGE, 0.0, {"o0": 1, "o1": 2})),
        ((replace(LARGE, price=1.0), 0.0, {"o0": 1}), (LARGE, 0.0, {"o0": 1})),
        ((LARGE, 0.0, {"o0": 1}), (replace(LARGE, price=0.0), 0.0, {"o0": 1})),
    ],
    ids=["less is paid", "fewer cores are used", "more instances", "dear cores", "free hosts last"],
)
def test_a_host_loses_an_instance_first_if(
    one: tuple[HostType, float, dict[str, int]], other: tuple[HostType, float, dict[str, int]]
) -> None:
    first, second = weighed(one, other)
    assert first < second


def test_a_host_that_is_to_be_leased_counts_as_paid_for_a_whole_unit() -> None:
    of = chain([ANY], [ANY])
    plan = deployed(of, [(LARGE, {"o0": 1}), (LARGE, {"o0": 1})])
    later = Host("", LARGE, LARGE.speed, 1800.0, 1860.0)
    assembly = Assembly(of, replace(plan, hosts=(plan.hosts[0], later)), replace(steady(of, 1.0), time=1800.0))
    first, second = weights(assembly, 1).tolist()
    assert first == second / 2
