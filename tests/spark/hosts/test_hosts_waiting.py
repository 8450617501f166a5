"""Hosts that wait for a provider to have room; no Spark."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from elastream.model.cloud import HostState, HostType, Lease
from elastream.model.errors import CloudError
from elastream.spark.hosts.leased import ROOM_LIMIT, Hosts

SMALL = HostType("small", cores=0.5)


class NoExecutors:
    """A session that no executor registers with."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: object) -> Any:
        return self

    def size(self) -> int:
        return 0


class Provider:
    def __init__(self) -> None:
        self.places = 0
        self.asked: list[tuple[str, ...]] = []
        self.refuses = False

    def room(self, waiting: Mapping[str, HostType], starting: int) -> Sequence[str]:
        self.asked.append(tuple(waiting))
        return list(waiting)[: self.places]

    def lease(self, host: str, type: HostType) -> None:
        if self.refuses:
            raise CloudError("no more")
        self.places -= 1

    def alive(self, host: str) -> bool:
        return True

    def address(self, host: str) -> str:
        return host

    def terminate(self, host: str) -> None:
        pass


class Time:
    now = 0.0


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def hosts(provider: Provider) -> Hosts:
    Time.now = 0.0
    hosts: Any = Hosts(NoExecutors(), provider, lambda: Time.now, Path("."))  # type: ignore[arg-type]
    return hosts


def step(hosts: Hosts, now: float) -> dict[str, str]:
    Time.now = now
    hosts.step(batch=0, idle=True, holds=lambda host: False)
    return {name: lease.state.value for name, lease in hosts.leases.items()}


def works(hosts: Hosts, host: str) -> None:
    """A host that takes tasks, however it came about."""
    hosts.adopt(host, SMALL, 0.0, spawned=True)
    hosts._leases[host] = Lease(host, SMALL, 0.0, HostState.RUNNING)


def test_a_host_waits_and_starts_once_there_is_room(hosts, provider):
    hosts.lease("h1", SMALL)
    assert step(hosts, 10.0) == {"h1": "requested"}
    provider.places = 1
    assert step(hosts, 11.0) == {"h1": "starting"}


def test_a_provider_hears_of_all_who_wait_and_when_nobody_does_any_more(hosts, provider):
    hosts.lease("h1", SMALL)
    hosts.lease("h2", SMALL)
    hosts.release("h1")
    step(hosts, 1.0)
    hosts.release("h2")
    step(hosts, 2.0)
    assert provider.asked[-3:] == [("h1", "h2"), ("h2",), ()]


def test_the_first_host_waits_as_long_as_it_takes(hosts):
    hosts.lease("h1", SMALL)
    assert step(hosts, 100 * ROOM_LIMIT) == {"h1": "requested"}


def test_a_further_host_is_given_up_after_a_while_in_which_nothing_started(hosts):
    works(hosts, "h1")
    hosts.lease("h2", SMALL)
    assert step(hosts, ROOM_LIMIT)["h2"] == "requested"
    assert step(hosts, ROOM_LIMIT + 1.0)["h2"] == "released"


def test_a_host_whose_turn_has_not_come_is_not_given_up(hosts, provider):
    works(hosts, "h1")
    provider.places = 1
    hosts.lease("h2", SMALL)
    hosts.lease("h3", SMALL)
    for now in range(0, 80, 10):
        assert step(hosts, float(now)) == {"h1": "running", "h2": "starting", "h3": "requested"}


def test_what_the_provider_refuses_is_told_to_who_asked_and_lost(hosts, provider):
    provider.places, provider.refuses = 1, True
    with pytest.raises(CloudError, match="no more"):
        hosts.lease("h1", SMALL)
    assert hosts.leases["h1"].state is HostState.LOST
