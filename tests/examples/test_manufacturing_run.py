"""The manufacturing example on Spark, small: six queries over five durable edges, and every reading arrives once."""

import tempfile

import manufacturing
import numpy as np
import pytest

from elastream.api.run import commanded
from elastream.core.metrics import Metric
from elastream.errors import EnvironmentProblem
from elastream.loads import steps
from elastream.recording.recorder import Recording


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(manufacturing.needs_tesseract() != "", reason=manufacturing.needs_tesseract())
def test_every_display_is_reported_once_and_every_warning_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with commanded(runs=tmp_path / "runs"):
        manufacturing.main(steps(2, 4, every=4 * manufacturing.TICK))
    said = capsys.readouterr().out
    assert "24 displays, 16 of them in 1 reports: each reading arrived exactly once." in said
    (report,) = tmp_path.glob("manufacturing-*/reports/*.pdf")
    assert report.read_bytes().startswith(b"%PDF-")
    (folder,) = (tmp_path / "runs").iterdir()
    recording = Recording.read(folder)
    assert recording.ending is not None
    assert recording.ending.status == "finished"
    assert recording.ending.facts["query runs"] == 6
    # The operator behind the durable edge is seen with a queue, a duration and a cost of its own: tesseract's, above all.
    assert np.nanmax(recording.operator("parse", Metric.DURATION)) > 0.1
    assert recording.operator("parse", Metric.BACKLOG)[-1] == 0
    assert np.nanmax(recording.operator("parse", Metric.SERVICE_TIME)) > 0.05


def test_without_tesseract_nothing_is_started_and_what_to_do_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        commanded(runs=tmp_path / "runs"),
        pytest.raises(EnvironmentProblem, match="apt-get install tesseract-ocr"),
    ):
        manufacturing.main()
    assert not (tmp_path / "runs").exists()
