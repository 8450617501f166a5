"""Every provider keeps the contract of the seam."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import elastream
from conformance.provider_suite import Made, ProviderCase, provider_suite
from elastream.clouds.executors import ExecutorProvider
from elastream.clouds.host_directory import HostDirectory
from elastream.clouds.local.hosts import LocalHosts
from elastream.clouds.local.local import Local
from elastream.clouds.pool import Membership, Pool, PoolHosts
from elastream.clouds.provider import ProviderOffer, RunState
from elastream.core.hosts import HostType
from elastream.pool.arbiter import ArbiterNode
from elastream.pool.service import arbiter_service
from elastream.pool.state_log import StateLog
from elastream.sharing.messages import Offer
from elastream.sharing.rules import ArbiterRules
from support.arbiter_server import machines_at_a_port
from support.clusters import PROGRAMS
from support.fake_provider import SMALL, FakeProvider
from support.fake_session import FakeSession
from support.http_in_process import InProcess
from support.marked_processes import a_mark, marked
from support.waiting import ended, wait_until

TINY = HostType("tiny", cores=0.5, slots=1, memory=700.0, start=8.0)


@contextmanager
def fake(folder: Path) -> Iterator[Made]:
    provider = FakeProvider()

    def fill(full: bool) -> None:
        provider.room = 0 if full else 10

    yield Made(provider, SMALL, lambda: None, provider.die, fill, lambda: len(provider.up))


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

    terms = ProviderOffer((SMALL,), 10)
    provider = ExecutorProvider(terms, session, allowed=0, folder=folder)

    def kill(host: str) -> None:
        del session.there[provider.hosts()[host].executor]

    yield Made(
        provider,
        SMALL,
        lambda: None,
        kill,
        fill,
        lambda: len(session.there),
        reopen=lambda: ExecutorProvider(terms, session, allowed=0, folder=folder),
    )


def alive(hosts: LocalHosts) -> Callable[[], int]:
    """How many workers live."""
    return lambda: sum(state["alive"] for state in hosts.cluster.status().values())


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
        yield Made(provider, TINY, kill=provider.cluster.kill, fill=fill, running=alive(provider))
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
        yield Made(provider, TINY, kill=provider.local.cluster.kill, fill=fill, running=alive(provider.local))
    finally:
        transport.cut = False
        provider.close()
        log.close()


def after_a_kill(cloud: Callable[[Path], AbstractContextManager[Mapping[str, Any]]]) -> Callable[[Path], Any]:
    """`killed` of a case. cloud: the words of a cloud for `killed_controller.py`, while what that cloud needs is there."""

    @contextmanager
    def kill(folder: Path) -> Iterator[Made]:
        with cloud(folder) as about:
            mark, place = a_mark(), folder / "cluster"
            command = [sys.executable, str(PROGRAMS / "killed_controller.py"), json.dumps(about), str(place)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            first = subprocess.Popen(command, **pipes, env={**os.environ, **mark}, start_new_session=True)
            _, said = ended(first, progress=lambda: len(marked(mark)))
            assert first.returncode == -signal.SIGKILL, said
            named = dict(about)
            leases = getattr(elastream, named.pop("is"))(**named)
            provider = leases.open(place)
            try:
                yield Made(provider, leases.types[0])
                wait_until(lambda: not marked(mark), otherwise=lambda: marked(mark))
            finally:
                provider.close()

    return kill


def of_local(folder: Path) -> AbstractContextManager[Mapping[str, Any]]:
    return nullcontext({"is": "Local", "cores_each": 0.5, "max_hosts": 2})


@contextmanager
def of_a_pool(folder: Path) -> Iterator[Mapping[str, Any]]:
    """An arbiter at a port, with one machine: the next controller gets that one, or none."""
    with machines_at_a_port(folder, TINY, machines=1) as (_, about):
        yield {**about, "application": "a"}


LOCAL = ProviderCase(
    "local", local, wrong=("master", "../etc", "", "a b"), ends_when_closed=True, killed=after_a_kill(of_local)
)
POOL = ProviderCase("pool", pool, wrong=("master", "a b"), ends_when_closed=True, killed=after_a_kill(of_a_pool))
TestFake = provider_suite(ProviderCase("fake", fake, wrong=("no/such",), ends_when_closed=True))
TestHostDirectory = provider_suite(ProviderCase("host directory", directory, wrong=("no/such",)))
TestGrantedExecutors = provider_suite(ProviderCase("granted executors", granted_executors, wrong=("",)))


@pytest.mark.slow
@pytest.mark.spark
class TestLocal(provider_suite(LOCAL)):  # type: ignore[misc]
    """With real processes."""


@pytest.mark.slow
@pytest.mark.spark
class TestPool(provider_suite(POOL)):  # type: ignore[misc]
    """With real processes, over the arbiter's own service."""
