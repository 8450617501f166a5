"""The wait for a run's first hosts: what fails now and then, and what fails for good."""

from types import SimpleNamespace

import pytest

from elastream.core.hosts import Lease
from elastream.errors import CloudError, EnvironmentProblem, HostsGone
from elastream.recording.lease_log import LeaseLog
from elastream.recording.lines import JournalProblem
from elastream.spark import start
from elastream.spark.hosts.first_hosts import lease_first_hosts, retry
from support.fake_provider import SMALL, FakeProvider

FULL = JournalProblem("leases.jsonl cannot be written: No space left on device")


def failing(*errors):
    """What raises these errors, one a call, and then returns."""
    left = iter(errors)

    def do():
        for error in left:
            raise error
        return "done"

    return do


def test_what_fails_now_and_then_is_retried_and_warned_of_once(caplog):
    do = failing(RuntimeError("try again"), ConnectionError("reset"), FULL)
    assert retry(do, "the first hosts cannot be looked at", pause=0.0) == "done"
    assert [record.getMessage() for record in caplog.records] == [
        "the first hosts cannot be looked at: RuntimeError: try again"
    ]


@pytest.mark.parametrize(
    ("error", "said"), [(RuntimeError("no such thing"), "RuntimeError: no such thing$"), (FULL, "No space left on device$")]
)
def test_what_fails_for_good_is_one_sentence(error, said):
    with pytest.raises(EnvironmentProblem, match=f"^the first hosts cannot be looked at: .*{said}"):
        retry(failing(error), "the first hosts cannot be looked at", seconds=0.0)


@pytest.mark.parametrize("answer", [CloudError("no rights"), HostsGone("all gone")])
def test_an_answer_of_the_provider_is_raised_at_once(answer):
    with pytest.raises(type(answer), match=str(answer)):
        retry(failing(answer), "the first hosts cannot be looked at")


def test_first_hosts_are_requested_again_where_that_failed(tmp_path):
    provider, once = FakeProvider((SMALL,)), failing(RuntimeError("try again"))

    def lease(hosts):
        once()
        FakeProvider.lease(provider, hosts)

    provider.lease = lease
    first = lease_first_hosts(LeaseLog(tmp_path / "leases.jsonl"), provider, None, 0.0).first
    assert provider.hosts().keys() == first.keys() == LeaseLog(tmp_path / "leases.jsonl").earlier.keys()


def test_the_wait_for_the_first_host_is_shown_with_its_reason():
    looks = iter([(), ("h1",)])
    hosts = SimpleNamespace(
        leases={"h1": (lease := Lease("h1", SMALL, 0.0))},
        active={"h1": lease},
        usable=(),
        reason=lambda host: "no room",
        step=lambda **given: None,
        look=lambda: setattr(hosts, "usable", next(looks)),
    )
    texts = []
    start._await_first(hosts, 1, texts.append)
    assert texts == ["host h1 is requested, no room"]
