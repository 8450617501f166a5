"""Executors granted by a cluster manager: requests, refusals, losses, restarts; the session is a fake."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.clouds.executors import LOSS_REPORT_TIMEOUT_S, RECORD_FILE, ExecutorProvider
from elastream.clouds.provider import EDGES, UNLIMITED, PendingReason, Phase, ProviderOffer, RunState
from elastream.core.hosts import HostType
from elastream.errors import CloudError
from support.fake_session import FakeSession

TYPE = HostType("executor", cores=2, slots=2, price=0.3)


def granted(session, folder=None, **given):
    return ExecutorProvider(ProviderOffer((TYPE,), 20), session, **{"allowed": 0, "folder": folder, **given})


def phases(provider):
    return {name: status.phase for name, status in provider.hosts().items()}


def test_executor_that_its_cluster_takes_away_is_recalled():
    session = FakeSession(obliging=5)
    provider = granted(session)
    provider.lease({"h1": TYPE, "h2": TYPE})
    executor = provider.hosts()["h2"].executor
    session.taken = {executor: (1130.0, "its node is being decommissioned")}
    hosts = provider.hosts()
    assert [name for name, each in hosts.items() if each.recalled] == ["h2"]
    assert hosts["h2"].deadline == 1130.0
    provider.report(RunState(holding=frozenset({"h2", "unknown"})))
    assert session.protected == {executor}
    provider.close()
    assert session.protected == set(), "nobody would take the mark off later"


class TestWaiting:
    def test_pending_request_says_what_the_cluster_says(self):
        session = FakeSession(says=PendingReason("queue 'etl' is full", refused=True))
        provider = granted(session)
        provider.lease({"h1": TYPE})
        status = provider.hosts()["h1"]
        assert status.phase is Phase.REQUESTED
        assert status.reason == "no executor has registered for it yet: queue 'etl' is full"
        assert status.refused

    def test_request_that_is_never_granted_is_gone_with_the_reason(self):
        session = FakeSession(says=PendingReason("namespace 'etl' does not exist", refused=True, never=True))
        provider = granted(session)
        provider.lease({"h1": TYPE})
        status = provider.hosts()["h1"]
        assert (status.phase, status.reason) == (Phase.GONE, "namespace 'etl' does not exist")
        assert session.totals == [1, 0]

    def test_granted_executor_starts_and_never_waits_again(self):
        session = FakeSession(says=PendingReason(starting=1))
        provider = granted(session)
        provider.lease({"h1": TYPE, "h2": TYPE})
        assert phases(provider) == {"h1": Phase.STARTING, "h2": Phase.REQUESTED}
        session.says = PendingReason("no room")
        assert phases(provider)["h1"] is Phase.STARTING

    def test_hosts_leased_before_a_session_are_requested_once_it_opens(self):
        session = FakeSession(obliging=5)
        provider = granted(None, allowed=1, alone=True)
        provider.lease({"h1": TYPE, "h2": TYPE})
        assert phases(provider) == {"h1": Phase.REQUESTED, "h2": Phase.REQUESTED}
        provider.bind(session)
        assert session.totals == [2]
        assert set(phases(provider).values()) == {Phase.UP}

    def test_another_type_than_is_offered_is_refused_with_nothing_leased(self):
        session = FakeSession()
        provider = granted(session)
        with pytest.raises(CloudError, match="executors here are of type executor, not 'large'"):
            provider.lease({"h1": TYPE, "h2": HostType("large", cores=8)})
        assert session.totals == []


class TestLost:
    def test_lost_executor_has_sparks_reason_and_is_not_replaced(self):
        session = FakeSession(obliging=5, ended={"101": "Container preempted"})
        provider = granted(session)
        provider.lease({"h1": TYPE, "h2": TYPE})
        assert set(phases(provider).values()) == {Phase.UP}
        del session.there["101"]
        assert provider.hosts()["h1"].reason == "executor 101 is gone: Container preempted"
        assert session.totals[-1] == 1

    def test_executor_that_nobody_requested_is_given_back(self):
        session = FakeSession(obliging=1)
        provider = granted(session, alone=True)
        provider.lease({"h1": TYPE})
        provider.hosts()
        session.there["7"] = ("10.2.0.7", 2, 0, False)
        assert set(provider.hosts()) == {"h1"}
        assert session.killed == ["7"]
        session.there["7"] = ("10.2.0.7", 2, 0, False)  # until the session has heard of its end
        provider.hosts()
        assert session.killed == ["7"]

    def test_replacements_before_a_loss_is_reported_are_given_back_once(self):
        """A pod was preempted; Spark told of it 30 to 60 s later, and for as long gave a new one for each given back."""
        now = [0.0]
        session = FakeSession(obliging=1)
        provider = granted(session, alone=True, clock=lambda: now[0])
        provider.lease({"h1": TYPE})
        provider.hosts()
        for executor in "234":
            session.there[executor] = ("10.2.0.7", 2, 0, False)
            provider.hosts()
            session.there.pop(executor if executor in session.killed else "", None)
            now[0] += 3.0
        assert session.killed == ["2"]
        assert session.fenced == ["3", "4"], "each gets no task from when it is seen"
        del session.there["101"]
        assert phases(provider) == {"h1": Phase.GONE}
        assert session.totals[-1] == 0
        session.obliging = 2
        provider.lease({"h2": TYPE})
        provider.hosts()
        assert provider.hosts()["h2"].executor not in ("", "3", "4"), "those get no task any more"
        assert session.killed == ["2", "3", "4"]

    def test_executors_of_withdrawn_requests_go_at_once(self):
        session = FakeSession()
        provider = granted(session, alone=True)
        provider.lease({f"h{number}": TYPE for number in range(3)})
        provider.release([f"h{number}" for number in range(3)])
        for executor in "123":  # granted before, registered one after the other
            session.there[executor] = ("10.2.0.7", 2, 0, False)
            provider.hosts()
        assert session.killed == ["1", "2", "3"]

    def test_executor_that_nobody_requested_goes_after_two_minutes(self):
        now = [0.0]
        session = FakeSession(obliging=1)
        provider = granted(session, alone=True, clock=lambda: now[0])
        provider.lease({"h1": TYPE})
        for executor in ("2", "3", "4"):
            session.there[executor] = ("10.2.0.7", 2, 0, False)
            provider.hosts()
        assert session.killed == ["2"]
        now[0] += LOSS_REPORT_TIMEOUT_S
        provider.hosts()
        assert session.killed == ["2", "3", "4"]

    def test_executor_on_a_returned_worker_takes_no_request_of_others(self):
        session = FakeSession({"0": ("10.0.0.1", 2, 0, False)})
        provider = granted(session, allowed=UNLIMITED)
        provider.adopt("h1", "0", TYPE)
        provider.release(["h1"])
        provider.count_others(1)  # a host of another provider starts
        assert session.totals[-1] == 1
        del session.there["0"]
        provider.hosts()
        session.there["1"] = ("10.0.0.1", 2, 0, False)  # what was requested for it is on the worker of the first
        provider.adopt("h3", "1", TYPE)
        assert session.totals[-1] == 2

    def test_in_a_users_session_it_is_the_users(self):
        session = FakeSession(obliging=1)
        provider = granted(session)
        session.there["7"] = ("10.2.0.7", 2, 0, False)
        assert provider.hosts() == {}
        assert session.killed == []

    def test_an_executor_on_another_machine_is_refused_where_folders_are_local(self):
        session = FakeSession(obliging=1)
        provider = granted(session, alone=True, unusable_reason=lambda address: f"{address} is elsewhere")
        provider.lease({"h1": TYPE})
        status = provider.hosts()["h1"]
        assert (status.phase, status.reason) == (Phase.GONE, "10.2.0.101 is elsewhere")
        assert session.killed == ["101"]
        assert session.totals[-1] == 0


class TestClosing:
    def test_what_was_leased_is_given_back_and_what_was_found_stays(self):
        session = FakeSession({"0": ("10.2.0.1", 2, 0, False)}, obliging=5)
        provider = granted(session, allowed=1, ends_with_provider=True)
        provider.adopt("h1", "0", TYPE)
        provider.lease({"h2": TYPE})
        provider.hosts()
        provider.close()
        assert session.killed == ["101"]
        assert session.totals == [2, 1]

    def test_a_session_that_could_have_all_of_the_cluster_keeps_what_remains(self):
        session = FakeSession({"0": ("10.2.0.1", 2, 0, False), "1": ("10.2.0.2", 2, 0, False)}, obliging=5)
        provider = granted(session, allowed=UNLIMITED, ends_with_provider=True)
        provider.adopt("h1", "0", TYPE)
        provider.lease({"h2": TYPE})
        assert provider.hosts()["h2"].executor == "1"
        provider.close()
        assert (session.killed, session.totals) == (["1"], [2, 1])

    def test_a_lease_is_requested_from_a_session_that_seems_unlimited(self):
        """Somebody may have lowered Spark's total; then a cluster with free workers starts nothing by itself."""
        session = FakeSession({"0": ("10.2.0.1", 2, 0, False)}, obliging=5)
        provider = granted(session, allowed=UNLIMITED)
        provider.adopt("h1", "0", TYPE)
        assert session.totals == [], "nothing changes before a lease"
        provider.lease({"h2": TYPE})
        assert session.totals == [2]
        assert provider.hosts()["h2"].phase is Phase.UP


class TestRestart:
    def test_another_application_adopts_nothing(self, tmp_path):
        granted(FakeSession(obliging=2), tmp_path).lease({"h1": TYPE})
        assert granted(FakeSession(application="app-2"), tmp_path).hosts() == {}

    def test_next_driver_of_a_run_ends_the_application_of_a_killed_one(self, tmp_path):
        first, second = FakeSession(), FakeSession(application="app-2")
        for session in (first, second, second):
            provider = granted(None, tmp_path, alone=True)
            provider.lease({"h1": TYPE})
            provider.bind(session)
        assert (first.buried, second.buried) == ([], ["app-1"])

    def test_an_application_that_is_not_ours_is_left_alone(self, tmp_path):
        granted(FakeSession(), tmp_path).lease({"h1": TYPE})
        session = FakeSession(application="app-2")
        granted(session, tmp_path)
        assert session.buried == []

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", '{"application": "app-1"}', json.dumps({"application": "app-1", "hosts": 3})]
    )
    def test_a_damaged_file_is_a_warning(self, text, tmp_path, caplog):
        (tmp_path / RECORD_FILE).write_text(text)
        assert granted(FakeSession(), tmp_path).hosts() == {}
        assert "cannot be read" in caplog.text


STEPS = st.lists(
    st.tuples(st.sampled_from(["lease", "release", "grant", "die", "look", "restart"]), st.integers(0, 5)), max_size=40
)


@given(STEPS, st.booleans())
def test_spark_may_always_have_just_what_is_leased_and_phases_go_forwards(tmp_path_factory, steps, alone):
    """Whatever is leased, released, granted, killed and restarted in whatever order."""
    folder = tmp_path_factory.mktemp("granted")
    session = FakeSession()
    provider = granted(session, folder, alone=alone)
    before: dict[str, Phase] = {}
    number = 0
    for step, which in steps:
        host, total = f"h{which}", session.totals[-1] if session.totals else 0
        match step:
            case "lease":
                provider.lease({host: TYPE})
            case "release":
                provider.release([host])
            case "grant" if len(session.there) < total:
                number += 1
                session.there[str(number)] = (f"10.2.1.{number}", 2, 0, False)
            case "die" if session.there:
                del session.there[sorted(session.there)[which % len(session.there)]]
            case "restart":
                provider = granted(session, folder, alone=alone)
        for executor in session.killed:
            session.there.pop(executor, None)
        listed = provider.hosts()
        for name, status in listed.items():
            if name in before:
                assert status.phase in reachable(before[name])
        before = {name: status.phase for name, status in listed.items()}
        wanted = sum(phase in (Phase.REQUESTED, Phase.STARTING, Phase.UP) for phase in before.values())
        assert (session.totals[-1] if session.totals else 0) == wanted
        bound = [status.executor for status in listed.values() if status.executor]
        assert len(set(bound)) == len(bound)


def reachable(phase):
    found = {phase}
    while further := {after for each in found for after in EDGES[each]} - found:
        found |= further
    return found | {Phase.REQUESTED} if phase in (Phase.ENDING, Phase.GONE) else found
