"""The N-Storm experiment: what a window lost is measured from its own batches, and claims are judged by paired blocks."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.task_id import TaskId
from elastream.errors import EnvironmentProblem
from elastream.evaluation.page import render
from elastream_papers.nstorm.experiment import (
    CYCLES_TRIED,
    FULL,
    LAZY,
    MAIN,
    ONLINE,
    PAPER,
    PLAIN,
    QUICK,
    RESTART,
    Marks,
    MoveWindow,
    measured,
    records_between,
    redeploy,
)
from elastream_papers.nstorm.page import bars, claims_of, differences, outcome, power_of
from elastream_papers.nstorm.rig import CommittedBatch

PAPER_TEXT = Path(__file__).parents[3] / "../shared/seeds/nstorm-otd-online-task-management.txt"
HOSTS = ["a", "b", "c", "d"]


@pytest.mark.skipif(not PAPER_TEXT.exists(), reason="the paper's text is not beside the repository")
def test_the_constants_are_the_papers() -> None:
    text = " ".join(PAPER_TEXT.read_text().split())
    said = (
        "279 seconds", "267 seconds", "155 seconds", "only costs 20 seconds", "is 118 seconds", "is 84 seconds",
        "is 53 seconds", "41% higher", "75% higher", "11% higher", "50th second",
    )  # fmt: skip
    for figure in said:
        assert figure in text, figure
    assert PAPER["Storm, 1 task"]["seconds at >= 60 %"] == 279


def every(seconds: float, rows: int, since: float, until: float) -> list[CommittedBatch]:
    """Batches of `rows` records, one after the other."""
    count = round((until - since) / seconds)
    return [CommittedBatch(since + n * seconds, since + (n + 1) * seconds, rows) for n in range(count)]


def test_a_batch_is_spread_over_its_own_time() -> None:
    assert records_between([CommittedBatch(10.0, 12.0, 100)], 10.0, 11.0) == pytest.approx(50.0)
    assert records_between([CommittedBatch(10.0, 12.0, 100)], 12.0, 20.0) == 0.0


@given(st.lists(st.tuples(st.floats(0.01, 5), st.floats(0, 3), st.integers(1, 1000)), max_size=20), st.floats(0, 60))
def test_no_record_is_lost_or_counted_twice(gaps, cut) -> None:
    at, batches = 100.0, []
    for seconds, pause, rows in gaps:
        batches.append(CommittedBatch(at, at + seconds, rows))
        at += seconds + pause
    both = records_between(batches, 0.0, 100.0 + cut) + records_between(batches, 100.0 + cut, 1e6)
    assert both == pytest.approx(sum(batch.rows for batch in batches))


def test_a_stop_loses_its_own_length_and_is_the_longest_gap() -> None:
    batches = every(0.25, 100, 0.0, 3.0) + every(0.25, 100, 5.0, 10.0)
    lost, gap, rate = measured(Marks(0.0, 3.0, 5.1, 10.0), batches)
    assert (lost, gap, rate) == pytest.approx((2.0, 2.25, 400.0))


def test_where_nothing_happens_nothing_is_lost() -> None:
    lost, gap, _ = measured(Marks(0.0, 3.0, 3.2, 10.0), every(0.25, 100, 0.0, 10.0))
    assert (lost, gap) == pytest.approx((0.0, 0.25), abs=1e-9)


def test_a_slow_batch_counts_until_it_has_ended_though_its_tasks_have_landed() -> None:
    batches = [*every(0.25, 100, 0.0, 3.0), CommittedBatch(3.0, 4.25, 100), *every(0.25, 100, 4.25, 10.0)]
    lost, gap, _ = measured(Marks(0.0, 3.0, 3.5, 10.0), batches)
    assert (lost, gap) == pytest.approx((1.0, 1.25))


def test_a_window_without_a_batch_after_its_moves_is_refused() -> None:
    with pytest.raises(EnvironmentProblem, match="no baseline"):
        measured(Marks(0.0, 3.0, 9.0, 10.0), every(0.25, 100, 0.0, 3.0))


@given(st.integers(1, 16), st.integers(0, 1000))
def test_a_redeployment_moves_as_many_as_asked_elsewhere_and_stays_even(moves: int, seed: int) -> None:
    at = {TaskId("count", index): HOSTS[index % 4] for index in range(16)}
    for round_ in range(3):
        wanted = redeploy(at, HOSTS, moves, random.Random(seed + round_))
        assert len(wanted) == moves
        assert all(at[task] != host for task, host in wanted.items())
        at |= wanted
        load = Counter(at.values())
        assert max(load.values()) - min(load[host] for host in HOSTS) <= 2


def test_every_block_has_every_way_once_in_an_order_by_chance() -> None:
    order = MAIN.order(random.Random(1))
    assert len(order) == MAIN.blocks * len(MAIN.moves)
    assert all(set(ways) == set(MAIN.ways) for _, _, ways in order)
    assert len({ways for _, _, ways in order}) > 3


def test_the_plain_form_takes_twenty_minutes_and_the_quick_one_less_than_two() -> None:
    def minutes(setting):
        arms = [*([setting.pilot] if setting.pilot else []), *setting.arms]
        return (setting.warm + sum(a.blocks * len(a.moves) * len(a.ways) * a.seconds for a in arms)) / 60

    assert minutes(PLAIN) < 20
    assert minutes(QUICK) < 1.5
    assert {way.name for arm in FULL.arms for way in arm.ways} > {way.name for way in (*MAIN.ways, *CYCLES_TRIED)}


def windows(moves=(1, 7, 16), blocks=10, lost=(3.0, 1.0, 0.5), noise=0.1):
    """Windows in which ways lose so much, with noise of a block that all its ways have, and some of their own."""
    chance, found = random.Random(1), []
    for number in moves:
        for block in range(blocks):
            common = chance.gauss(0, 1)
            for way, each in zip((RESTART, ONLINE, LAZY), lost, strict=True):
                value = each + common + chance.gauss(0, noise)
                found.append(MoveWindow(MAIN.name, number, block, way.name, value, value / 2, 2.0, 0.5, 1000.0))
    return found


def test_what_differs_within_blocks_is_held_whatever_blocks_have_in_common() -> None:
    assert {check.verdict for check in bars(windows(), 0)} == {"held"}
    assert len(claims_of(windows())) == 13


def test_a_wrong_count_and_ways_that_lose_more_are_missed() -> None:
    found = bars(windows(lost=(1.0, 3.0, 4.0)), 1)
    assert {check.verdict for check in found} == {"missed"}


def test_two_blocks_decide_nothing() -> None:
    assert {check.verdict for check in bars(windows(blocks=2), 0)[1:]} == {"undecided"}


def test_a_block_without_one_of_two_ways_is_left_out() -> None:
    some = [window for window in windows() if not (window.block == 3 and window.way == LAZY.name)]
    assert len(differences(some, RESTART, LAZY, 7, lambda window: window.lost)) == 9


def test_a_pilot_says_what_ten_blocks_would_decide() -> None:
    pilot = [MoveWindow("pilot", *list(vars_of(window))[1:]) for window in windows((7,), 4)]
    said = power_of(pilot, 13, 10)
    assert "power with 10 blocks" in said
    assert "100%" in said
    assert "0% for" in power_of(pilot, 13, 5)


def vars_of(window):
    return (getattr(window, name) for name in MoveWindow.__slots__)


def test_the_page_names_what_is_undecided_and_keeps_the_papers_figures_in_rows_of_their_own() -> None:
    about = {
        "batches": 40, "wrong counts": 0, "hosts": "four processes", "others": 0.25, "batch seconds": {"full load": 0.3},
        "power, by the pilot": "power with 10 blocks",
    }  # fmt: skip
    found = outcome(windows((7,), 2), QUICK, about, 100.0)
    assert found.holds
    assert "Undecided: " in found.verdict
    page = render(found.page)
    assert "other programs used 25% of its cores" in page
    assert "0.30 s at full load" in page
    assert ("Storm, 1 task", "279", "267", "1") in found.page.tables[-1].rows
    json.dumps(found.to_json(), allow_nan=False)
