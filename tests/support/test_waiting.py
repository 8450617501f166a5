"""Tests wait for as long as something gets on, and count seconds only as far as the machine had them."""

import subprocess
import sys

import pytest

from support.waiting import Patience, ended, share, wait_until


def test_a_wait_ends_with_what_came_about() -> None:
    seen = iter([0, "", "there"])
    assert wait_until(lambda: next(seen)) == "there"


def test_what_hangs_is_said_with_what_was_seen_last() -> None:
    with pytest.raises(AssertionError, match="three of four"):
        wait_until(lambda: False, patience=0.0, otherwise=lambda: "three of four")


def test_patience_begins_anew_with_each_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("support.waiting.time.monotonic", lambda: now)
    monkeypatch.setattr("support.waiting.scheduled", lambda pid: {})
    patience = Patience(10.0)
    for step in range(1, 10):
        now = 8.0 * step
        assert not patience.over(progress=step)
    now += 8.0
    assert not patience.over(progress=9)
    now += 8.0
    assert patience.over(progress=9)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param({"1": (50, 100)}, 1.0, id="nobody wanted a core"),
        pytest.param({"1": (70, 160)}, 0.25, id="one waited three times as long as it ran"),
        pytest.param({"1": (70, 120), "2": (40, 0)}, 0.75, id="and another one came"),
    ],
)
def test_a_second_counts_as_far_as_threads_had_the_cores_that_they_wanted(after, expected: float) -> None:
    assert share({"1": (50, 100)}, after) == expected


def test_what_a_process_wrote_is_read_to_its_end() -> None:
    program = "import sys; print('out'); print('problem', file=sys.stderr)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert ended(process) == ("out\n", "problem\n")


def test_a_process_that_hangs_is_killed_and_shown() -> None:
    program = "print('so far', flush=True); import time; time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with pytest.raises(AssertionError, match="so far"):
        ended(process, patience=0.5)
    assert process.poll() is not None
