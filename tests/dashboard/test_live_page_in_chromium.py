"""The live page in a real Chromium: what it looks like at any width, by keyboard, and when things end."""

import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import Manifest, write_manifest
from elastream.recording.request_log import RequestLog
from support.browser import Browser, chromium, needs_chromium
from support.example_run import example_ending
from support.page_runs import ended_run, large_run, live_run, record

pytestmark = needs_chromium
RECORDED = Path(__file__).parent.parent / "simulator" / "data" / "word_count.jsonl.gz"
DRAWN = "document.querySelectorAll('article[data-run=\"0\"] [data-piece=timeline] svg').length > 3"


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


class Served:
    """`elastream serve` of folders, in a process of its own."""

    def __init__(self, *roots: Path) -> None:
        command = [sys.executable, "-c", "from elastream.cli import main; main()", "serve", *map(str, roots)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().removeprefix("live page: ").strip()

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)


def show(browser: Browser, url: str, width: int = 1200) -> None:
    browser.dark(False)
    browser.size(width, 900)
    browser.open(url)
    browser.until(DRAWN)


def test_a_page_fits_any_width_in_dark_and_light_and_says_when_a_run_dies(tmp_path, browser):
    ended_run(tmp_path / "ended")
    with Served(tmp_path / "ended") as first:
        show(browser, first.url)
        assert browser.script("return getComputedStyle(document.querySelector('.actions')).display") == "none"
    browser.until("document.getElementById('link').textContent.startsWith('No connection')")
    with (
        live_run(tmp_path / "live", events=200) as (directory, recorder),
        Served(directory.root, tmp_path / "ended") as page,
    ):
        show(browser, page.url)
        assert "token" not in browser.script("return location.href")
        for width in (1600, 900, 390):
            browser.size(width, 900)
            assert browser.script("return document.documentElement.scrollWidth <= innerWidth"), width
        columns = "getComputedStyle(document.querySelector('.runs')).gridTemplateColumns.split(' ').length"
        assert browser.script(f"return {columns}") == 1
        browser.size(1600, 900)
        assert browser.script(f"return {columns}") == 2, "runs side by side"
        ground = "getComputedStyle(document.body).backgroundColor"
        light = browser.script(f"return {ground}")
        browser.dark(True)
        assert browser.script(f"return {ground}") != light
        record(recorder, skip=200)
        browser.until("document.querySelector('[data-piece=head]').innerText.includes('3:00 long')")
    browser_says = "document.querySelector('article').dataset.state"
    with Served(directory.root) as page:
        show(browser, page.url)
        assert browser.until(f"{browser_says} === 'died'")
        assert "The driver is gone" in browser.text("[data-piece=head]")


def test_a_run_is_paused_drained_and_bounded_by_keyboard_alone(tmp_path, browser):
    with live_run(tmp_path / "live", events=120) as (directory, _), Served(directory.root) as page:
        show(browser, page.url)
        browser.script("document.getElementById('span').focus()")
        browser.press("tab", "enter")
        browser.until("document.querySelector('dialog').open")
        assert "Pause live?" in browser.text("dialog")
        browser.press("escape")
        browser.until("!document.querySelector('dialog').open")
        assert not directory.is_paused
        browser.press("enter")
        browser.until("document.querySelector('dialog').open")
        browser.press("tab", "enter")
        browser.until("document.querySelector('article').dataset.state === 'paused'")
        assert directory.is_paused
        assert browser.script("return getComputedStyle(document.querySelector('[data-act=pause]')).display") == "none"
        browser.script("document.querySelector('[name=max_hosts]').focus()")
        browser.press("9", "enter")
        browser.until("document.querySelector('.said').innerText.includes('at most 6 hosts')")
        browser.script("document.querySelector('[data-host=h1]').focus()")
        browser.press("enter")
        browser.until("document.querySelector('dialog').open")
        browser.press("tab", "enter")
        browser.until("document.querySelector('.said').innerText.includes('drain of live is requested')")
        assert [(each.action, each.host) for each in RequestLog(directory.requests).newer()] == [
            ("pause", ""),
            ("drain", "h1"),
        ]


def test_a_replay_of_the_last_hour_stands_beside_what_happened(tmp_path, browser):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recording.jsonl").write_bytes(gzip.decompress(RECORDED.read_bytes()))
    write_manifest(RunDirectory(tmp_path / "run"), Manifest("word_count", 0.0, identity={"made": "up"}))
    with Served(tmp_path / "run") as page:
        show(browser, page.url)
        browser.script("document.querySelector('.what-if [name=policy]').focus()")
        browser.press("tab", "2", "enter")
        browser.until("document.querySelector('[data-piece=what_if]').innerText.includes('Replaying the last hour')")
        browser.until("document.querySelectorAll('[data-piece=what_if] tbody tr').length === 3", seconds=120)
        shown = browser.text("[data-piece=what_if]")
        assert "horizon with at most 2 hosts, simulated" in shown
        assert "what happened" in shown
        browser.size(390, 900)
        assert browser.script("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_a_page_beside_a_run_ends_with_it_once_nobody_looks(tmp_path, browser):
    with live_run(tmp_path / "live") as (directory, recorder):
        command = [sys.executable, "-m", "elastream.dashboard.page.serving", str(directory.root)]
        beside = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        show(browser, beside.stdout.readline().strip())
        assert os.getpriority(os.PRIO_PROCESS, beside.pid) >= 10
        recorder.ended(example_ending())
    beside.stdin.close()
    browser.until("document.querySelector('article').dataset.state === 'finished'")
    browser.open("about:blank")
    assert beside.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "observations", "every"), [(1000, 240, 15.0), (4, 17_280, 5.0)], ids=["hosts", "day"])
def test_a_thousand_hosts_and_a_day_of_history_stay_usable(tmp_path, browser, hosts, observations, every):
    with large_run(tmp_path / "many", hosts, observations, every) as directory, Served(directory.root) as page:
        show(browser, page.url)
        paints = browser.script("return performance.getEntriesByType('paint').map(each => each.startTime)")
        browser.until("!document.querySelector('[data-piece=head]').innerText.includes('Reading')", seconds=300)
        browser.script("const e = document.getElementById('span'); e.value = 'all'; e.dispatchEvent(new Event('change'))")
        browser.until("document.querySelectorAll('.lease').length == arguments[0]", hosts)
        size = browser.script("return document.documentElement.outerHTML.length")
        print(f"first paint {paints} ms, page {size:,} characters")
        assert size < 2_000_000
        assert browser.script("return document.querySelector('.lanes').clientHeight") <= 420
