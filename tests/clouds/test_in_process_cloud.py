"""`InProcess`: no host is leased; the executors of the session are the hosts."""

import subprocess
from pathlib import Path

import pytest

from elastream.clouds import InProcess
from elastream.clouds.provider import ExistingSession, lacks_as_provider
from elastream.core.hosts import HostState
from elastream.documents.registry import CLOUD, made, named_in
from elastream.documents.user_code import References
from elastream.errors import CloudError
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.jvm.executors import Executors
from support.fake_session import FakeSession


def test_it_is_named_like_other_clouds(tmp_path):
    assert made(CLOUD, *named_in("in-process:cores=2", CLOUD), References(tmp_path)) == InProcess(cores=2)


def test_it_has_one_free_host_with_the_cores_of_the_session():
    (kind,) = InProcess(cores=3).types
    assert (kind.slots, kind.price, InProcess().max_hosts) == (3, 0.0, 1)


def test_fewer_than_one_core_is_refused():
    with pytest.raises(CloudError, match="cores is 0: a dataflow needs at least one"):
        InProcess(cores=0)


def test_no_hosts_of_it_can_join_a_session(tmp_path):
    with pytest.raises(CloudError, match="InProcess has no hosts that could join a session"):
        InProcess().open(tmp_path, session=ExistingSession("local[2]", 1024, 2))


def test_its_provider_asks_spark_for_nothing(tmp_path):
    session, provider = FakeSession(there={"driver": ("127.0.0.1", 2, 0, False)}), InProcess(cores=2).open(tmp_path)
    assert lacks_as_provider(provider) == ""
    provider.bind(session)
    hosts = Hosts(Executors(session), provider, lambda: 1.0, fence=session.fence, session=provider)
    hosts.look()
    (lease,) = hosts.active.values()
    assert (lease.state, lease.type.slots, lease.type.price) == (HostState.RUNNING, 2, 0.0)
    assert hosts.executor(lease.host).id == "driver"
    hosts.step(batch=1, idle=True, holds=lambda host: False)
    hosts.close()
    provider.close()
    provider.close()
    assert (session.totals, session.killed, session.fenced) == ([], [], [])


def test_the_first_run_leaves_an_archive_of_classes_to_be_made(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: commands.append(command))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for recorded in (False, True):
        folder = tmp_path / str(recorded)
        folder.mkdir()
        provider = InProcess(cores=2).open(folder)
        options = provider.terms.endpoint.java_options
        if recorded:  # what the JVM does that the run opens; one that was open already records nothing
            (option,) = (each for each in options if each.startswith("-XX:DumpLoadedClassList="))
            Path(option.partition("=")[2]).write_text("java/lang/Object\n")
        provider.close()
        provider.close()
    (command,) = commands
    assert command[1:3] == ["-m", "elastream.clouds.local.archive"]
