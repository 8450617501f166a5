"""Who owns the hosts has the last word: what the steward does with hosts that are wanted back. No Spark."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from elastream.model.action import TaskId
from elastream.model.cloud import HostState, HostType, Lease
from elastream.spark.jvm.state_partitions import Location
from elastream.spark.steward import Steward

SMALL = HostType("small", cores=0.5)


@dataclass
class Hosts:
    leases: dict[str, Lease]
    back: set[str]
    released: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    @property
    def recalled(self) -> set[str]:
        return self.back - {*self.kept, *self.released}

    def keep(self, host: str) -> None:
        self.kept.append(host)

    @property
    def usable(self) -> tuple[str, ...]:
        return tuple(name for name, lease in self.leases.items() if lease.state is HostState.RUNNING)

    def address(self, host: str) -> str:
        return f"at {host}"

    def release(self, host: str) -> None:
        self.released.append(host)
        self.leases[host] = Lease(host, SMALL, 0.0, HostState.RELEASING)


@dataclass
class Placing:
    placed: dict[TaskId, Location]
    moves: dict[TaskId, str] = field(default_factory=dict)

    def where(self) -> dict[TaskId, Location]:
        return self.placed

    def wanted(self) -> dict[TaskId, str]:
        return self.moves

    def want(self, task: TaskId, host: str) -> None:
        self.moves[task] = host


def stewarded(back: set[str], **states: HostState) -> tuple[Any, Hosts, Placing]:
    hosts = Hosts({name: Lease(name, SMALL, 0.0, state) for name, state in states.items()}, back)
    placing = Placing({TaskId("count", 0): Location("at h1", "0"), TaskId("count", 1): Location("at h2", "1")})
    steward: Any = Steward((), hosts, placing, lambda: 0.0)  # type: ignore[arg-type]
    return steward, hosts, placing


def test_a_host_that_is_wanted_back_gives_its_tasks_to_the_others_and_goes_whatever_the_policy():
    steward, hosts, placing = stewarded({"h2"}, h1=HostState.RUNNING, h2=HostState.RUNNING)
    steward._give_back()
    assert hosts.released == ["h2"]
    assert placing.moves == {TaskId("count", 1): "h1"}
    steward._give_back()
    assert hosts.released == ["h2"], "it is on its way already"
    assert not hosts.kept


@pytest.mark.parametrize("other", [HostState.STARTING, HostState.RELEASING])
def test_the_only_host_that_takes_tasks_is_kept(other):
    steward, hosts, _ = stewarded({"h1"}, h1=HostState.RUNNING, h2=other)
    steward._give_back()
    assert hosts.kept == ["h1"]
    assert not hosts.released


def test_a_host_that_still_starts_is_given_back_too():
    steward, hosts, _ = stewarded({"h2"}, h1=HostState.RUNNING, h2=HostState.STARTING)
    steward._give_back()
    assert hosts.released == ["h2"]
