"""The live page without a browser: who is admitted, what is shown of a recording that grows, and actions."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from elastream.core.action import LeaseHost, Outcome, Status
from elastream.core.decision import Decision, Proposal
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.observation import MicroBatch
from elastream.core.wording import money
from elastream.dashboard.page.feed import ENDED, SPANS, Feed
from elastream.dashboard.page.server import Page
from elastream.errors import InputError
from elastream.recording.manifest import run_lock
from elastream.recording.observer import describe_run
from elastream.recording.parts import Keep
from elastream.recording.recorder import Recorder, Recording
from elastream.recording.request_log import RequestLog
from elastream.recording.tail import Tail
from elastream.report.summary import summarise
from elastream.report.tally import tally_of
from support.example_run import SMALL, example_ending, example_events, example_header
from support.fake_plant import FakePlant
from support.page_runs import ended_run, live_run, new_run, record, text_of

TOKEN = "s3cret"
BATCHES = (MicroBatch("counts", 1.0, 2.0, 10.0),)


def whole(feed: Feed, span: str = "all") -> str:
    while feed.update() or feed.behind:
        pass
    return text_of(" ".join(feed.pieces(span).values()))


def client_of(*roots, token: str | None = TOKEN) -> TestClient:
    return TestClient(Page(roots).app(token), base_url="http://127.0.0.1:80", follow_redirects=False)


def test_without_the_token_there_is_401_and_nothing_else(tmp_path):
    client = client_of(ended_run(tmp_path / "run").root)
    for path in ("/", "/events", "/live.js", "/nowhere", "/?token=wrong", "/?token="):
        answer = client.get(path)
        assert (answer.status_code, answer.content) == (401, b"")
    client.cookies.set("elastream-80", "wrong")
    answer = client.post("/runs/0/actions", json={"action": "pause"})
    assert (answer.status_code, answer.content) == (401, b"")


def test_token_becomes_a_cookie_that_other_sites_do_not_get(tmp_path):
    client = client_of(ended_run(tmp_path / "run").root)
    answer = client.get(f"/?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))
    page = client.get("/")
    assert page.status_code == 200
    assert TOKEN not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_one_look_answers_what_people_ask(tmp_path):
    with live_run(tmp_path / "run") as (directory, _):
        shown = whole(Feed(directory.root))
    for part in (
        "word_count simulated running",
        "Service level 99% of the time p99 now",
        "Cost so far 0.",
        "fixed at the peak 0.",
        "best constant 0.",
        "Last action drain h2; release h2 20.0 s ago: 1 hosts are enough for 5/s",
        "Next no change within its thresholds",
        "words 5/s",
        "h1 running, 70% busy",
        "h2 released",
    ):
        assert part in shown


def test_a_run_that_dies_says_so_and_can_not_be_acted_upon(tmp_path):
    with live_run(tmp_path / "run") as (directory, _):
        page = Page([directory.root])
        feed = page.feeds[0]
        assert "running" in whole(feed)
    assert feed.update()
    assert "died" in whole(feed)
    assert "The driver is gone, and wrote no end." in whole(feed)
    with pytest.raises(InputError, match="is not live: it is died"):
        page._action(feed, {"action": "pause"})


def test_a_run_before_its_first_observation_is_shown(tmp_path):
    assert "It ended before anything was recorded." in whole(Feed(new_run(tmp_path / "run").root))


def test_figures_of_a_recording_that_grows_are_those_of_the_whole(tmp_path):
    with live_run(tmp_path / "run", events=40) as (directory, recorder):
        feed = Feed(directory.root)
        for end in (41, 90, 91, 200, None):
            assert feed.update()
            record(recorder, end, skip={41: 40, 90: 41, 91: 90, 200: 91, None: 200}[end])
        whole(feed)
        recorder.ended(example_ending())
    whole(feed)
    recording = Recording.read(directory.root)
    told, read = summarise(feed._tail.recording, feed._totals), summarise(recording)
    for name in ("cost", "records_within_target", "within_target", "static_cost", "rounds", "moves", "refused", "lost"):
        assert getattr(told, name) == pytest.approx(getattr(read, name), nan_ok=True), name
    assert [str(each) for each in told.fleets] == [str(each) for each in read.fleets]


def test_reading_goes_on_over_the_parts_of_a_long_recording(tmp_path):
    directory = new_run(tmp_path / "run")
    keep = Keep(math.inf, lambda recording: tally_of(recording).to_json(), part=20_000)
    recorder, tail = Recorder(directory.recording, keep=keep), Tail(directory.root)
    recorder.started(example_header())
    entries = []
    for end in range(10, 280, 10):
        record(recorder, end, skip=end - 10)
        while new := tail.read(7):
            entries += new
    assert len(list(directory.root.glob("recording-*"))) > 2
    read = Recording.read(directory.root)
    assert [each["time"] for each in entries if each["kind"] == "observation"] == read.times.tolist()
    assert tail.recording.decisions == read.decisions
    late = Tail(directory.root)
    while late.read(7):
        pass
    assert late.recording.times.tolist() == read.times.tolist()


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path):
    directory = ended_run(tmp_path / "run")
    content = directory.recording.read_bytes()
    at = content.index(b"\n", 5_000) + 100
    directory.recording.write_bytes(content[:at])
    tail = Tail(directory.root)
    first = tail.read(10_000)
    with directory.recording.open("ab") as file:
        file.write(content[at:])
    assert len(first) + len(tail.read(10_000)) == content.count(b"\n")


def test_only_a_part_of_the_run_is_drawn_on_request(tmp_path):
    with live_run(tmp_path / "run") as (directory, _):
        feed = Feed(directory.root)
        whole(feed)
        assert feed.pieces("all")["timeline"] == feed.pieces("1 h")["timeline"]
        SPANS["1 min"] = 60.0
        try:
            shown = feed.pieces("1 min")["timeline"]
        finally:
            del SPANS["1 min"]
    assert ">2:00<" in shown
    assert ">1:30<" not in shown
    assert "M-" not in shown, "nothing lies left of the axis"


def act(client: TestClient, **fields: object) -> dict[str, str]:
    return client.post("/runs/0/actions", json=fields).json()


def test_an_action_is_done_and_journaled_once_it_is_confirmed(tmp_path):
    with live_run(tmp_path / "run") as (directory, _):
        page = Page([directory.root])
        whole(page.feeds[0])
        client = TestClient(page.app(None))
        asked = act(client, action="pause")
        assert asked["sentence"].startswith("Pause run? Its controller plans and records")
        assert not directory.is_paused
        assert act(client, confirm=asked["confirm"]) == {"done": "pause of run is requested"}
        assert directory.is_paused
        assert "not valid any more" in act(client, confirm=asked["confirm"])["error"], "it counts once"
        act(client, confirm=act(client, action="bounds", min_hosts="2", max_hosts="3")["confirm"])
        act(client, confirm=act(client, action="drain", host="h1")["confirm"])
        act(client, confirm=act(client, action="unpause")["confirm"])
        assert not directory.is_paused
        requests = RequestLog(directory.requests).newer()
    assert [each.action for each in requests] == ["pause", "bounds", "drain", "unpause"]
    assert (requests[1].min_hosts, requests[1].max_hosts, requests[2].host) == (2, 3, "h1")
    assert directory.requests.stat().st_mode & 0o077 == 0


def test_leases_that_wait_are_approved_or_vetoed(tmp_path):
    with live_run(tmp_path / "run") as (directory, recorder):
        *_, last = (each for each in example_events() if isinstance(each, Decision))
        waits = tuple(Proposal(LeaseHost(f"h{n}", "small"), "btu", "approve: too dear") for n in (8, 9))
        recorder.decided(replace(last, round=last.round + 1, proposals=waits, outcomes=()))
        page = Page([directory.root])
        whole(page.feeds[0])
        client, held = TestClient(page.app(None)), page.feeds[0].pending_leases
        assert f"Waits for approval: 2 hosts more, for {money(held.hourly)}/h in all" in page.feeds[0].pieces("1 h")["held"]
        act(client, confirm=act(client, action="approve")["confirm"])
        act(client, confirm=act(client, action="veto")["confirm"])
        approved, vetoed = RequestLog(directory.requests).newer()
    assert approved.hourly == pytest.approx(3600 * SMALL.price_rate * (held.hosts + 2))
    assert (vetoed.action, vetoed.max_hosts) == ("bounds", held.hosts)


def test_veto_keeps_the_hosts_that_came_before_its_confirmation(tmp_path):
    with live_run(tmp_path / "run") as (directory, recorder):
        *_, last = (each for each in example_events() if isinstance(each, Decision))
        waits = (Proposal(LeaseHost("h9", "small"), "btu", "approve: too dear"),)
        recorder.decided(replace(last, round=last.round + 1, proposals=waits, outcomes=()))
        page = Page([directory.root])
        feed = page.feeds[0]
        whole(feed)
        client, before = TestClient(page.app(None)), feed.pending_leases.hosts
        asked = act(client, action="veto")
        granted = Outcome(LeaseHost("h8", "small"), Status.ACCEPTED)
        recorder.decided(replace(last, round=last.round + 2, proposals=waits, outcomes=(granted,)))
        whole(feed)
        act(client, confirm=asked["confirm"])
        act(client, confirm=act(client, action="bounds", min_hosts="1", max_hosts="1")["confirm"])
        act(client, confirm=act(client, action="veto")["confirm"])
        first, _, second = RequestLog(directory.requests).newer()
        assert first.max_hosts == before + 1
        assert (second.min_hosts, second.max_hosts) == (1, 1), "an earlier bound is not raised"
        asked = act(client, action="veto")
        recorder.decided(replace(last, round=last.round + 3, proposals=(), outcomes=()))
        whole(feed)
        assert act(client, confirm=asked["confirm"]) == {"error": "nothing waits for approval any more"}


def test_what_is_often_said_of_a_query_is_a_finding(tmp_path):
    with live_run(tmp_path / "run", 0) as (directory, recorder):
        for event in example_events():
            late = {"note": f"counts is late, {event.time:.0f} s so far"} if isinstance(event, Decision) else None
            recorder.observed(replace(event, batches=BATCHES)) if late is None else recorder.decided(replace(event, **late))
        shown = whole(Page([directory.root]).feeds[0])
    assert "For 100% of the decisions: counts is late, 180 s so far" in shown


def test_an_alternate_is_requested_and_given_back(tmp_path):
    directory, plant = new_run(tmp_path / "run"), FakePlant()
    with run_lock(directory):
        recorder = Recorder(directory.recording)
        recorder.started(describe_run(plant.context, policy="threshold", plant="simulated", started=0.0))
        recorder.observed(plant.observe())
        page = Page([directory.root])
        whole(page.feeds[0])
        client = TestClient(page.app(None))
        assert 'value="words=split_fast"' in page.feeds[0].pieces("1 h")["alternates"]
        shown = []
        for choice in ("split_fast", ""):
            act(client, confirm=act(client, action="alternate", alternate=f"words={choice}")["confirm"])
            shown.append(page.feeds[0]._requestable())
        act(client, confirm=act(client, action="bounds", max_hosts="3")["confirm"])
        shown.append(page.feeds[0]._requestable())
        requests = RequestLog(directory.requests).newer()
    assert [(each.operator, each.alternate) for each in requests[:2]] == [("words", "split_fast"), ("words", "")]
    assert ["words as split_fast (requested)" in each for each in shown] == [True, False, False]
    assert "Requested: at most 3 hosts." in shown[-1]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"action": "alternate", "alternate": "nobody=fast"}, "operator 'nobody' has no alternate 'fast'"),
        ({"action": "approve"}, "nothing waits for approval"),
        ({"action": "bounds", "min_hosts": "5", "max_hosts": "2"}, "at least 5 hosts and at most 2 contradict each other"),
        ({"action": "bounds", "max_hosts": "7"}, "the run itself allows at most 6 hosts"),
        ({"action": "bounds", "max_hosts": "-1"}, "max_hosts is '-1'; it must be a whole number"),
        ({"action": "drain", "host": "h99"}, "host 'h99' does not run"),
        ({"action": "explode"}, "'explode' is not an action"),
        ({}, "None is not an action"),
        ([], "this is not an action of a run on this page"),
        ({"confirm": "made up"}, "this confirmation is not valid any more"),
    ],
)
def test_a_senseless_action_is_refused_in_a_sentence(tmp_path, fields, why):
    with live_run(tmp_path / "run") as (directory, _):
        page = Page([directory.root])
        whole(page.feeds[0])
        answer = TestClient(page.app(None)).post("/runs/0/actions", json=fields)
    assert answer.status_code == 400
    assert why in answer.json()["error"]
    assert not directory.requests.exists()


def test_a_damaged_recording_is_a_sentence_on_the_page(tmp_path):
    directory = ended_run(tmp_path / "run")
    with directory.recording.open("a") as file:
        file.write('{"kind":"nonsense"}\n')
    page = Page([directory.root])
    page._update(0)
    assert "unknown kind" in text_of(page._pieces(0, "all")["head"])
    json.dumps(page._pieces(0, "all"))


def test_lanes_are_those_of_active_hosts_and_of_the_last_that_ended(tmp_path):
    feed = Feed(ended_run(tmp_path / "run").root)
    whole(feed)
    lease = Lease("h1", HostType("small", cores=1.0), 0.0, HostState.RELEASED, until=0.0)
    early = [replace(lease, host=f"early{n}", until=10.0 + n) for n in range(ENDED)]
    long = replace(lease, host="long", until=900.0)
    recording = SimpleNamespace(hosts=[replace(lease, host="now", state=HostState.RUNNING, until=None), long, *early])
    lanes, left = feed._lanes(recording, 0.0, 1000.0)
    assert left == 1
    assert {"now", "long"} <= {lane.host for lane in lanes}
