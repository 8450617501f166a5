"""A tiny form of benchmarks/soak.py: thirty days of few batches lose nothing, and leave as little at the end as before."""

from soak import LEASE_EVERY, soak

BATCHES = 150


def test_thirty_days_leave_results_figures_and_few_files(tmp_path):
    found = soak(tmp_path, BATCHES)
    assert (found.wrong, found.read) == (0, found.written)
    assert (found.summary.rounds, found.summary.status) == (BATCHES - 1, "finished")  # none with the last batch
    leases = 3 + (BATCHES - 1) // LEASE_EVERY
    assert found.summary.leases == leases  # or else nothing of what a lease leaves was tried
    assert found.moves > BATCHES // 2
    assert found.tenths[-1].files <= 1.5 * max(tenth.files for tenth in found.tenths[:5])
