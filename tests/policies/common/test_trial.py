"""More hosts are leased for a query that falls behind as long as they bring something."""

from types import SimpleNamespace

import numpy as np
import pytest

from elastream.policies.common import reach
from elastream.policies.common.load_history import SHORTFALL_MEMORY_S, LoadHistory
from elastream.policies.common.reach import HALF_HELP, NO_HELP, ON_TRIAL, REST_S, after_trial

WINDOW = 10.0


class Rounds:
    """Rounds one after the other, each `WINDOW` seconds after the last."""

    def __init__(self, monkeypatch):
        self.seen, self.time = LoadHistory(np.zeros((6, 0)), 0.0), 0.0
        monkeypatch.setattr(reach.chained, "shared_capacity", lambda seen, hosts, equal: seen.cores)

    def after(self, cores, processed, busy, *, behind=1.5, coming=(), settled=True, steady=True, wait=WINDOW):
        self.time += wait
        sample = np.array([[self.time], [processed], [processed], [processed], [busy], [1.0]])
        self.seen = LoadHistory(sample, 0.0, trial=self.seen.trial)
        seen = SimpleNamespace(time=self.time, usable=("h1",), coming=coming, cores=cores)
        load = SimpleNamespace(window=WINDOW, settled=settled, steady_batches=steady)
        self.seen, said = after_trial(seen, load, self.seen, behind, equal=False)
        return said


@pytest.fixture
def rounds(monkeypatch):
    return Rounds(monkeypatch)


def test_hosts_without_gain_are_the_last_for_half_an_hour(rounds):
    assert rounds.after(4.0, 1000.0, 3.9) == ""
    assert rounds.after(5.0, 1010.0, 3.9) == ""
    said = rounds.after(6.0, 1020.0, 3.95)
    assert said.startswith(f"{NO_HELP}: 4 cores processed 1000/s and 3.9 were busy, 6 cores 1020/s and 3.95")
    assert rounds.after(6.0, 1020.0, 3.95, behind=1.0) == said
    assert rounds.after(6.0, 1020.0, 3.95, wait=SHORTFALL_MEMORY_S + 1) == ""


def test_query_that_lost_its_only_host_begins_no_trial(rounds):
    rounds.after(0.0, 1000.0, 3.9)
    assert rounds.after(4.0, 1000.0, 3.9) == ""
    assert rounds.after(8.0, 1900.0, 7.8) == ""


def test_no_more_hosts_are_leased_before_the_gain_shows(rounds):
    rounds.after(4.0, 1000.0, 3.9)
    assert rounds.after(8.0, 1000.0, 3.9, settled=False) == ON_TRIAL
    assert rounds.after(8.0, 1000.0, 3.9, coming=("h2",)) == ON_TRIAL
    assert rounds.after(8.0, 1900.0, 7.8) == ""


def test_hosts_with_low_gain_are_the_last_for_a_while(rounds):
    rounds.after(4.0, 1000.0, 3.9)
    assert rounds.after(8.0, 1200.0, 7.8, settled=False) == "", "judged once they are at work; more may come meanwhile"
    assert rounds.after(8.0, 1200.0, 7.8, coming=("h2",)) == ""
    said = rounds.after(8.0, 1200.0, 7.8)
    assert said == f"{HALF_HELP}: 4 cores processed 1000/s, 8 process 1200/s of 1800/s"
    assert rounds.after(8.0, 1200.0, 7.8, wait=REST_S - 1) == said
    assert rounds.after(8.0, 1200.0, 7.8, wait=1) == ""
    assert rounds.after(12.0, 1800.0, 11.0) == "", "what later ones bring is judged by what these did"
    assert rounds.seen.trial.cores == 12.0


def test_a_host_lost_while_no_more_are_leased_is_replaced(rounds):
    rounds.after(4.0, 1000.0, 3.9)
    assert rounds.after(8.0, 1200.0, 7.8)
    assert rounds.after(6.0, 900.0, 5.8) == ""
    assert rounds.seen.trial.cores == 6.0


@pytest.mark.parametrize(("processed", "busy"), [(1500.0, 5.9), (1500.0, 3.9), (1500.0, 0.0)])
def test_where_more_is_processed_hosts_go_on_coming(rounds, processed, busy):
    rounds.after(4.0, 1000.0, 3.9)
    assert rounds.after(6.0, processed, busy) == ""
    assert rounds.seen.trial.cores == 6.0


def test_query_that_keeps_up_is_not_on_trial(rounds):
    assert rounds.after(4.0, 1000.0, 3.9, behind=1.0) == ""
    assert rounds.seen.trial is None
    rounds.after(4.0, 1000.0, 3.9)
    assert rounds.after(8.0, 1000.0, 3.9, behind=1.0, coming=("h2",)) == ""
    assert rounds.after(12.0, 1000.0, 3.9).startswith(NO_HELP)


def test_batches_as_long_as_the_window_do_not_judge_hosts(rounds):
    rounds.after(4.0, 1000.0, 3.9)
    assert rounds.after(8.0, 0.0, 3.9, steady=False) == ""
    assert rounds.after(8.0, 0.0, np.nan) == ""
