"""A tiny form of benchmarks/soak.py: thirty days of few batches lose nothing, and leave as little at the end as before."""

from _soak import LEASE_EVERY, soak


def test_thirty_days_leave_results_figures_and_few_files(tmp_path):
    found = soak(tmp_path, 400)
    assert (found.wrong, found.read) == (0, found.written)
    assert (found.summary.rounds, found.summary.status) == (400, "finished")
    assert found.summary.leases == 3 + 400 // LEASE_EVERY
    assert found.tenths[-1].files <= 1.5 * found.tenths[3].files
