"""Managers over real HTTP: the edge, and then three processes of which one is cut off, killed and started again."""

import contextlib
import json
import logging
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from elastream.clouds.host_directory import HostDirectory
from elastream.clouds.pool import Pool
from elastream.core.hosts import HostType
from elastream.errors import EnvironmentProblem, InputError
from elastream.policies.e2df.regions import RegionRules
from elastream.pool.arbiter import ArbiterNode, Entitlement
from elastream.pool.region import RegionLink, RegionNode, follow
from elastream.pool.service import listening, serve
from elastream.pool.state_log import StateLog
from elastream.recording.lines import JournalProblem
from elastream.sharing import holder
from elastream.sharing.holder import Holder
from elastream.sharing.messages import Offer, RegionReport
from elastream.sharing.rules import ArbiterRules
from support.arbiter_server import TOKEN, served, unused_port
from support.waiting import wait_until

REGIONS = ("east", "west")
KINDS = {region: HostType(f"small-{region}", cores=1.0, slots=1, region=region) for region in REGIONS}


def manager(log: StateLog | None = None, **rules) -> ArbiterNode:
    offer = Offer("demo", tuple(KINDS.values()), 20)
    return ArbiterNode(offer, ArbiterRules(**rules), log or StateLog(None, "arbiter"), time.time, regions=REGIONS)


class Application:
    """An application that holds all that it is granted, and wants a number of hosts of each region."""

    def __init__(self, url: str, name: str, **wants: int) -> None:
        self.link = Pool(url, name, token=TOKEN).client()
        self.link.join()
        self.held = Holder(name)
        self.wants = wants
        self.running: set[str] = set()

    def speak(self, *gone: str) -> None:
        kinds = list(self.held.hosts.values())
        asks = [KINDS[r].name for r, n in self.wants.items() for _ in range(n - kinds.count(KINDS[r].name))]
        self.held, claim = holder.claim(self.held, {*gone, *self.held.leave} - self.running, asks=tuple(asks))
        self.held = holder.hear(self.held, self.link.claim(claim))


@pytest.fixture(scope="module")
def server():
    node = manager()
    with served(node) as url:
        yield node, url


def test_a_message_is_answered_with_what_is_in_force(server) -> None:
    _, url = server
    with RegionLink(url, TOKEN) as link:
        order = link.report(RegionReport("west", 1, 0, (), add=("small-west",)))
        assert (order.term, order.hosts, order.heard) == (1, (("h1", "small-west"),), 1)
    shown = httpx.get(url, headers={"Authorization": f"Bearer {TOKEN}"}).json()["hosts"]
    assert shown == {"h1": {"region": "west", "kind": "small-west", "tenure": "ordered", "owner": "", "why": ""}}


@pytest.mark.parametrize("token", ["", "a token of the testz", "ä"])
def test_without_the_token_nothing_is_shown(server, token: str) -> None:
    _, url = server
    headers = {"Authorization": f"Bearer {token}".encode()} if token else {}
    for answer in (httpx.get(url, headers=headers), httpx.put(f"{url}/regions/east", content=b"{", headers=headers)):
        assert (answer.status_code, answer.json()) == (401, {"error": "the token is wrong"})


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 422, "malformed request: its body is no JSON"),
        (b"[]", 422, "malformed request: input should be a dictionary"),
        (b'{"region": "east", "number": 1, "seen": 0}', 422, "malformed request: field 'up' is missing"),
        (
            b'{"region": "east", "number": "many", "seen": 0, "up": []}',
            422,
            "field 'number': input should be a valid integer",
        ),
        (b'{"region": "south", "number": 1, "seen": 0, "up": []}', 409, "a report of 'south' came for 'east'"),
        (b'{"region": "east", "number": 1, "seen": 7, "up": []}', 409, "region east has seen term 7, and here only 0 were"),
    ],
)
def test_what_is_no_message_is_refused_in_one_sentence(server, body: bytes, status: int, said: str) -> None:
    node, url = server
    before = node.state
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    answer = httpx.put(f"{url}/regions/east", content=body, headers=headers)
    assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text
    node.round()
    assert node.state.hosts == before.hosts


def test_a_message_without_a_length_is_not_read(server) -> None:
    _, url = server
    answer = httpx.put(f"{url}/regions/east", content=iter([b"{}"]), headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 413


def test_no_service_another_service_and_a_wrong_token_are_distinguished(server) -> None:
    _, url = server
    report = RegionReport("east", 1, 0, ())
    with (
        pytest.raises(EnvironmentProblem, match="no arbiter answers"),
        RegionLink("http://127.0.0.1:1", TOKEN) as link,
    ):
        link.report(report)
    with pytest.raises(InputError, match="refuses: the token"), RegionLink(url, TOKEN + "?") as link:
        link.report(report)
    other = httpx.MockTransport(lambda request: httpx.Response(200, json={"hello": "world"}))
    with (
        pytest.raises(InputError, match="is no arbiter"),
        RegionLink("http://localhost", "t", transport=other) as link,
    ):
        link.report(report)


def test_a_server_whose_journal_cannot_be_written_ends_with_that_sentence(tmp_path) -> None:
    log = StateLog(tmp_path / "j", "arbiter")
    node = manager(log)
    node.join("a", Entitlement())
    log._lines._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 - closed by the log
    node._inbox[RegionReport, "east"] = RegionReport("east", 1, 0, (), add=("small-east",))
    with pytest.raises(JournalProblem, match="No space left on device"), listening("127.0.0.1", unused_port()) as at:
        serve(node, at, TOKEN, period=0.01)
    log.close()


def test_a_region_whose_journal_cannot_be_written_ends_and_says_nothing(tmp_path) -> None:
    log = StateLog(tmp_path / "j", "east")
    node = RegionNode("east", RegionRules(), [HostType("small", cores=1.0)], HostDirectory(tmp_path / "east"), log)
    said = []
    silent = httpx.MockTransport(lambda request: said.append(request) or httpx.Response(500))
    log._lines._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 - closed by the log
    with (
        pytest.raises(JournalProblem, match="No space left"),
        RegionLink("http://localhost", TOKEN, transport=silent) as link,
    ):
        follow(node, link, 1.0, stopped=lambda seconds: True)
    assert said == []
    log.close()


def test_an_address_that_is_in_use_is_one_sentence(server) -> None:
    _, url = server
    port = int(url.rpartition(":")[2])
    with pytest.raises(EnvironmentProblem, match=f"cannot listen on 127.0.0.1:{port}: address already in use"):
        listening("127.0.0.1", port)


class Route:
    """A way to the arbiter that can be cut, lose answers, and say everything again, once more and later."""

    def __init__(self, upstream: str) -> None:
        self.mode = "open"
        self.tried = 0
        self.client = httpx.Client(trust_env=False)
        self.kept: list[tuple[str, bytes, dict[str, str]]] = []
        route = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                route.tried += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name: self.headers[name] for name in ("Authorization", "Content-Type")}
                if route.mode == "cut":
                    self.close_connection = True
                    return
                said = [(self.path, body, headers)]
                if route.mode == "again":
                    route.kept += said
                    old = [each for each in route.kept if each[0] == self.path]
                    said = [*old[-3:], *said, *said, *old[:1]]  # late, doubled, and very late
                try:
                    answers = [route.client.put(upstream + path, content=body, headers=h) for path, body, h in said]
                except httpx.HTTPError:
                    self.close_connection = True
                    return
                if route.mode == "no answers":
                    self.close_connection = True
                    return
                # The answer to the last, so that answers come out of order too.
                content = answers[-1].content
                self.send_response(answers[-1].status_code)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", unused_port()), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.client.close()


@pytest.mark.parametrize("mode", ["again", "no answers"])
def test_messages_that_come_twice_late_or_unanswered_change_nothing(mode: str, tmp_path: Path) -> None:
    """Two regions want two hosts each; whatever the route does, that is what they have in the end, each leased once."""
    node = manager(min_hosts=0)
    with served(node) as url:
        route = Route(url)
        regions = {}
        for name in REGIONS:
            log = StateLog(None, name)
            rules = RegionRules(spare=2, settle=5.0)
            regions[name] = RegionNode(name, rules, [KINDS[name]], HostDirectory(tmp_path / name), log)
        with RegionLink(route.url, TOKEN) as link:
            for number in range(12):
                route.mode = mode if number < 6 and number % 3 else "open"
                for region in regions.values():
                    with contextlib.suppress(EnvironmentProblem):
                        region.hear(link.report(region.report(float(number))), float(number))
                    region.act()
                node.round()
        route.close()
    for name, region in regions.items():
        history = (tmp_path / name / "history.log").read_text().split()
        assert len(region.state.region.hosts) == 2
        assert sorted(history[1::2]) == sorted(region.state.region.hosts), "leased once, nothing released"


def test_a_new_region_with_a_wrong_token_ends_and_a_known_one_goes_on(server, tmp_path, caplog) -> None:
    _, url = server
    kind = HostType("small", cores=1.0, slots=1, region="east")

    def region(journal: str) -> RegionNode:
        return RegionNode("east", RegionRules(), [kind], HostDirectory(tmp_path / "east"), StateLog(None, journal))

    with RegionLink(url, "another token") as link, pytest.raises(InputError, match="refuses: the token"):
        follow(region("one"), link, 1.0, stopped=lambda seconds: True)
    rounds = iter([False, False, True])
    first = {
        "region": "east",
        "term": 0,
        "hosts": [],
        "refused": "west has room",
        "kept": [["h1", "application manager of a", "late"]],
    }
    answers = iter([httpx.Response(200, json=first)] + [httpx.Response(409, json={"error": "no"})] * 2)
    other = httpx.MockTransport(lambda request: next(answers))
    caplog.set_level(logging.INFO, "elastream.managers")
    with RegionLink("http://localhost", TOKEN, transport=other) as link:
        follow(region("two"), link, 1.0, stopped=lambda seconds: next(rounds))
    assert "no more hosts in east: infrastructure manager: west has room" in caplog.text
    assert "h1 stays: application manager of a: late" in caplog.text
    assert caplog.text.count("refuses: no; region east goes on with its last grants") == 2


# -- processes -----------------------------------------------------------------------------------------------------------


class Process:
    """`elastream manager FILE` as a process of its own, which can be killed and started again."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.started: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        program = [sys.executable, "-c", "from elastream.cli.app import app; app()", "manager", str(self.file)]
        with self.file.with_suffix(".err").open("a") as err:
            self.started = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=err, text=True)
        assert self.started.stdout.readline(), self.told()

    def kill(self) -> None:
        self.started.kill()
        self.started.wait()
        self.started.stdout.close()

    def told(self) -> str:
        return self.file.with_suffix(".err").read_text()


class World:
    """An arbiter, region east behind a route that can be cut, region west, and two applications."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port = unused_port()
        self.url = f"http://127.0.0.1:{port}"
        (folder / "token").write_text(TOKEN)
        self.write("arbiter", {
            "arbiter": {
                "name": "demo", "listen": f"127.0.0.1:{port}", "token_file": "token", "journal": "arbiter.journal",
                "period": 0.1, "patience": 1.0, "silence": 600.0, "regions": {"east": {}, "west": {}},
                "host_types": {kind.name: {"cores": 1, "region": region} for region, kind in KINDS.items()},
            }
        })  # fmt: skip
        self.route = Route(self.url)
        for name, url in (("east", self.route.url), ("west", self.url)):
            self.write(name, {
                "region": {
                    "name": name, "arbiter": url, "token_file": "token", "journal": f"{name}.journal",
                    "period": 0.1, "spare": 2, "low": 0.0, "settle": 5.0, "host_types": {KINDS[name].name: {"cores": 1}},
                    "hosts": {"directory": f"hosts/{name}"},
                }
            })  # fmt: skip
        self.processes = {name: Process(folder / f"{name}.yaml") for name in ("arbiter", "east", "west")}
        self.applications = {name: Application(self.url, name) for name in ("a", "b")}

    def write(self, name: str, document: object) -> None:
        (self.folder / f"{name}.yaml").write_text(json.dumps(document))

    def hosts(self, region: str) -> set[str]:
        found = (self.folder / "hosts" / region).glob("h*.json")
        return {file.stem for file in found if ".status" not in file.name}

    def speak(self) -> None:
        """Both applications claim, and hear."""
        for application in self.applications.values():
            with contextlib.suppress(EnvironmentProblem):
                application.speak()

    def until(self, what) -> None:
        def spoken() -> bool:
            self.speak()
            return what()

        wait_until(spoken, otherwise=lambda: {n: (self.hosts(n), p.told()[-500:]) for n, p in self.processes.items()})

    def place(self, region: str, name: str = "a") -> str:
        """A replica on a host of `region` that the application requests for it; returns the host."""
        application = self.applications[name]
        application.wants[region] = application.wants.get(region, 0) + 1
        found: list[str] = []

        def done() -> bool:
            found[:] = sorted(self.hosts(region).intersection(application.held.open) - application.running)
            return bool(found)

        self.until(done)
        application.running.add(found[0])
        status = {"up": True, "cpu": 0.5, "replicas": 1}
        (self.folder / "hosts" / region / f"{found[0]}.status.json").write_text(json.dumps(status))
        return found[0]

    @property
    def running(self) -> set[str]:
        return self.applications["a"].running | self.applications["b"].running

    def history(self) -> list[str]:
        return [
            line
            for region in ("east", "west")
            for line in (self.folder / "hosts" / region / "history.log").read_text().splitlines()
        ]

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        for application in self.applications.values():
            application.link.close()
        self.route.close()


@pytest.fixture
def world(tmp_path: Path):
    world = World(tmp_path)
    yield world
    world.close()


def test_a_region_that_is_cut_off_goes_on_with_its_last_grants_and_rejoins(world: World) -> None:
    world.until(lambda: len(world.hosts("east")) == len(world.hosts("west")) == 2)
    world.place("east")
    world.until(lambda: len(world.hosts("east")) == 3)  # one in use, two spare
    # Cut off, it cannot grow, however much is placed there; the other region goes on as ever.
    world.route.mode = "cut"
    before, tried = world.hosts("east"), world.route.tried
    world.place("east", "b")
    world.place("west", "b")
    world.until(lambda: len(world.hosts("west")) == 3 and world.route.tried > tried + 5)
    assert world.hosts("east") == before
    assert "goes on with its last grants" in world.processes["east"].told()
    # Both ends are killed meanwhile, and start again from their journals.
    for name in ("east", "arbiter"):
        world.processes[name].kill()
        world.processes[name].start()
    tried = world.route.tried
    world.until(lambda: world.route.tried > tried + 5)
    world.place("west")
    world.until(lambda: len(world.hosts("west")) == 4)
    assert world.hosts("east") == before
    # It rejoins, first over a route that repeats everything.
    world.route.mode = "again"
    world.until(lambda: len(world.hosts("east")) == 4)
    world.route.mode = "open"
    world.place("east")
    world.until(lambda: len(world.hosts("east")) == 5)
    assert "answers again" in world.processes["east"].told()
    history = world.history()
    leased = [line for line in history if line.startswith("lease")]
    assert len(leased) == len(set(leased)), "nothing is leased twice"
    assert not {f"release {host}" for host in world.running}.intersection(history), "nothing in use is released"
    assert not world.hosts("east") & world.hosts("west")
    held = [host for application in world.applications.values() for host in application.held.hosts]
    assert len(held) == len(set(held))
    shown = httpx.get(world.url, headers={"Authorization": f"Bearer {TOKEN}"}).json()["hosts"]
    assert {host for host, about in shown.items() if about["region"] == "east"} == world.hosts("east")


def test_sigterm_ends_a_region_manager_in_order_whenever_it_comes(tmp_path: Path) -> None:
    """It has next to no time between two reports, so that the signal comes in the middle of something."""
    document = {
        "name": "east", "arbiter": f"http://127.0.0.1:{unused_port()}", "period": 0.001,
        "host_types": {"small": {"cores": 1}}, "hosts": {"directory": "hosts"},
    }  # fmt: skip
    (tmp_path / "east.yaml").write_text(json.dumps({"region": document}))
    for _ in range(3):
        process = Process(tmp_path / "east.yaml")
        wait_until(lambda process=process: "goes on with its last grants" in process.told())
        process.started.terminate()
        assert process.started.wait() == 0
        process.started.stdout.close()
