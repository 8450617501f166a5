"""How many records a batch may take: batches of modelled cost in, allowances out."""

import random
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.policies.common.governor import Governor, next_allowance

costs, floors, lengths = st.floats(1e-5, 0.1), st.floats(0, 1), st.floats(0.1, 5)


def run(governor: Governor, seconds_of: Callable[[int], float], batches: int) -> list[tuple[int, float]]:
    """Batches under a backlog that is never short: (records, seconds) of each."""
    found = []
    for _ in range(batches):
        records = governor.allowance
        found.append((records, seconds_of(records)))
        governor = governor.after(*found[-1])
    return found


def used(governor: Governor, *batches: tuple[int, float]) -> Governor:
    """The governor after its first batch and these."""
    for batch in ((1, 9.0), *batches):
        governor = governor.after(*batch)
    return governor


@pytest.mark.parametrize("cost", [0.05, 1e-3, 1e-5])
def test_batches_under_a_backlog_settle_at_the_wanted_length(cost: float) -> None:
    settled = run(Governor(1.0), lambda records: 0.05 + cost * records, 40)[-10:]
    assert all(0.7 <= seconds <= 1.3 for _, seconds in settled)


@given(costs, floors, lengths)
def test_a_batch_is_at_most_twice_the_largest_before_it(cost: float, floor: float, wanted: float) -> None:
    sizes = [records for records, _ in run(Governor(wanted), lambda records: floor + cost * records, 30)]
    assert all(later <= 2 * max(sizes[: place + 1]) for place, (_, later) in enumerate(pairwise(sizes)))


@given(costs, floors, lengths)
def test_batches_neither_run_away_nor_die_out(cost: float, floor: float, wanted: float) -> None:
    settled = run(Governor(wanted), lambda records: floor + cost * records, 60)[-10:]
    assert max(seconds for _, seconds in settled) <= floor + 1.5 * max(wanted, floor) + cost
    assert max(records for records, _ in settled) >= min(100, int(wanted / 4 / cost))


@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.floats(1e-3, 20.0)), min_size=1, max_size=8),
    st.integers(1, 10_000),
    lengths,
)
def test_batch_in_time_and_not_full_changes_nothing(batches: list[tuple[int, float]], more: int, wanted: float) -> None:
    records, seconds = np.array(batches, dtype=np.float64).T
    seconds[-1] = min(seconds[-1], 0.99 * wanted)
    allowance = int(records[-1]) + more
    assert next_allowance(records, seconds, allowance, wanted) == allowance


def test_a_stall_among_good_batches_changes_nothing() -> None:
    good = [(n, 0.1 + n / 1000) for n in (100, 120, 150, 180, 220)]
    assert used(Governor(1.0, allowance=400), *good, (300, 20.0)).allowance >= 400


def test_a_first_batch_on_cold_workers_does_not_count() -> None:
    governor = Governor(1.0).after(100, 15.0)
    assert governor.allowance == 100
    assert governor.after(100, 0.2).allowance == 200


@pytest.mark.parametrize("seed", range(3))
def test_batches_on_a_noisy_machine_do_not_die_out(seed: int) -> None:
    noise = random.Random(seed)
    # Having a batch takes 1 to 4 s whatever is in it, and a record next to nothing.
    batches = run(Governor(0.5), lambda records: noise.uniform(1, 4) + 2e-5 * records, 60)
    assert min(records for records, _ in batches[-10:]) >= 100
    assert max(records for records, _ in batches) >= 5000


@pytest.mark.parametrize("seed", range(5))
def test_batches_of_a_query_that_warms_up_do_not_stay_small(seed: int) -> None:
    """Each of its first batches is faster than the one before, whatever is in it."""
    noise, first = random.Random(seed), iter(range(100))
    batches = run(Governor(0.8), lambda records: noise.uniform(1.2, 1.9) + 1.5 * 0.6 ** next(first) + 5e-5 * records, 10)
    assert batches[-1][0] >= 1000


def test_the_allowance_follows_hosts_that_come_and_go() -> None:
    governor = Governor(1.0)
    found = {}
    for hosts in (1, 4, 1):
        for _ in range(20):
            governor = governor.after(governor.allowance, 0.05 + governor.allowance * 0.01 / hosts)
        found.setdefault(hosts, []).append(governor.allowance)
    assert 250 <= found[4][0] <= 450
    assert all(60 <= allowance <= 125 for allowance in found[1])
