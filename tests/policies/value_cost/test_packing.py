"""The cheapest hosts for given needs, by iterative repacking, and which host loses an instance first."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.hosts import HostType
from elastream.policies.value_cost.problem import Bin, Host, Problem, packed
from elastream.policies.value_cost.steps import Assembly, weights
from support.property_examples import examples
from support.scheduling_problems import HOURLY, LARGE, MEDIUM, SMALL, chain, deployed, steady

ANY = (1.0, 1.0, 1.0)
NONE = np.zeros(4, dtype=np.int64)
LONG_LIST = tuple(
    HostType(f"t{cores}-{speed}", cores=cores, speed=speed, price=(cores * speed) ** 0.9, billing=HOURLY)
    for cores in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    for speed in (0.5, 1.0, 2.0)
)


def bought(of: Problem, *needs: float, most: int = 10_000) -> list[str] | None:
    found = packed(of, range(4), np.array([0.0, *needs, 0.0]), NONE, most)
    return None if found is None else sorted(each.type.name for each in found)


def given_by(bins: tuple[Bin, ...]) -> list[float]:
    return np.sum([each.counts * each.type.speed for each in bins], axis=0).tolist()  # type: ignore[no-any-return]


def test_what_fills_no_large_host_is_put_on_smaller_ones() -> None:
    assert bought(chain([ANY], [ANY]), 8.0, 3.0) in (["large", "medium", "small"], ["large", *["small"] * 3])


def test_where_the_largest_type_is_dear_it_is_not_begun_with() -> None:
    of = chain([ANY], [ANY], types=[SMALL, MEDIUM, replace(LARGE, price=2.0)])
    assert bought(of, 8.0, 4.0) in (["medium"] * 6, ["small"] * 12)


def test_few_hosts_are_large_ones_whatever_they_cost() -> None:
    of = chain([ANY], [ANY], types=[SMALL, replace(LARGE, price=9.0)])
    assert bought(of, 8.0, 0.0, most=3) == ["large"]
    assert bought(of, 80.0, 0.0, most=3) is None


def test_instances_of_several_cores_and_of_memory_are_put_where_they_fit() -> None:
    of = replace(chain([ANY], [ANY]), cores=np.array([0, 2.0, 1.0, 0]), memory=np.array([0, 0, 3000.0, 0]))
    found = packed(of, range(4), np.array([0, 4.0, 4.0, 0]), NONE, 100)
    assert found is not None
    for each in found:
        assert each.counts @ of.cores <= each.type.cores
        assert each.counts @ of.memory <= each.type.memory


def test_a_long_price_list_takes_no_longer_than_its_hosts() -> None:
    of = chain([ANY], [ANY], types=LONG_LIST)
    found = packed(of, range(4), np.array([0, 900.0, 700.0, 0]), NONE, 10_000)
    assert found is not None
    assert {each.type.name for each in found} <= {kind.name for kind in LONG_LIST}
    # At this price the largest is the cheapest for each core; one host more than the needs fill is the most that is lost.
    assert sum(each.type.price for each in found) <= (1600 / 64 + 1) * 64**0.9


@given(
    needs=st.tuples(st.floats(0, 60), st.floats(0, 60)),
    least=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    kinds=st.lists(st.sampled_from([SMALL, MEDIUM, LARGE, *LONG_LIST[:6]]), min_size=1, max_size=4, unique=True),
)
@settings(max_examples=examples(100), deadline=None)
def test_packed_hosts_cover_the_need_within_their_cores(
    needs: tuple[float, float], least: tuple[int, int], kinds: list[HostType]
) -> None:
    of = chain([ANY], [ANY], types=kinds)
    found = packed(of, range(4), np.array([0.0, *needs, 0.0]), np.array([0, *least, 0]), 10_000)
    assert found is not None
    if found:
        assert all(each.counts.sum() <= each.type.cores for each in found)
        assert all(has >= need - 1e-6 for has, need in zip(given_by(found), [0, *needs, 0], strict=True))
        assert (np.sum([each.counts for each in found], axis=0) >= [0, *least, 0]).all()
    else:
        assert sum(needs) < 1e-6
        assert sum(least) == 0


def weighed(*hosts: tuple[HostType, float, dict[str, int]]) -> list[float]:
    """Weights (4.10) for an instance of o0 at 1800 s of hosts leased at given times, with given instances."""
    of = chain([ANY], [ANY])
    plan = deployed(of, [(kind, counts) for kind, _, counts in hosts])
    leased = tuple(replace(host, since=since) for host, (_, since, _) in zip(plan.hosts, hosts, strict=True))
    assembly = Assembly(of, replace(plan, hosts=leased), replace(steady(of, 1.0), time=1800.0))
    return weights(assembly, of.row["o0"]).tolist()


def test_a_host_of_which_less_is_paid_loses_an_instance_first() -> None:
    first, second = weighed((LARGE, 0.0, {"o0": 1}), (LARGE, 1000.0, {"o0": 1}))
    assert first < second


def test_a_host_of_which_fewer_cores_are_used_loses_an_instance_first() -> None:
    # As printed, Eq. 4.10 has the part of the cores that is free: the fuller host would be emptied.
    first, second = weighed((LARGE, 0.0, {"o0": 1}), (LARGE, 0.0, {"o0": 1, "o1": 3}))
    assert first < second


def test_a_host_with_more_instances_of_the_operator_loses_one_first() -> None:
    first, second = weighed((LARGE, 0.0, {"o0": 3}), (LARGE, 0.0, {"o0": 1, "o1": 2}))
    assert first < second


def test_a_host_whose_cores_are_dear_loses_an_instance_first() -> None:
    first, second = weighed((replace(LARGE, price=1.0), 0.0, {"o0": 1}), (LARGE, 0.0, {"o0": 1}))
    assert first < second


def test_a_host_that_costs_nothing_is_emptied_last_and_is_no_fault() -> None:
    first, second = weighed((LARGE, 0.0, {"o0": 1}), (replace(LARGE, price=0.0), 0.0, {"o0": 1}))
    assert first < second


def test_a_host_that_is_to_be_leased_counts_as_paid_for_a_whole_unit() -> None:
    of = chain([ANY], [ANY])
    plan = deployed(of, [(LARGE, {"o0": 1}), (LARGE, {"o0": 1})])
    later = Host("", LARGE, LARGE.speed, 1800.0, 1860.0)
    assembly = Assembly(of, replace(plan, hosts=(plan.hosts[0], later)), replace(steady(of, 1.0), time=1800.0))
    first, second = weights(assembly, 1).tolist()
    assert first == second / 2
