"""What hosts serve, as batches show it."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from elastream.core.observation import Composition, MicroBatch
from elastream.policies.common.service import Service


def shown(batches, *, queries=1, since_change=1e9, time=1000.0, tasks=4, version=0, alternates=None):
    """The part of an observation that the service reads, with four slots."""
    return SimpleNamespace(
        batches=batches,
        time=time,
        since_change=since_change,
        working=("h1",),
        cores=SimpleNamespace(slots=lambda hosts: (4, 1.0)),
        composition=Composition(version, alternates or {}, parallelism={"work": tasks}),
        context=SimpleNamespace(
            layout=SimpleNamespace(segments=tuple(range(queries))),
            scalable=frozenset({"work"}),
            graph=SimpleNamespace(by_name={"work": SimpleNamespace(waits=False)}),
        ),
    )


def batches(count, seconds, records, start=0.0, every=None, oldest=float("nan")):
    every = seconds if every is None else every
    return [MicroBatch("q", start + n * every, seconds, records, oldest) for n in range(count)]


def after(batches, **shape):
    return Service().after(shown(batches, **shape), None, 4.0)


def of_sizes(*records, fixed=0.4, cores=4.0, each=0.001):
    """Batches of 0.4 s and 1 ms a record on four cores."""
    sizes = [size for size in records for _ in range(4)]
    return [MicroBatch("q", float(n), fixed + size * each / cores, size, math.nan) for n, size in enumerate(sizes)]


def need(service, limit=1.0):
    return float(np.median(service.needs(30.0, limit, margin=1.0)))


def test_nothing_is_known_before_any_batch_was_loaded():
    assert not Service().needs(30.0, 1.0).size
    assert not after(batches(20, 0.1, 10)).needs(30.0, 1.0).size


def test_loaded_batches_show_what_records_need():
    assert need(after(batches(20, 1.0, 3200))) == pytest.approx(4.0 / 3200)


def test_a_few_slow_batches_do_not_count():
    usual = after(batches(40, 1.0, 3200))
    assert need(usual.after(shown(batches(3, 6.0, 3200, start=50.0)), None, 4.0)) == pytest.approx(4.0 / 3200)


def test_batches_from_before_a_change_of_hosts_do_not_count():
    assert not after(batches(20, 1.0, 3200), since_change=10.0, time=30.0).needs(30.0, 1.0).size


@pytest.mark.parametrize("shape", [{"tasks": 5}, {"tasks": 3}])
def test_batches_whose_tasks_do_not_fill_the_hosts_do_not_count(shape):
    assert not after(batches(20, 1.0, 3200), **shape).needs(30.0, 1.0).size


def test_a_few_loaded_batches_on_new_hosts_tell_nothing_of_them():
    known = after(of_sizes(200, 800, 2400))
    cut_off = [*batches(3, 0.1, 4, start=50.0), MicroBatch("q", 53.0, 1.0, 1200.0), *batches(12, 0.1, 4, start=54.0)]
    assert need(known.after(shown(cut_off), None, 3.0)) == pytest.approx(need(known))


@pytest.mark.parametrize("every", [1.0, 100.0], ids=["many hosts", "hours"])
def test_what_loaded_batches_showed_is_known_until_others_show_it(every):
    known = after(batches(20, 1.0, 3200))
    for number in range(100):
        light = batches(10, 0.1, 10 << number % 8, start=20.0 + 10 * number * every, every=every)
        known = known.after(shown(light), None, 4.0 + (number % 30) * (every == 1.0))
    assert known.needs(30.0, 1.0).size


def test_batches_under_another_composition_do_not_count():
    earlier = [each._replace(version=1.0) for each in batches(20, 1.0, 3200)]
    assert not after(earlier, version=2).needs(30.0, 1.0).size
    known = after(earlier, version=1)
    assert known.needs(30.0, 1.0).size
    assert not known.after(shown([], alternates={"work": "quick"}), None, 4.0).needs(30.0, 1.0).size


def test_first_batches_and_queries_that_share_hosts_do_not_count():
    assert after(batches(2, 9.0, 10)).waits == ()
    assert not after(batches(20, 1.0, 3200), queries=2).needs(30.0, 1.0).size


@pytest.mark.parametrize(
    ("limit", "fixed", "planned"),
    [(2.0, 0.4, 2.0), (4.0, 0.4, 4.0), (1.0, 0.8, 1.3), (1.0, 1.5, 3.0), (None, 0.4, 10.0), (None, 6.0, 12.0)],
)
def test_the_longer_a_batch_may_last_the_less_its_fixed_part_counts(limit, fixed, planned):
    """The governor gives records the rest of the limit, half of it at least."""
    known = after(of_sizes(200, 800, 2400, fixed=fixed))
    assert need(known, limit) == pytest.approx(0.001 * planned / (planned - fixed))


def test_what_changed_in_the_newest_batches_counts():
    known = after(of_sizes(200, 800, 2400))
    dearer = [*of_sizes(*[2400] * 4, each=0.002)]
    assert need(known.after(shown(dearer), None, 4.0)) == pytest.approx(2 * need(known), rel=0.3)
    an_hour_later = [each._replace(start=each.start + 4000.0) for each in of_sizes(200, 800, 2400, each=0.002)]
    assert need(known.after(shown(an_hour_later), None, 4.0)) == pytest.approx(2 * need(known))


def test_batches_of_hosts_that_left_do_not_count():
    known = after(of_sizes(200, 800, 2400))
    history = SimpleNamespace(times=[900.0], ended={}, last_batches={})
    fewer = known.after(shown(of_sizes(200, 800, 2400)), history, 2.0)
    assert {cores for _, _, cores, _ in fewer.shown} == {4.0}


@pytest.mark.parametrize("cores", [1.449, 14.4, 104.9])
def test_hosts_of_any_size_show_what_records_need(cores):
    known = Service().after(shown(batches(20, 1.0, 3200)), None, cores)
    assert need(known) == pytest.approx(cores / 3200)


def test_hosts_without_cores_show_nothing():
    assert not Service().after(shown(batches(20, 1.0, 3200)), None, 0.0).shown


def test_batches_of_one_size_do_not_tell_what_longer_ones_would_save():
    assert need(after(batches(20, 0.6, 800))) == pytest.approx(0.6 * 4.0 / 800)


def test_a_backlog_in_one_batch_costs_less_a_record_than_batches_in_time():
    late = after([*batches(3, 0.5, 10), *batches(20, 8.0, 30_000, start=2.0)])
    assert need(late) == pytest.approx(7.5 / 30_000 * 4 * 2)


def test_batches_that_became_faster_as_they_grew_still_need_the_cores_that_records_keep_busy():
    known = after([MicroBatch("q", 4.0 * n, 4.0 - 0.05 * n, 1000.0 + 100 * n, math.nan) for n in range(20)])
    assert need(known) < 1e-6
    assert float(np.median(known.needs(30.0, None, margin=1.0, least=0.002))) == pytest.approx(0.0025, rel=0.2)


def test_batches_on_other_hosts_count_only_while_there_are_few_on_the_newest():
    many = after(of_sizes(200, 800, 2400))
    few = many.after(shown(of_sizes(400, 1600, fixed=0.8, cores=2.0)[:5]), None, 2.0)
    enough = many.after(shown(of_sizes(400, 1600, fixed=0.8, cores=2.0)), None, 2.0)
    assert need(few, 4.0) == pytest.approx(0.001 * 4.0 / 3.6, rel=0.05)
    assert need(enough, 4.0) == pytest.approx(0.001 * 4.0 / 3.2)


def test_the_budget_is_what_batches_leave_of_the_target():
    assert Service().budget(30.0, 1.0) == 28.0
    slow = Service().after(shown(batches(20, 4.0, 10)), None, 4.0)
    assert slow.budget(30.0, 1.0) == pytest.approx(22.0)
    assert slow.budget(5.0, 1.0) == 0.0


def test_a_record_that_came_late_into_a_batch_waited_less():
    sparse = Service().after(shown(batches(20, 1.0, 10, every=60.0, oldest=1.5)), None, 4.0)
    assert sparse.budget(30.0, 1.0) == 28.0


def test_without_a_limit_what_waits_becomes_one_batch():
    assert after(batches(20, 0.5, 10)).budget(30.0, None) == pytest.approx(10.0)
    assert after(batches(20, 12.0, 10)).budget(30.0, None) == 0.0
