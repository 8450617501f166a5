"""Notices of hosts that are taken away, from files and HTTP endpoints."""

import http.client
import http.server
import json
import threading
from datetime import UTC, datetime

import pytest

from elastream.clouds.local.local import Local
from elastream.clouds.notices import FAILED_POLLS, STALE_S, UNTIMED_S, Notice, NoticePoller, parse_notice, read_notice
from elastream.clouds.provider import HostStatus, Phase
from elastream.clouds.standalone import Standalone
from elastream.core.alarm import Alarms
from elastream.errors import CloudError
from support.fake_clock import FakeClock

NOON = 1_700_000_000.0  # 2023-11-14T22:13:20Z
HOSTS = {"h1": HostStatus("small", Phase.UP, address="10.0.0.1"), "h2": HostStatus("small", Phase.UP, address="10.0.0.2")}


@pytest.mark.parametrize(
    "text",
    [
        "2023-11-14T22:13:50Z",
        "Tue, 14 Nov 2023 22:13:50 GMT",
        "1700000030",
        '{"action": "terminate", "time": "2023-11-14T22:13:50Z"}',
        '{"Events": [{"EventType": "Preempt", "NotBefore": "Tue, 14 Nov 2023 22:13:50 GMT"}]}',
        '{"deadline": 1700000030}',
    ],
)
def test_time_in_a_notice_is_its_deadline(text):
    notice = parse_notice(text, NOON - 99)
    assert notice is not None
    assert notice.deadline == NOON + 30


@pytest.mark.parametrize("text", ["", " \n", "FALSE", "none", "null", "{}", '{"DocumentIncarnation": 3, "Events": []}'])
def test_empty_answer_is_no_notice(text):
    assert parse_notice(text, NOON) is None


def test_pause_of_a_machine_is_no_notice():
    event = {"EventType": "Freeze", "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT", "Resources": []}
    assert parse_notice(json.dumps({"Events": [event]}), 0.0) is None


def test_old_event_hides_no_coming_one():
    times = [{"NotBefore": datetime.fromtimestamp(at, UTC).isoformat()} for at in (NOON - 120, NOON + 30)]
    assert parse_notice(json.dumps(times), NOON, now=NOON).deadline == NOON + 30


def test_starting_host_without_an_address_is_not_read():
    poller = NoticePoller("/notices/{address}", Alarms(lambda: 0.0), read=lambda location: "TRUE")
    poller._thread = threading.current_thread()
    poller.mark({**HOSTS, "h3": HostStatus("small", Phase.STARTING)})
    poller.poll()
    assert poller._notices.keys() == {"h1", "h2"}


@pytest.mark.parametrize(
    ("machines", "counts"),
    [
        (["web_37"], True),
        (["web_38", "WEB_37"], True),
        (["web_38"], False),
        (["db"], False),  # another host of ours
        (["someone"], True),  # its name tells nothing
        ([], True),
    ],
)
def test_event_of_another_machine_of_a_scale_set_does_not_count(machines, counts):
    text = json.dumps({"Events": [{"Resources": machines, "EventType": "Preempt", "NotBefore": "2023-11-14T22:13:50Z"}]})
    assert (parse_notice(text, NOON, "web000011.internal", ["web000011.internal", "db"]) is not None) == counts


@pytest.mark.parametrize("text", ["TRUE", "moved for maintenance", '{"state": "marked"}'])
def test_notice_without_a_time_gives_half_a_minute(text):
    notice = parse_notice(text, NOON)
    assert notice is not None
    assert notice.deadline == NOON + UNTIMED_S


@pytest.mark.parametrize("text", ['{"time": 1700000030000}', "1700000030000"])
def test_milliseconds_are_a_time_too(text):
    assert parse_notice(text, NOON) == Notice(NOON + 30)


@pytest.mark.parametrize("text", ["9" * 400, "1e400", '{"time": 1e300}', "[" * 9_000, "9999999999999999"])
def test_no_text_is_a_time_that_no_clock_shows(text):
    notice = parse_notice(text, NOON)
    assert notice is not None
    assert notice.deadline == NOON + UNTIMED_S


class World:
    """A poller over texts by location."""

    def __init__(self, **texts):
        self.texts, self.clock = texts, FakeClock()
        self.alarms = Alarms(self.clock.now)
        self.poller = NoticePoller("{host}", self.alarms, read=self.read, wall=lambda: NOON + self.clock.now())
        self.poller._thread = threading.current_thread()  # polls by hand
        self.poller.mark(HOSTS)

    def read(self, location):
        text = self.texts.get(location, "")
        if isinstance(text, Exception):
            raise text
        return text

    def marked(self):
        self.poller.poll()
        return self.poller.mark(HOSTS)


def test_host_with_a_notice_is_recalled_with_its_deadline():
    marked = World(h2="2023-11-14T22:13:50Z").marked()
    assert not marked["h1"].recalled
    assert marked["h2"].recalled
    assert marked["h2"].deadline == NOON + 30
    assert marked["h2"].reason == "it is taken away at 22:13:50 UTC"


def test_withdrawn_notice_recalls_no_more():
    world = World(h2="TRUE")
    assert world.marked()["h2"].recalled
    world.texts.clear()
    assert not world.marked()["h2"].recalled


def test_untimed_notice_that_is_given_again_counts_again():
    world = World(h2="TRUE")
    world.marked()
    world.texts.clear()
    world.clock.advance(UNTIMED_S + STALE_S)
    world.marked()
    world.texts["h2"] = "TRUE"
    assert world.marked()["h2"].deadline == NOON + world.clock.now() + UNTIMED_S


@pytest.mark.parametrize("error", [OSError("no route to host"), http.client.BadStatusLine("")])
def test_notice_stays_while_the_endpoint_of_its_host_fails(error):
    world = World(h2="2023-11-14T22:13:50Z")
    world.marked()
    world.texts["h2"] = error
    assert world.marked()["h2"].deadline == NOON + 30
    world.clock.advance(31.0 + STALE_S)
    assert not world.marked()["h2"].recalled


def test_untimed_notice_counts_from_its_first_sight_and_ends():
    world = World(h2="TRUE")
    world.marked()
    world.clock.advance(10.0)
    assert world.marked()["h2"].deadline == NOON + UNTIMED_S
    world.clock.advance(UNTIMED_S + STALE_S)
    assert not world.marked()["h2"].recalled


def test_notice_of_an_earlier_run_recalls_nothing():
    assert not World(h2="2023-11-14T22:00:00Z").marked()["h2"].recalled


def test_notice_that_is_past_when_first_read_is_logged_once(caplog):
    clock = FakeClock(NOON)
    poller = NoticePoller("/notices/{host}", Alarms(clock.now), read=lambda _: "2023-11-14T20:13:20", wall=clock.now)
    poller._hosts = {"h1": HOSTS["h1"]}
    for _ in range(3):
        poller.poll()
    assert poller._notices == {}
    (said,) = caplog.messages
    assert said.startswith("the notice of host h1 is past and does not count")


def test_unreadable_notices_raise_an_alarm_until_they_are_read():
    world = World(h1=OSError("no route to host"))
    for _ in range(FAILED_POLLS - 1):
        world.marked()
    assert world.alarms.active == ()
    world.marked()
    assert [each.said for each in world.alarms.active] == ["notices cannot be read: no route to host"]
    world.texts.clear()
    world.marked()
    assert world.alarms.active == ()


@pytest.mark.parametrize("location", ["{path}", "file://{path}"])
def test_missing_file_is_no_notice(tmp_path, location):
    path = tmp_path / "h1"
    assert read_notice(location.format(path=path)) == ""
    path.write_text("TRUE")
    assert read_notice(location.format(path=path)) == "TRUE"


@pytest.fixture
def endpoint():
    class Metadata(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status = {"/gone": 404, "/broken": 500}.get(self.path, 200)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"TRUE")

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_endpoint_answers_404_without_a_notice(endpoint):
    assert read_notice(f"{endpoint}/notice") == "TRUE"
    assert read_notice(f"{endpoint}/gone") == ""
    with pytest.raises(OSError, match="500"):
        read_notice(f"{endpoint}/broken")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("/run/notices", "names no host"),
        ("/run/{name}", r"has \{name\}"),
        ("ftp://{host}", "neither a path nor a file, http or https URL"),
        ("/run/{host", "not a path or URL"),
    ],
)
def test_setting_that_names_no_host_is_refused(template, message):
    for cloud in (lambda: Local(notices=template), lambda: Standalone(master="spark://m:7077", notices=template)):
        with pytest.raises(CloudError, match=message):
            cloud()


def test_hosts_that_hang_delay_no_other_and_are_asked_once_at_a_time():
    alarms, asked, ends = Alarms(FakeClock().now), [], threading.Event()

    def read(location):
        asked.append(location)
        return "TRUE" if location == "h19" else ends.wait() and ""

    poller = NoticePoller("{host}", alarms, read=read, wall=lambda: NOON, timeout=0.05)
    poller._thread = threading.current_thread()  # polls by hand
    hosts = {f"h{n}": HostStatus("small", Phase.UP) for n in range(20)}
    while not poller.mark(hosts)["h19"].recalled:
        poller.poll()
    poller.poll()
    ends.set()
    assert all(asked.count(name) == 1 for name in hosts if name != "h19")


def test_gone_hosts_stay_gone():
    world = World(h2="TRUE")
    world.marked()
    gone = {"h2": HostStatus("small", Phase.GONE, "killed")}
    assert world.poller.mark(gone) == gone
    assert isinstance(world.poller._notices["h2"], Notice)
