"""Which runs can go on, by what their folders hold; no Spark."""

import pytest

from elastream.api.folder import resumable
from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import Manifest, write_manifest


@pytest.mark.parametrize("recorded", [None, b"", b'{"kind":"sta'])
def test_a_run_that_was_killed_while_it_started_can_go_on(tmp_path, recorded):
    directory = RunDirectory.create(tmp_path, "f")
    write_manifest(directory, Manifest("f", 1.0, identity={"the dataflow": "f"}))
    if recorded is not None:
        directory.recording.write_bytes(recorded)
    assert resumable(directory).flow == "f"
