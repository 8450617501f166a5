"""Managers over real HTTP: the edge, and then three processes of which one is cut off, killed and started again."""

import contextlib
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import uvicorn

from elastream.clouds.host_directory import HostDirectory
from elastream.model.cloud import HostType
from elastream.model.errors import EnvironmentProblem, InputError
from elastream.planning.managers.applications import ApplicationRules
from elastream.planning.managers.infrastructure import InfrastructureRules
from elastream.planning.managers.messages import Holding, RegionReport
from elastream.planning.managers.regions import RegionRules
from elastream.recording.lines import JournalProblem
from elastream.services.managers import InfrastructureLink, follow, infrastructure_app, serve
from elastream.services.nodes import ApplicationNode, InfrastructureNode, RegionNode
from elastream.services.state_log import StateLog

TOKEN = "a token of the tests"
LIMIT = 60.0
"""Seconds that anything may take before a test gives up; none is judged by how long it took."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def until(what, seen=lambda: "") -> None:
    end = time.monotonic() + LIMIT
    while not what():
        assert time.monotonic() < end, f"it never came: {seen()}"
        time.sleep(0.02)


@contextlib.contextmanager
def served(node, period: float = 3600.0, token: str = TOKEN):
    """The node at a real port, in a thread; gives its address."""
    config = uvicorn.Config(infrastructure_app(node, token, period), port=free_port(), log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started)
    yield f"http://127.0.0.1:{config.port}"
    server.should_exit = True
    thread.join()


def manager(**rules) -> InfrastructureNode:
    return InfrastructureNode(
        InfrastructureRules(**rules), StateLog(None, "infrastructure manager"), ("east", "west"), ("a", "b")
    )


@pytest.fixture(scope="module")
def server():
    node = manager()
    with served(node) as url:
        yield node, url


def test_a_message_is_answered_with_what_is_in_force(server) -> None:
    node, url = server
    with InfrastructureLink(url, TOKEN) as link:
        first = link.tell(RegionReport("west", 1, 0, (), add=("small",)))
        assert (first.term, first.hosts) == (0, ())
        node.round(0.0)
        order = link.tell(RegionReport("west", 2, 0, ()))
        assert (order.term, order.hosts, order.heard) == (1, (("h1", "small"),), 1)
        assert link.tell(Holding("a", 1, 0, ())).application == "a"
    assert httpx.get(f"{url}/hosts", headers={"Authorization": f"Bearer {TOKEN}"}).json() == {
        "h1": {"region": "west", "type": "small", "stance": "ordered", "owner": ""}
    }


@pytest.mark.parametrize("token", ["", "a token of the testz", "ä"])
def test_who_has_not_the_token_is_told_nothing(server, token: str) -> None:
    _, url = server
    headers = {"Authorization": f"Bearer {token}".encode()} if token else {}
    for answer in (httpx.get(f"{url}/hosts", headers=headers), httpx.post(f"{url}/region", content=b"{", headers=headers)):
        assert (answer.status_code, answer.json()) == (401, {"error": "the token is not the one that managers here share"})


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 422, "body"),
        (b"[]", 422, "body"),
        (b'{"region": "east", "number": 1, "seen": 0}', 422, "body.up: field required"),
        (b'{"region": "east", "number": "many", "seen": 0, "up": []}', 422, "body.number: input should be a valid integer"),
        (b'{"region": "south", "number": 1, "seen": 0, "up": []}', 409, "there is no region 'south' here"),
        (b'{"region": "east", "number": 1, "seen": 7, "up": []}', 409, "region east has seen term 7, and here only 0 were"),
    ],
)
def test_what_is_no_message_is_refused_in_one_sentence(server, body: bytes, status: int, said: str) -> None:
    node, url = server
    before = node.state
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    answer = httpx.post(f"{url}/region", content=body, headers=headers)
    assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text
    node.round(0.0)
    assert node.state.hosts == before.hosts


def test_a_message_without_a_length_is_not_read(server) -> None:
    _, url = server
    answer = httpx.post(f"{url}/region", content=iter([b"{}"]), headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 413


def test_nobody_there_something_else_there_and_a_wrong_token_are_told_apart(server) -> None:
    _, url = server
    report = RegionReport("east", 1, 0, ())
    with (
        pytest.raises(EnvironmentProblem, match="does not answer"),
        InfrastructureLink("http://127.0.0.1:1", TOKEN) as link,
    ):
        link.tell(report)
    with pytest.raises(InputError, match="refuses: the token"), InfrastructureLink(url, TOKEN + "?") as link:
        link.tell(report)
    other = httpx.MockTransport(lambda request: httpx.Response(200, json={"hello": "world"}))
    with (
        pytest.raises(InputError, match="is no infrastructure manager"),
        InfrastructureLink("http://x", "t", transport=other) as link,
    ):
        link.tell(report)


class FullDisk(InfrastructureNode):
    """Its journal cannot be written."""

    def round(self, now: float) -> None:
        raise EnvironmentProblem("the journal infrastructure.journal cannot be written: No space left on device")


def test_a_server_whose_journal_cannot_be_written_ends_with_that_sentence() -> None:
    node = FullDisk(InfrastructureRules(), StateLog(None, "infrastructure manager"))
    with pytest.raises(EnvironmentProblem, match="No space left on device"):
        serve(node, TOKEN, "127.0.0.1", free_port(), 0.01)


def test_a_region_whose_journal_cannot_be_written_ends_and_says_nothing(tmp_path) -> None:
    log = StateLog(tmp_path / "j", "east")
    node = RegionNode("east", RegionRules(), [HostType("small", cores=1.0)], HostDirectory(tmp_path / "east"), log)
    said = []
    silent = httpx.MockTransport(lambda request: said.append(request) or httpx.Response(500))
    log._lines._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 - closed by the log
    with (
        pytest.raises(JournalProblem, match="No space left"),
        InfrastructureLink("http://x", TOKEN, transport=silent) as link,
    ):
        follow(node, link, 1.0, stopped=lambda seconds: True)
    assert said == []
    log.close()


def test_an_address_that_is_not_to_be_had_is_one_sentence(server) -> None:
    _, url = server
    with pytest.raises(EnvironmentProblem, match="is not to be had: Address already in use"):
        serve(manager(), TOKEN, "127.0.0.1", int(url.rpartition(":")[2]), 1.0)


class Route:
    """A way to the infrastructure manager that can be cut, lose answers, and say everything again, once more and later."""

    def __init__(self, upstream: str) -> None:
        self.mode = "open"
        self.tried = 0
        self.client = httpx.Client(trust_env=False)
        self.kept: list[tuple[str, bytes, dict[str, str]]] = []
        route = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
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
                    answers = [route.client.post(upstream + path, content=body, headers=h) for path, body, h in said]
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

        self.server = ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
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
        for name in ("east", "west"):
            kind = HostType("small", cores=1.0, slots=1, region=name)
            log = StateLog(None, name)
            regions[name] = RegionNode(name, RegionRules(spare=2, settle=5.0), [kind], HostDirectory(tmp_path / name), log)
        application = ApplicationNode("a", ApplicationRules(), StateLog(None, "a"))
        with InfrastructureLink(route.url, TOKEN) as link:
            for number in range(12):
                route.mode = mode if number < 6 and number % 3 else "open"
                for region in regions.values():
                    with contextlib.suppress(EnvironmentProblem):
                        region.hear(link.tell(region.report(float(number))), float(number))
                    region.act()
                with contextlib.suppress(EnvironmentProblem):
                    application.hear(link.tell(application.holding(float(number), (), False)))
                node.round(float(number))
        route.close()
    for name, region in regions.items():
        history = (tmp_path / name / "history.log").read_text().split()
        assert len(region.state.region.hosts) == 2
        assert sorted(history[1::2]) == sorted(region.state.region.hosts), "leased once, nothing released"
    assert set(application.open) == set(node.state.hosts)


def test_a_region_with_a_wrong_token_ends_and_one_that_met_its_manager_before_goes_on(server, tmp_path, caplog) -> None:
    _, url = server
    kind = HostType("small", cores=1.0, slots=1, region="east")

    def region(journal: str) -> RegionNode:
        return RegionNode("east", RegionRules(), [kind], HostDirectory(tmp_path / "east"), StateLog(None, journal))

    with InfrastructureLink(url, "another token") as link, pytest.raises(InputError, match="refuses: the token"):
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
    with InfrastructureLink("http://x", TOKEN, transport=other) as link:
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
        assert "hosts known" in self.started.stdout.readline(), self.told()

    def kill(self) -> None:
        self.started.kill()
        self.started.wait()
        self.started.stdout.close()

    def told(self) -> str:
        return self.file.with_suffix(".err").read_text()


class World:
    """An infrastructure manager, region east behind a route that can be cut, region west, and two applications."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        (folder / "token").write_text(TOKEN)
        self.write("infrastructure", {
            "infrastructure": {
                "listen": f"127.0.0.1:{port}", "token_file": "token", "journal": "infrastructure.journal", "period": 0.1,
                "patience": 1.0, "regions": {"east": {}, "west": {}}, "applications": {"a": {}, "b": {}},
            }
        })  # fmt: skip
        self.route = Route(self.url)
        for name, url in (("east", self.route.url), ("west", self.url)):
            self.write(name, {
                "region": {
                    "name": name, "infrastructure": url, "token_file": "token", "journal": f"{name}.journal",
                    "period": 0.1, "spare": 2, "low": 0.0, "settle": 5.0, "host_types": {"small": {"cores": 1}},
                    "hosts": {"directory": f"hosts/{name}"},
                }
            })  # fmt: skip
        self.processes = {name: Process(folder / f"{name}.yaml") for name in ("infrastructure", "east", "west")}
        self.link = InfrastructureLink(self.url, TOKEN)
        self.applications = {n: ApplicationNode(n, ApplicationRules(), StateLog(folder / n, n)) for n in ("a", "b")}
        self.running: dict[str, str] = {}

    def write(self, name: str, document: object) -> None:
        (self.folder / f"{name}.yaml").write_text(json.dumps(document))

    def hosts(self, region: str) -> set[str]:
        found = (self.folder / "hosts" / region).glob("h*.json")
        return {file.stem for file in found if ".status" not in file.name}

    def speak(self) -> None:
        """Both applications say what they hold, and hear."""
        for name, node in self.applications.items():
            occupied = {host for host, who in self.running.items() if who == name}
            with contextlib.suppress(EnvironmentProblem):
                node.hear(self.link.tell(node.holding(time.time(), occupied, critical=False)))

    def until(self, what) -> None:
        def spoken() -> bool:
            self.speak()
            return what()

        until(spoken, lambda: {n: (self.hosts(n), p.told()[-500:]) for n, p in self.processes.items()})

    def place(self, region: str) -> str:
        """A replica on a free host of `region`, by whichever application holds one; returns the host."""
        placed = []

        def done() -> bool:
            for name, node in self.applications.items():
                for host in sorted(self.hosts(region).intersection(node.open) - set(self.running)):
                    if not placed and node.place(host, time.time()):
                        self.running[host] = name
                        status = {"up": True, "cpu": 0.5, "replicas": 1}
                        (self.folder / "hosts" / region / f"{host}.status.json").write_text(json.dumps(status))
                        placed.append(host)
            return bool(placed)

        self.until(done)
        return placed[0]

    def history(self) -> list[str]:
        return [
            line
            for region in ("east", "west")
            for line in (self.folder / "hosts" / region / "history.log").read_text().splitlines()
        ]

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.link.close()
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
    # Cut off, it may not grow, however much is placed there; the other region goes on as ever.
    world.until(lambda: world.hosts("east") <= {h for a in world.applications.values() for h in a.open})
    world.route.mode = "cut"
    before, tried = world.hosts("east"), world.route.tried
    world.place("east")
    world.place("west")
    world.until(lambda: len(world.hosts("west")) == 3 and world.route.tried > tried + 5)
    assert world.hosts("east") == before
    assert "goes on with its last grants" in world.processes["east"].told()
    # Both ends are killed meanwhile, and start again from their journals.
    for name in ("east", "infrastructure"):
        world.processes[name].kill()
        world.processes[name].start()
    tried = world.route.tried
    world.until(lambda: world.route.tried > tried + 5)
    world.place("west")
    world.until(lambda: len(world.hosts("west")) == 4)
    assert world.hosts("east") == before
    # It rejoins, first over a route that says everything again.
    world.route.mode = "again"
    world.until(lambda: len(world.hosts("east")) == 4)
    world.route.mode = "open"
    world.place("east")
    world.until(lambda: len(world.hosts("east")) == 5)
    assert "is heard again" in world.processes["east"].told()
    history = world.history()
    leased = [line for line in history if line.startswith("lease")]
    assert len(leased) == len(set(leased)), "nothing is leased twice"
    assert not {f"release {host}" for host in world.running}.intersection(history), "nothing in use is released"
    assert not world.hosts("east") & world.hosts("west")
    held = [host for node in world.applications.values() for host in node.application.hosts]
    assert len(held) == len(set(held))
    shown = httpx.get(f"{world.url}/hosts", headers={"Authorization": f"Bearer {TOKEN}"}).json()
    assert {host for host, about in shown.items() if about["region"] == "east"} == world.hosts("east")
