"""Managers over real HTTP: what the edge refuses, routes that fail, and the command."""

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
from elastream.core.hosts import HostType
from elastream.errors import EnvironmentProblem, InputError
from elastream.policies.e2df.regions import RegionRules
from elastream.pool.arbiter import ArbiterNode, Entitlement
from elastream.pool.region import RegionLink, RegionNode, follow
from elastream.pool.service import listening, serve
from elastream.pool.state_log import StateLog
from elastream.recording.lines import JournalProblem
from elastream.sharing.messages import Offer, RegionReport
from elastream.sharing.rules import ArbiterRules
from support.arbiter_server import TOKEN, served, unused_port
from support.waiting import wait_until

REGIONS = ("east", "west")
KINDS = {region: HostType(f"small-{region}", cores=1.0, slots=1, region=region) for region in REGIONS}


def manager(log: StateLog | None = None, **rules) -> ArbiterNode:
    offer = Offer("demo", tuple(KINDS.values()), 20)
    return ArbiterNode(offer, ArbiterRules(**rules), log or StateLog(None, "arbiter"), time.time, regions=REGIONS)


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
        (b"{", 422, "malformed request: its body is not JSON"),
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


@pytest.mark.parametrize("mode", ["again", "no answers", "cut"])
def test_regions_get_what_they_want_once_whatever_the_route_does(mode: str, tmp_path: Path) -> None:
    """Two regions want two hosts each: both have them in the end, each leased once, although one is cut off meanwhile."""
    node = manager(min_hosts=0)
    with served(node) as url:
        route, logs = Route(url), {name: StateLog(tmp_path / f"{name}.journal", name) for name in REGIONS}
        rules = RegionRules(spare=2, settle=5.0)

        def started(name: str) -> RegionNode:
            return RegionNode(name, rules, [KINDS[name]], HostDirectory(tmp_path / name), logs[name])

        regions = {name: started(name) for name in REGIONS}
        with RegionLink(route.url, TOKEN) as link:
            for number in range(12):
                route.mode = mode if number < 6 and number % 3 else "open"
                for region in regions.values():
                    with contextlib.suppress(EnvironmentProblem):
                        region.receive(link.report(region.report(float(number))), float(number))
                    region.act()
                node.round()
                if number == 5:  # it is killed while it is cut off
                    logs["east"].close()
                    logs["east"] = StateLog(tmp_path / "east.journal", "east")
                    regions["east"] = started("east")
        route.close()
    for name, region in regions.items():
        history = (tmp_path / name / "history.log").read_text().split()
        assert len(region.state.region.hosts) == 2
        assert sorted(history[1::2]) == sorted(region.state.region.hosts), "leased once, nothing released"
        logs[name].close()


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


def test_sigterm_ends_a_region_manager_in_order_whenever_it_comes(tmp_path: Path) -> None:
    """It has next to no time between two reports, so that the signal comes in the middle of something."""
    document = {
        "name": "east", "arbiter": f"http://127.0.0.1:{unused_port()}", "period": 0.001,
        "host_types": {"small": {"cores": 1}}, "hosts": {"directory": "hosts"},
    }  # fmt: skip
    (tmp_path / "east.yaml").write_text(json.dumps({"region": document}))
    program = [sys.executable, "-c", "from elastream.cli.app import app; app()", "manager", str(tmp_path / "east.yaml")]
    with (tmp_path / "told").open("w") as told:
        process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=told)
    wait_until(lambda: "goes on with its last grants" in (tmp_path / "told").read_text())
    process.terminate()
    assert process.wait() == 0
