"""Members of an arbiter over HTTP, with stand-ins for applications: no Spark; a network only where the command is."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from elastream.cli import app as command
from elastream.clouds.pool import Membership, Pool
from elastream.core.alarm import Alarms
from elastream.core.hosts import Billing, HostType
from elastream.errors import CloudError, ElastreamError, EnvironmentProblem
from elastream.pool.arbiter import ArbiterNode
from elastream.pool.service import arbiter_service
from elastream.pool.state_log import StateLog
from elastream.sharing.messages import Offer
from elastream.sharing.rules import ArbiterRules
from support.http_in_process import InProcess
from support.waiting import ended, wait_until

COMMAND = Path(sys.executable).with_name("elastream")
SMALL = HostType("small", cores=0.5, memory=1000, price=1.0, billing=Billing(30.0))
RULES = ArbiterRules(patience=20.0, silence=15.0, settle=0.0)


RIGHT = "the token of the pool"
PROGRAM = """
from elastream import Dataflow, run
from elastream.clouds import Pool
from elastream.io import collect, records
from elastream.policies import Static

flow = Dataflow("words")
lines = flow.source(records([{{"value": "a"}}], "value string"))
lines.key_by("value").count().sink(collect("out"))
run(flow, policy=Static(hosts=1), cloud=Pool(*{pool}, token={token!r}))
"""


class Time:
    now = 1000.0


class StandIn:
    """An application: hosts that live and die as it is told, on the machines of its membership."""

    def __init__(
        self, world: "World", name: str, priority: float = 1.0, minimum: int = 1, kept: Path | None = None
    ) -> None:
        self.transport = InProcess(world.service)
        link = Pool("http://localhost", name, priority, minimum, world.token).client(self.transport, kept)
        self.member = Membership(link)
        self.member._occupied = lambda: self.running
        self.member._evict = self.evicted
        self.running: set[str] = set()
        self.waiting: dict[str, HostType] = {}
        self.lost: list[str] = []
        self.kept: set[str] = set()

    def wants(self, *hosts: str) -> None:
        """Hosts that wait for a machine."""
        self.waiting = dict.fromkeys(hosts, SMALL)

    def beat(self) -> None:
        """One claim, and what follows from its answer: hosts that were recalled go at once."""
        self.place()
        self.member.beat()
        self.running -= set(self.member.recalled()) - self.kept

    def place(self) -> list[str]:
        """Start hosts for which there is a machine."""
        placed = self.member.place(self.waiting, lambda host, kind: self.running.add(host))
        for host in placed:
            del self.waiting[host]
        return placed

    def keep(self, *hosts: str) -> None:
        """Leave these not, though they are recalled."""
        self.kept = set(hosts)
        self.member.report(hosts, critical=False)

    def evicted(self, host: str) -> None:
        self.lost.append(host)
        self.running.discard(host)

    def end(self) -> None:
        """As if its process had been killed: the kernel takes the locks back, nobody tells the pool."""
        for lock in self.member._locks.values():
            lock.close()


class World:
    def __init__(self, journal: Path, token: str | None = None) -> None:
        self.journal, self.token = journal, token
        self.time = Time()
        self.apps: list[StandIn] = []
        self.offer = Offer(f"test-{os.getpid()}-{journal.parent.name}", (SMALL,), 3)
        self.start()

    def start(self) -> None:
        self.log = StateLog(self.journal, "pool")
        machines = dict.fromkeys(("m1", "m2", "m3"), "small")
        self.node = ArbiterNode(self.offer, RULES, self.log, lambda: self.time.now, machines=machines)
        self.service = TestClient(arbiter_service(self.node, self.token), raise_server_exceptions=False)

    def restart(self, lose: bool = False) -> None:
        self.log.close()
        if lose:
            self.journal.unlink()
        self.start()
        for app in self.apps:
            app.transport.service = self.service

    def join(self, name: str, priority: float = 1.0, minimum: int = 1, kept: Path | None = None) -> StandIn:
        app = StandIn(self, name, priority, minimum, kept)
        self.apps.append(app)
        return app

    def beats(self, times: int = 4) -> None:
        for _ in range(times):
            self.time.now += 1.0
            for app in self.apps:
                app.beat()
            self.node.round()


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    world = World(tmp_path / "pool.journal")
    yield world
    for app in world.apps:
        app.end()
    world.log.close()


def test_a_machine_is_not_used_any_more_once_it_is_being_given_back(world):
    app = world.join("a")
    app.wants("h1")
    app.place()
    app.member.beat()
    app.wants()
    app.place()
    app.transport.cut = True
    with pytest.raises(EnvironmentProblem):
        app.member.beat()
    app.wants("h2")
    assert app.place() == [], "it was said to be given back, and the pool may have heard that"


def test_machines_change_applications_and_never_have_two(world):
    a, b = world.join("a", priority=2.0), world.join("b")
    a.wants("h1", "h2", "h3")
    world.beats(6)
    assert len(a.running) == 3
    b.wants("h1", "h2")
    world.beats(6)
    assert (len(a.running), len(b.running)) == (2, 1)
    a.running.clear()
    world.beats(6)
    assert len(b.running) == 2
    owners = [machine.owner for machine in world.node.state.hosts.values()]
    assert sorted(owners) == ["", "b", "b"]


def test_a_host_that_cannot_be_spared_is_kept_and_the_pool_hears_so(world):
    a = world.join("a", minimum=1)
    a.wants("h1", "h2", "h3")
    world.beats(6)
    b = world.join("b")
    b.wants("h1")
    world.time.now += 1.0
    for app in (a, b):
        app.place()
        app.member.beat()
    world.node.round()
    a.member.beat()
    (wanted,) = a.member.recalled()
    a.keep(wanted)
    a.member.beat()
    a.member.beat()
    assert wanted in a.running
    assert len(world.node.state.applications["a"].hosts) == 3


def test_what_was_granted_stays_granted_while_the_pool_cannot_be_heard(world):
    a = world.join("a")
    a.wants("h1")
    world.beats()
    a.transport.cut = True
    for _ in range(3):
        with pytest.raises(EnvironmentProblem, match="no pool answers at http://localhost"):
            a.beat()
    assert a.running == {"h1"}
    assert not a.lost


def test_a_pool_that_starts_again_knows_who_holds_what(world):
    a, b = world.join("a"), world.join("b", priority=2.0)
    a.wants("h1")
    b.wants("h1", "h2")
    world.beats()
    before = world.node.state
    world.restart()
    assert world.node.state.hosts == before.hosts
    world.beats()
    assert (a.running, b.running) == ({"h1"}, {"h1", "h2"})
    assert not a.lost + b.lost
    assert world.node.state.leases == before.leases


def test_a_pool_without_its_journal_takes_no_machine_in_use(world):
    a, b = world.join("a"), world.join("b")
    a.wants("h1", "h2")
    b.wants("h1")
    world.beats()
    world.restart(lose=True)
    world.beats()
    assert (a.running, b.running) == ({"h1", "h2"}, {"h1"})
    assert not a.lost + b.lost
    assert len(world.node.state.applications["a"].hosts) == 2


def test_an_application_that_dies_gives_its_machines_to_those_who_wait(world):
    a, b = world.join("a"), world.join("b")
    a.wants("h1", "h2")
    b.wants("h1")
    world.beats()
    world.apps.remove(a)
    a.end()
    b.wants("h2", "h3")
    world.beats(20)
    assert b.running == {"h1", "h2", "h3"}


def test_a_machine_is_reused_only_once_its_silent_user_has_left_it(world):
    a = world.join("a")
    a.wants("h1", "h2", "h3")
    world.beats()
    b = world.join("b")
    world.time.now += RULES.silence + 1.0
    b.wants("h1")
    world.apps = [b]
    world.beats(3)
    assert world.node.state.applications["b"].hosts
    assert not b.running, "the kernel has given the lock to the process that still lives"
    # It is heard again, as a new member, and loses what is another's now.
    world.apps = [b, a]
    world.beats(4)
    assert len(a.lost) == 1
    assert b.running == {"h1"}
    assert len(a.running) == 2


class TestOneThatGoesOnAfterOneThatWasKilled:
    def test_has_the_machines_at_once_with_the_key_of_that_one(self, world, tmp_path):
        key = tmp_path / "pool.key"
        killed, other = world.join("a", kept=key), world.join("b")
        killed.wants("h1", "h2")
        world.beats()
        killed.end()
        world.apps.remove(killed)
        after = world.join("a", kept=key)
        assert not any(record.owner == "a" for record in world.node.state.hosts.values())
        after.wants("h1", "h2")
        other.wants("h3")
        world.beats()
        assert (after.running, other.running) == ({"h1", "h2"}, {"h3"})

    @pytest.mark.parametrize("kept", ["", "of another"])
    def test_is_refused_without_it(self, world, tmp_path, kept):
        key = tmp_path / "pool.key"
        key.write_text(kept)
        world.join("a", kept=tmp_path / "another.key")
        with pytest.raises(CloudError, match="an application called 'a' is a member already"):
            world.join("a", kept=key)
        assert key.read_text() == kept

    def test_ends_the_membership_of_that_one_should_it_still_live(self, world, tmp_path):
        key = tmp_path / "pool.key"
        lives, after = world.join("a", kept=key), world.join("a", kept=key)
        after.member.beat()
        with pytest.raises(CloudError, match="an application called 'a' is a member already"):
            lives.member.beat()

    def test_finds_no_key_after_one_that_left_and_only_its_owner_may_read_it(self, world, tmp_path):
        key = tmp_path / "pool.key"
        app = world.join("a", kept=key)
        assert key.stat().st_mode & 0o777 == 0o600
        world.apps.remove(app)
        app.member.close()
        assert not key.exists()


def test_the_bill_is_shared_and_every_member_hears_its_part(world):
    a = world.join("a")
    a.wants("h1")
    world.beats(2)
    world.time.now += 14.0
    world.beats(2)
    world.time.now += 25.0
    a.beat()
    assert a.member.amount_due() == pytest.approx(2.0)
    assert world.node.bill() == pytest.approx({"a": 2.0})


def test_an_old_journal_with_all_ended_leases_is_converted_once(world):
    lease = {"host": "m1", "kind": "small", "since": 100.0, "until": 150.0, "spells": [["a", 100.0, 150.0]]}
    world.log.commit({"ended": {"0": lease}, "settled": {"a": 3.0}})
    for _ in range(2):
        world.restart()
        world.node.round()
        assert world.node.bill() == {"a": 5.0}
    world.log.close()
    assert StateLog(world.journal, "pool").read["ended"] == {}


def test_machines_of_an_arbiter_with_a_long_name_can_be_locked(world):
    """A lock is a socket, whose name the kernel keeps short."""
    world.offer = replace(world.offer, name="p" * 100)
    world.restart()
    app = world.join("a")
    app.wants("h1")
    world.beats()
    assert app.running == {"h1"}


def test_machines_that_are_held_and_not_used_yet_count_as_used(world):
    app = world.join("a")
    app.wants("h1")
    world.beats()
    member = world.node.state.applications["a"]
    assert member.used == ((member.hosts[0], 1, None),)


class TestRefusals:
    def test_a_minimum_that_is_not_there(self, world):
        world.join("a", minimum=2)
        with pytest.raises(CloudError, match="'b' cannot be sure of 2 hosts: there are 3 of 'small', of which 2"):
            world.join("b", minimum=2)

    @pytest.mark.parametrize("given", ["guess", None])
    def test_a_token(self, tmp_path, given):
        world = World(tmp_path / "journal", token="correct horse")
        world.join("a")
        world.token = given
        with pytest.raises(CloudError, match="refuses application 'b': the token is wrong"):
            world.join("b")
        world.log.close()

    def test_the_key_of_another_application(self, world):
        a, b = world.join("a"), world.join("b")
        a.member._client._path = b.member._client._path
        with pytest.raises(ElastreamError, match="'b'"):
            a.member._client.leave()
        assert "b" in world.node.state.applications

    def test_what_is_no_claim(self, world):
        a = world.join("a")
        answer = world.service.put("/applications/a", json={"number": 3}, headers={"key": a.member._client._key})
        assert answer.status_code == 422
        assert answer.json()["error"] == "malformed request: field 'application' is missing"
        answer = world.service.post("/applications/b", json={"priority": "high"})
        assert answer.json()["error"].startswith("malformed request: field 'priority': input should be a valid number")

    @pytest.mark.parametrize("standing", ["NaN", "1e999"])
    def test_an_absurd_priority_however_it_is_written(self, world, standing):
        good = world.join("good")
        content = f'{{"priority": {standing}, "minimum": 1}}'
        answer = world.service.post("/applications/evil", content=content, headers={"content-type": "application/json"})
        assert answer.status_code in (409, 422)
        assert "priority" in answer.json()["error"]
        assert [*world.node.state.applications] == ["good"]
        good.wants("h1")
        world.beats()
        assert good.running == {"h1"}

    @pytest.mark.parametrize("answer", [b'"ok"', b"[1]", b"null", b"3", b"\xff", b'{"term": "soon"}'])
    def test_an_answer_that_makes_no_sense_ends_no_thread(self, answer):
        offer = {"name": "p", "kinds": [], "max_hosts": 3}

        def answered(request: httpx.Request) -> httpx.Response:
            if request.method == "PUT":
                return httpx.Response(200, content=answer)
            return httpx.Response(200, json={"key": "k", "offer": offer})

        alarms = Alarms(time.monotonic)
        member = Membership(Pool("http://x", "a").client(httpx.MockTransport(answered)), alarms)
        member.start(lambda: (), lambda host: None)
        try:
            wait_until(lambda: any("no claim was answered" in each.said for each in alarms.active))
            assert member._thread.is_alive()
        finally:
            member.close()

    def test_what_answers_is_no_pool(self):
        transport = httpx.MockTransport(lambda request: httpx.Response(200, text="hello"))
        with pytest.raises(EnvironmentProblem, match="the service at http://localhost is no pool"):
            Pool("http://localhost", "a").client(transport).offer()

    def test_a_pool_that_does_not_answer(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(EnvironmentProblem, match=f"no pool answers at {url}"):
            Pool(url, "a").client().offer()

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"priority": 0}, "the priority 0: it must be above 0"),
            ({"minimum": 0}, "a minimum of 0"),
            ({"application": ""}, "needs a name"),
        ],
    )
    def test_a_pool_that_makes_no_sense(self, wrong, said):
        with pytest.raises(CloudError, match=said):
            Pool(**{"url": "http://localhost", "application": "a", **wrong})


@pytest.fixture
def serving(tmp_path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`elastream manager` with two machines, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "token").write_text(RIGHT)
    about = f"name: cli-{os.getpid()}, listen: '{url}', machines: {{small: 2}}, token_file: token, silence: 5min"
    (tmp_path / "arbiter.yaml").write_text(f"arbiter: {{{about}}}")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([COMMAND, "manager", str(tmp_path / "arbiter.yaml")], **pipes)  # type: ignore[call-overload]
    line = process.stdout.readline()
    assert f"at http://{url}: 2 x small" in line, process.communicate()
    yield process, f"http://{url}"
    process.kill()
    process.communicate()


def test_sigterm_ends_the_command_in_order_with_the_bill(serving):
    process, url = serving
    member = Membership(Pool(url, "a", token=RIGHT).client())

    def granted() -> bool:
        member.beat()
        return bool(member.place({"h1": SMALL}, lambda host, kind: None))

    wait_until(granted)
    process.send_signal(signal.SIGTERM)
    out, err = ended(process)
    assert "a owes 1.00" in out
    assert not err
    member.close()


def test_a_run_that_the_pool_refuses_is_one_sentence_and_status_2(serving, tmp_path):
    _, url = serving
    program = tmp_path / "job.py"
    program.write_text(PROGRAM.format(pool=(url, "b"), token="wrong"))
    result = CliRunner().invoke(command.app, ["run", str(program), "--no-live", "--runs", str(tmp_path / "runs")])
    assert result.exit_code == 2
    (told,) = result.stderr.splitlines()
    assert told.startswith(f"elastream: the pool at {url} refuses application 'b': ")
    assert "the token is wrong" in told
