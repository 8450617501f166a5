"""E2DF on hosts of several slots: what the paper's evaluation never does occurs there."""

from dataclasses import replace

from elastream_papers.e2df.experiment import E2dfAssumptions
from elastream_papers.e2df.larger_hosts import LargerHostsCase, larger_host_bars, run_larger_hosts


def test_hosts_are_drained_and_a_returning_load_cancels_a_drain():
    run = run_larger_hosts(LargerHostsCase(1, E2dfAssumptions()))
    assert min(run.done.values()) >= 1
    assert run.done["hosts drained"] >= run.done["drains cancelled"]
    assert all(check.holds for check in larger_host_bars([run]))
    none = replace(run, done={**run.done, "drains cancelled": 0})
    assert [check.verdict for check in larger_host_bars([none])] == ["held", "missed", "held", "held"]
