"""The last hour of a recorded run under another policy."""

import gzip
from pathlib import Path

import pytest

from elastream.errors import InputError
from elastream.evaluation import what_if as module
from elastream.evaluation.what_if import Outcome, what_if
from elastream.policies.static import Static
from elastream.recording.recorder import Recording
from support.page_runs import ended_run

DATA = Path(__file__).parent.parent / "simulator" / "data" / "word_count.jsonl.gz"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("word_count")
    (root / "recording.jsonl").write_bytes(gzip.decompress(DATA.read_bytes()))
    return root


def test_fewer_hosts_cost_less_and_are_later(run):
    answer = what_if(run, Static(1), 1)
    happened, again, then = (answer[name] for name in ("happened", "again", "then"))
    assert again["cost"] == pytest.approx(happened["cost"], rel=0.1)
    assert again["in_time"] == pytest.approx(happened["in_time"], abs=0.15)
    assert then["hosts"] == pytest.approx(1.0)
    assert then["cost"] < 0.5 * happened["cost"]
    assert then["in_time"] < 0.5 * happened["in_time"]


def test_only_records_of_the_window_count(run):
    recording = Recording.read(run)
    target = recording.header.target_latency
    whole = Outcome.of(recording, 0.0, recording.end, target)
    parts = [Outcome.of(recording, *span, target) for span in ((0.0, 100.0), (100.0, recording.end))]
    assert sum(part.cost for part in parts) == pytest.approx(whole.cost)
    assert min(part.in_time for part in parts) <= whole.in_time <= max(part.in_time for part in parts)


def test_simulated_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="calibration needs a run on Spark"):
        what_if(ended_run(tmp_path / "run").root, Static(1), 1)


def test_the_child_has_the_lowest_priority_and_is_the_module_of_the_page():
    from elastream.dashboard.page.what_if import CHILD

    assert module.__name__ == CHILD
    assert module.LOWEST_PRIORITY == 19
