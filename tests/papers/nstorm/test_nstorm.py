"""The N-Storm experiment: what a window lost is measured from its own batches, and claims are judged by paired blocks."""

import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.task_id import TaskId
from elastream.errors import EnvironmentProblem
from elastream.evaluation.page import render
from elastream_papers.nstorm import experiment
from elastream_papers.nstorm.page import bars, claims_of, outcome
from elastream_papers.nstorm.rig import CommittedBatch

HOSTS = ["a", "b", "c", "d"]


def every(seconds: float, rows: int, since: float, until: float) -> list[CommittedBatch]:
    """Batches of `rows` records, one after the other."""
    count = round((until - since) / seconds)
    return [CommittedBatch(since + n * seconds, since + (n + 1) * seconds, rows) for n in range(count)]


@given(st.lists(st.tuples(st.floats(0.01, 5), st.floats(0, 3), st.integers(1, 1000)), max_size=20), st.floats(0, 60))
def test_no_record_is_lost_or_counted_twice(gaps, cut) -> None:
    at, batches = 100.0, []
    for seconds, pause, rows in gaps:
        batches.append(CommittedBatch(at, at + seconds, rows))
        at += seconds + pause
    both = experiment.records_between(batches, 0.0, 100.0 + cut) + experiment.records_between(batches, 100.0 + cut, 1e6)
    assert both == pytest.approx(sum(batch.rows for batch in batches))


@pytest.mark.parametrize(
    ("landed", "batches", "figures"),
    [
        (3.2, every(0.25, 100, 0.0, 10.0), (0.0, 0.25)),
        (5.1, every(0.25, 100, 0.0, 3.0) + every(0.25, 100, 5.0, 10.0), (2.0, 2.25)),
        (3.5, [*every(0.25, 100, 0.0, 3.0), CommittedBatch(3.0, 4.25, 100), *every(0.25, 100, 4.25, 10.0)], (1.0, 1.25)),
    ],
    ids=["nothing happens", "a stop", "a slow batch"],
)
def test_what_is_lost_and_the_longest_gap_are_those_of_the_batches(landed, batches, figures) -> None:
    lost, gap, rate = experiment.measured(experiment.Marks(0.0, 3.0, landed, 10.0), batches)
    assert (lost, gap, rate) == pytest.approx((*figures, 400.0), abs=1e-9)
    with pytest.raises(EnvironmentProblem, match="no baseline"):
        experiment.measured(experiment.Marks(0.0, 3.0, 9.0, 10.0), every(0.25, 100, 0.0, 3.0))


@given(st.integers(1, 16), st.integers(0, 1000))
def test_a_redeployment_moves_as_many_as_asked_and_stays_even(moves: int, seed: int) -> None:
    at = {TaskId("count", index): HOSTS[index % 4] for index in range(16)}
    for round_ in range(3):
        wanted = experiment.redeploy(at, HOSTS, moves, random.Random(seed + round_))
        assert len(wanted) == moves
        assert all(at[task] != host for task, host in wanted.items())
        at |= wanted
        load = Counter(at.values())
        assert max(load.values()) - min(load[host] for host in HOSTS) <= 2


def test_every_block_has_every_way_once_in_an_order_by_chance() -> None:
    order = experiment.MAIN.order(random.Random(1))
    assert len(order) == experiment.MAIN.blocks * len(experiment.MAIN.moves)
    assert all(set(ways) == set(experiment.MAIN.ways) for _, _, ways in order)
    assert len({ways for _, _, ways in order}) > 3


def windows(moves=(1, 7, 16), blocks=10, lost=(3.0, 1.0, 0.5), noise=0.1):
    """Windows in which ways lose so much, with noise of a block that all its ways have, and some of their own."""
    chance, found = random.Random(1), []
    for number in moves:
        for block in range(blocks):
            common = chance.gauss(0, 1)
            for way, each in zip((experiment.RESTART, experiment.ONLINE, experiment.LAZY), lost, strict=True):
                value = each + common + chance.gauss(0, noise)
                found.append(
                    experiment.MoveWindow(experiment.MAIN.name, number, block, way.name, value, value / 2, 2.0, 0.5, 1000.0)
                )
    return found


def test_bars_are_held_missed_or_undecided_by_differences_within_blocks() -> None:
    assert {check.verdict for check in bars(windows(), 0)} == {"held"}
    assert len(claims_of(windows())) == 13
    assert {check.verdict for check in bars(windows(lost=(1.0, 3.0, 4.0)), 1)} == {"missed"}
    assert {check.verdict for check in bars(windows(blocks=2), 0)[1:]} == {"undecided"}


def test_state_must_be_loaded_ahead_where_the_query_waits() -> None:
    def verdict(*warm: float) -> str:
        arm, way = experiment.PARTLY.name, experiment.LAZY.name
        return bars([experiment.MoveWindow(arm, 7, n, way, 0, 0, 0, each, 1) for n, each in enumerate(warm)], 0)[-1].verdict

    assert (verdict(6 / 7, *[1.0] * 9), verdict(0.0, 0.0)) == ("held", "missed")


def test_the_page_names_what_is_undecided_and_the_papers_figures() -> None:
    about = {
        "batches": 40, "wrong counts": 0, "hosts": "four processes", "others": 0.25, "batch seconds": {"full load": 0.3},
        "power, by the pilot": "power with 10 blocks",
    }  # fmt: skip
    found = outcome(windows((7,), 2), experiment.QUICK, about, 100.0)
    assert found.holds
    assert "Undecided: " in found.verdict
    page = render(found.page)
    assert "other programs used 25% of its cores" in page
    assert "0.30 s at full load" in page
    assert ("Storm, 1 task", "279", "267", "1") in found.page.tables[-1].rows
    json.dumps(found.to_json(), allow_nan=False)
