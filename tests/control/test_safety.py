"""Back-off by itself: when an action may be tried again."""

from hypothesis import given
from hypothesis import strategies as st

from elastream.control.arbitration import BackOff
from elastream.core.action import DrainHost, LeaseHost

LEASE = LeaseHost("h2", "small")


def test_the_wait_doubles_with_each_failure_and_a_success_ends_it():
    backoff = BackOff(first=2.0)
    backoff.failed(LEASE, 10.0, "down")
    assert "tried again from 12 s on: it failed once, last: down" in backoff.refusal(LEASE, 11.9)
    assert backoff.refusal(LEASE, 12.0) == ""
    backoff.failed(LEASE, 12.0, "down")
    assert backoff.refusal(LEASE, 15.9)
    assert backoff.refusal(LEASE, 16.0) == ""
    backoff.succeeded(LEASE)
    assert backoff.refusal(LEASE, 16.0) == ""


def test_a_lease_is_known_by_its_type_and_other_actions_by_themselves():
    backoff = BackOff()
    backoff.failed(LEASE, 0.0, "down")
    backoff.failed(DrainHost("h1"), 0.0, "down")
    assert backoff.refusal(LeaseHost("h7", "small"), 1.0)
    assert not backoff.refusal(LeaseHost("h7", "big"), 1.0)
    assert not backoff.refusal(DrainHost("h2"), 1.0)


def test_failures_of_one_moment_count_once():
    backoff = BackOff(attempts=2)
    for host in ("h2", "h3", "h4"):
        backoff.failed(LeaseHost(host, "small"), 5.0, "down")
    assert "tried again" in backoff.refusal(LEASE, 5.0)


@given(st.lists(st.floats(0.5, 50), min_size=1, max_size=40))
def test_it_is_never_tried_more_often_than_the_attempts_within_a_rest(pauses):
    backoff, now, tries = BackOff(first=1.0, attempts=3, rest=100.0), 0.0, []
    for pause in pauses:
        now += pause
        if not backoff.refusal(LEASE, now):
            tries.append(now)
            backoff.failed(LEASE, now, "down")
    assert all(later >= earlier + 100.0 for earlier, later in zip(tries[2::3], tries[3::3], strict=False))
    assert all(sum(start <= at < start + 100.0 for at in tries) <= 6 for start in tries)


def test_a_vital_action_is_tried_again_within_a_minute_whatever_failed():
    backoff = BackOff()
    for attempt in range(20):
        backoff.failed(LEASE, 100.0 * attempt, "no room")
    last = 1900.0
    assert "given up" in backoff.refusal(LEASE, last + 63.0, vital=True)
    assert not backoff.refusal(LEASE, last + 64.0, vital=True)
    assert "given up" in backoff.refusal(LEASE, last + 599.0)
