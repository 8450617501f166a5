"""The wait for a run's first hosts: what fails now and then, and what fails for good."""

import errno
import os

import pytest

from elastream.core.hosts import Lease
from elastream.errors import CloudError, EnvironmentProblem, HostsGone
from elastream.recording import lines
from elastream.recording.lease_log import LeaseLog
from elastream.spark import start
from elastream.spark.hosts import first_hosts
from elastream.spark.hosts.first_hosts import lease_first_hosts
from support.fake_provider import SMALL, FakeProvider


class FirstHosts:
    """Hosts of which one takes tasks after `looks` looks; each look raises the next of `errors`, None for none."""

    def __init__(self, looks, *errors):
        self.looks, self.errors = looks, list(errors)
        self.leases = self.active = {"h1": Lease("h1", SMALL, 0.0)}

    @property
    def usable(self):
        return ("h1",) if self.looks <= 0 else ()

    def reason(self, host):
        return "no room"

    def look(self):
        self.looks -= 1
        error = self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]
        if error is not None:
            raise error

    def step(self, **_):
        pass


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(start, "STEP_S", 0.0)
    monkeypatch.setattr(first_hosts, "RETRY_PAUSE_S", 0.0)


def test_a_provider_that_fails_now_and_then_ends_no_start(caplog):
    hosts = FirstHosts(4, RuntimeError("try again"), ConnectionError("reset"), None)
    start._await_first(hosts, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "the first hosts cannot be looked at: RuntimeError: try again"
    ]


def test_one_that_fails_for_good_is_one_sentence(monkeypatch):
    monkeypatch.setattr(first_hosts, "START_RETRY_S", 0.0)
    with pytest.raises(EnvironmentProblem, match=r"^the first hosts cannot be looked at: RuntimeError: no such thing$"):
        start._await_first(FirstHosts(9, RuntimeError("no such thing")), 1)
    with pytest.raises(CloudError, match=r"^no rights$"):
        start._await_first(FirstHosts(9, CloudError("no rights")), 1)


def test_a_disk_that_is_full_for_a_moment_ends_no_start(tmp_path, monkeypatch):
    ledger, provider = LeaseLog(tmp_path / "leases.jsonl"), FakeProvider((SMALL,))
    full, as_it_is = iter([True, True]), lines.WRITE

    def write(*given):
        if next(full, False):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return as_it_is(*given)

    monkeypatch.setattr(lines, "WRITE", write)
    first = lease_first_hosts(ledger, provider, None, 0.0).first
    ledger.close()
    assert provider.hosts().keys() == first.keys() == LeaseLog(tmp_path / "leases.jsonl").earlier.keys()


def test_one_that_stays_full_is_one_sentence(tmp_path, monkeypatch):
    def write(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ledger = LeaseLog(tmp_path / "leases.jsonl")
    monkeypatch.setattr(lines, "WRITE", write)
    monkeypatch.setattr(first_hosts, "START_RETRY_S", 0.0)
    with pytest.raises(EnvironmentProblem, match=r"leases.jsonl cannot be written: No space left on device$"):
        lease_first_hosts(ledger, FakeProvider((SMALL,)), None, 0.0)


def test_the_wait_for_the_first_host_is_shown_with_its_reason():
    texts = []
    start._await_first(FirstHosts(2, None), 1, texts.append)
    assert texts == ["host h1 is requested, no room"]


def test_where_the_hosts_are_gone_nothing_is_tried_again():
    with pytest.raises(HostsGone):
        start._await_first(FirstHosts(9, HostsGone("all gone")), 1)


def test_first_hosts_are_requested_again_where_that_failed(tmp_path):
    provider, lease = FakeProvider((SMALL,)), FakeProvider.lease
    errors = [RuntimeError("try again"), RuntimeError("and again")]

    def failing(hosts):
        if errors:
            raise errors.pop()
        lease(provider, hosts)

    provider.lease = failing
    first = lease_first_hosts(LeaseLog(tmp_path / "leases.jsonl"), provider, None, 0.0).first
    assert provider.hosts().keys() == first.keys()
    assert not errors
