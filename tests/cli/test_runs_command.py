"""`elastream ls`, `status`, `stop` and what `serve` refuses, without an engine."""

import json
import os
import socket
import threading

import pytest

from elastream.control.loop import Loop
from elastream.policies.static import Static
from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import Manifest, run_lock, write_manifest
from elastream.recording.recorder import Recorder
from elastream.recording.run_state import StopRequests, state_of
from support.commands import invoke
from support.fake_plant import FakePlant
from support.page_runs import new_run
from support.waiting import wait_until


def folder(root, started=1000.0):
    root.mkdir()
    (root / "control").mkdir()
    directory = RunDirectory(root)
    write_manifest(directory, Manifest("word_count", started, identity={"x": 1}))
    return directory


def ran(directory, **limits):
    stop = StopRequests(directory)
    loop = Loop(FakePlant(), Static(hosts=1), observers=[Recorder(directory.recording), stop], **limits)
    stop.stop = loop.stop
    return loop.run()


@pytest.fixture
def runs(tmp_path):
    """A folder of two runs: `old` has stopped, `new` has died."""
    ran(folder(tmp_path / "old"), limit=8.0)
    folder(tmp_path / "new", started=2000.0)
    (tmp_path / "other").mkdir()
    return tmp_path


def test_runs_of_a_folder_are_listed_newest_first(runs):
    header, new, old = invoke("ls", runs).output.splitlines()
    assert header.split() == ["id", "dataflow", "state", "since", "cost", "in", "time"]
    assert new.split()[:3] == ["new", "word_count", "died"]
    assert old.split()[:3] == ["old", "word_count", "stopped"]
    rows = json.loads(invoke("ls", runs, "--json").output)
    assert [(row["id"], row["since"]) for row in rows] == [("new", 2000.0), ("old", 1000.0)]
    assert rows[0]["cost"] is None
    assert rows[1]["cost"] > 0


def test_run_with_a_damaged_recording_is_listed(runs):
    RunDirectory(runs / "old").recording.write_text("no entry\n")
    assert {row["id"] for row in json.loads(invoke("ls", runs, "--json").output)} == {"new", "old"}


def test_folder_without_runs_says_so(tmp_path):
    assert invoke("ls", tmp_path).output == f"no runs in {tmp_path}\n"
    refused = invoke("ls", tmp_path / "nowhere")
    assert (refused.exit_code, refused.output.count("\n")) == (2, 1)


def test_status_shows_state_and_newest_figures(runs):
    output = invoke("status", runs / "old").output
    assert output.startswith(f"{runs / 'old'} stopped: its limit of 8 s was reached\n")
    assert "throughput" in output
    figures = json.loads(invoke("status", runs / "old", "--json").output)
    assert (figures["state"], figures["policy"], figures["driver"], figures["hosts"]) == ("stopped", "static", None, 1.0)
    assert figures["newest"]["throughput"] > 0
    assert json.loads(invoke("status", runs / "new", "--json").output)["state"] == "died"


def test_live_run_is_stopped_in_order(runs):
    directory = RunDirectory(runs / "new")
    with run_lock(directory):
        assert state_of(directory).state == "starting"
        assert f"(process {os.getpid()}) is stopping" in invoke("stop", directory.root, "--no-wait").output
        ending = ran(directory, limit=60.0)
    assert (ending.status, ending.reason, ending.time) == ("stopped", "elastream stop", 0.0)
    assert not directory.stop_request.exists()


def test_stop_waits_until_the_driver_has_gone(runs):
    directory, locked = RunDirectory(runs / "new"), threading.Event()

    def drive():
        with run_lock(directory):
            locked.set()
            wait_until(directory.stop_request.exists)
            ran(directory, limit=60.0)

    driver = threading.Thread(target=drive)
    driver.start()
    locked.wait(20)
    assert invoke("stop", directory.root).output.endswith(f"{directory.root} stopped\n")
    driver.join()


def test_request_to_an_earlier_driver_does_not_stop_a_later_one(runs):
    directory = RunDirectory(runs / "new")
    directory.request_stop()
    os.utime(directory.stop_request, (1.0, 1.0))
    with run_lock(directory):
        assert ran(directory, limit=8.0).time == 8.0


def test_run_that_is_not_live_cannot_be_stopped(runs):
    refused = invoke("stop", runs / "old")
    assert (refused.exit_code, refused.output) == (2, f"elastream: {runs / 'old'} is not live: it is stopped\n")
    assert invoke("status", runs / "other").exit_code == 2


@pytest.fixture
def page_run(tmp_path):
    return new_run(tmp_path / "run").root


def test_a_folder_that_is_no_run_is_named(tmp_path):
    answer = invoke("serve", tmp_path)
    assert answer.exit_code == 2
    assert f"{tmp_path} is not the folder of a run" in answer.output


def test_a_run_is_named_once(page_run):
    answer = invoke("serve", page_run, page_run)
    assert (answer.exit_code, answer.output) == (2, "elastream: a run is named twice\n")


def test_an_address_in_use_and_one_that_is_none_are_named(page_run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = invoke("serve", page_run, "--address", port)
        assert answer.exit_code == 2
        assert f"127.0.0.1:{port}: Address already in use" in answer.output
    assert invoke("serve", page_run, "--address", "nowhere:99999").exit_code == 2


def test_who_opens_a_page_to_everyone_is_warned(page_run):
    with socket.create_server(("0.0.0.0", 0)) as taken:
        answer = invoke("serve", page_run, "--no-token", "--address", f"0.0.0.0:{taken.getsockname()[1]}")
    assert "everyone who reaches 0.0.0.0 can see and change these runs (--no-token)" in answer.output
