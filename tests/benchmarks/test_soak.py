"""A tiny form of benchmarks/soak.py: thirty days of few batches lose nothing, and leave as little at the end as before."""

from _soak import soak


def test_thirty_days_leave_results_figures_and_few_files(tmp_path):
    found = soak(tmp_path, 300)
    assert (found.wrong, found.read) == (0, found.written)
    assert found.summary.status == "finished"
    assert found.tenths[-1].files <= 1.5 * max(tenth.files for tenth in found.tenths[:5])
