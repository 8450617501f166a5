"""What hosts serve, as batches show it."""

from types import SimpleNamespace

import pytest

from elastream.core.observation import MicroBatch
from elastream.policies.common.service import FIRST_OVERHEAD, MOST_OVERHEAD, Service


def shown(batches, *, queries=1, since_change=1e9, time=1000.0, tasks=4, version=0):
    """The part of an observation that the service reads, with four slots."""
    return SimpleNamespace(
        batches=batches,
        time=time,
        since_change=since_change,
        working=("h1",),
        cores=SimpleNamespace(slots=lambda hosts: (4, 1.0)),
        composition=SimpleNamespace(version=version, parallelism={"work": tasks}),
        context=SimpleNamespace(
            layout=SimpleNamespace(segments=tuple(range(queries))),
            scalable=frozenset({"work"}),
            graph=SimpleNamespace(by_name={"work": SimpleNamespace(waits=False)}),
        ),
    )


def batches(count, seconds, records, start=0.0, every=None, oldest=float("nan")):
    every = seconds if every is None else every
    return [MicroBatch("q", start + n * every, seconds, records, oldest) for n in range(count)]


def test_the_overhead_is_assumed_before_any_batch_was_loaded():
    assert Service().overhead == FIRST_OVERHEAD
    assert Service().after(shown(batches(20, 0.1, 10)), None, 4.0, 0.001).overhead == FIRST_OVERHEAD


def test_loaded_batches_show_the_overhead():
    service = Service().after(shown(batches(20, 1.0, 3200)), None, 4.0, 0.001)
    assert service.overhead == pytest.approx(4.0 / 3.2)


def test_a_few_slow_batches_do_not_count():
    usual = Service().after(shown(batches(40, 1.0, 3200)), None, 4.0, 0.001)
    assert usual.after(shown(batches(5, 6.0, 3200, start=50.0)), None, 4.0, 0.001).overhead == usual.overhead


def test_batches_from_before_a_change_of_hosts_do_not_count():
    late = shown(batches(20, 1.0, 3200), since_change=10.0, time=30.0)
    assert Service().after(late, None, 4.0, 0.001).overhead == FIRST_OVERHEAD


@pytest.mark.parametrize("shape", [{"tasks": 5}, {"tasks": 3}])
def test_batches_whose_tasks_do_not_fill_the_hosts_do_not_count(shape):
    assert Service().after(shown(batches(20, 1.0, 3200), **shape), None, 4.0, 0.001).overhead == FIRST_OVERHEAD


def test_batches_under_another_composition_do_not_count():
    earlier = [each._replace(version=1.0) for each in batches(20, 1.0, 3200)]
    assert Service().after(shown(earlier, version=2), None, 4.0, 0.001).overhead == FIRST_OVERHEAD
    assert Service().after(shown(earlier, version=1), None, 4.0, 0.001).overhead > FIRST_OVERHEAD


def test_first_batches_and_queries_that_share_hosts_do_not_count():
    assert Service().after(shown(batches(2, 9.0, 10)), None, 4.0, 0.001).waits == ()
    assert Service().after(shown(batches(20, 1.0, 3200), queries=2), None, 4.0, 0.001).overhead == FIRST_OVERHEAD


@pytest.mark.parametrize(("records", "overhead"), [(40_000, 1.0), (10, MOST_OVERHEAD)])
def test_the_overhead_stays_within_its_limits(records, overhead):
    assert Service().after(shown(batches(20, 1.0, records)), None, 4.0, 0.001).overhead == overhead


def test_unknown_work_shows_nothing():
    assert Service().after(shown(batches(20, 1.0, 3200)), None, 4.0, float("nan")).overhead == FIRST_OVERHEAD


def test_the_budget_is_what_batches_leave_of_the_target():
    assert Service().budget(30.0, governed=True) == 28.0
    slow = Service().after(shown(batches(20, 4.0, 10)), None, 4.0, 0.001)
    assert slow.budget(30.0, governed=True) == pytest.approx(22.0)
    assert slow.budget(5.0, governed=True) == 0.0


def test_a_record_that_came_late_into_a_batch_waited_less():
    sparse = Service().after(shown(batches(20, 1.0, 10, every=60.0, oldest=1.5)), None, 4.0, 0.001)
    assert sparse.budget(30.0, governed=True) == 28.0


def test_without_a_limit_what_waits_becomes_one_batch():
    service = Service().after(shown(batches(20, 0.5, 10)), None, 4.0, 0.001)
    assert service.budget(30.0, governed=False) == pytest.approx(14.5)
