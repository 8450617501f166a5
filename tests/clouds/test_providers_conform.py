"""Every provider keeps the contract of the seam."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from conformance.fake_provider import SMALL, FakeProvider
from conformance.fake_session import FakeSession
from conformance.in_process import InProcess
from conformance.provider_suite import Made, ProviderCase, provider_suite
from elastream.clouds.granted import GrantedExecutors
from elastream.clouds.host_directory import HostDirectory
from elastream.clouds.local.local import Local
from elastream.clouds.membership import Membership
from elastream.clouds.pool import Pool, PoolHosts
from elastream.clouds.provider import RunState, Terms
from elastream.model.cloud import HostType
from elastream.planning.sharing.messages import Offer
from elastream.planning.sharing.rules import ArbiterRules
from elastream.services.arbiter_node import ArbiterNode
from elastream.services.arbiter_service import arbiter_service
from elastream.services.state_log import StateLog
from waiting import wait_until

TINY = HostType("tiny", cores=0.5, slots=1, memory=700.0, start=8.0)


@contextmanager
def fake(folder: Path) -> Iterator[Made]:
    provider = FakeProvider()

    def fill(full: bool) -> None:
        provider.room = 0 if full else 10

    yield Made(provider, SMALL, lambda: None, provider.die, fill)


@contextmanager
def directory(folder: Path) -> Iterator[Made]:
    yield Made(
        HostDirectory(folder / "hosts"), SMALL, lambda: None, reopen=lambda: HostDirectory(folder / "hosts")
    )  # fmt: skip


@contextmanager
def granted_executors(folder: Path) -> Iterator[Made]:
    """Executors that come as they are requested; without room they do not."""
    session = FakeSession(obliging=100)

    def fill(full: bool) -> None:
        session.obliging = -1 if full else 100  # none comes, but those that are given back go
        session.oblige()

    terms = Terms((SMALL,), 10)
    provider = GrantedExecutors(terms, session, allowed=0, folder=folder)

    def kill(host: str) -> None:
        del session.there[provider.hosts()[host].executor]

    yield Made(
        provider,
        SMALL,
        lambda: None,
        kill,
        fill,
        reopen=lambda: GrantedExecutors(terms, session, allowed=0, folder=folder),
    )


@contextmanager
def local(folder: Path) -> Iterator[Made]:
    provider = Local(TINY, max_hosts=2).open(folder)

    def fill(full: bool) -> None:
        for name in ("other", "another"):
            if full:
                provider.lease({name: TINY})
                provider.report(RunState(ready=frozenset({name})))
            else:
                provider.release([name])

    try:
        yield Made(provider, TINY, kill=provider.cluster.kill, fill=fill)
    finally:
        provider.close()


@contextmanager
def pool(folder: Path) -> Iterator[Made]:
    """Machines of an arbiter whose service runs in this process."""
    offer = Offer(f"conformance-{os.getpid()}-{folder.name}", (TINY,), 2)
    log = StateLog(folder / "pool.journal", "pool")
    node = ArbiterNode(offer, ArbiterRules(), log, time.time, machines={"m1": "tiny", "m2": "tiny"})
    transport = InProcess(TestClient(arbiter_service(node)))
    membership = Membership(Pool("http://pool", "a").client(transport))
    provider = PoolHosts(membership, Local(TINY, max_hosts=2).open(folder / "cluster"))

    def fill(full: bool) -> None:
        # A machine that the application still holds would serve the next request.
        wait_until(lambda: not any(record.owner for record in node.state.hosts.values()) or not full)
        transport.cut = full

    try:
        yield Made(provider, TINY, kill=provider.local.cluster.kill, fill=fill)
    finally:
        transport.cut = False
        provider.close()
        log.close()


LOCAL = ProviderCase("local", local, wrong=("master", "../etc", "", "a b"), ends_with_controller=True)
POOL = ProviderCase("pool", pool, wrong=("master", "a b"), ends_with_controller=True)
TestFake = provider_suite(ProviderCase("fake", fake, wrong=("no/such",), ends_with_controller=True))
TestHostDirectory = provider_suite(ProviderCase("host directory", directory, wrong=("no/such",)))
TestGrantedExecutors = provider_suite(ProviderCase("granted executors", granted_executors, wrong=("",)))


@pytest.mark.spark
class TestLocal(provider_suite(LOCAL)):  # type: ignore[misc]
    """With real processes."""


@pytest.mark.spark
class TestPool(provider_suite(POOL)):  # type: ignore[misc]
    """With real processes, over the arbiter's own service."""
