"""Events as files: what was made is what is read, and a folder is filled once."""

from pyarrow import parquet

from elastream.bench.nexmark.events import KINDS, Events
from elastream.bench.nexmark.files import write_events
from elastream.loads import constant
from support.commands import invoke


def silent(text, done, total):
    pass


def test_files_hold_every_event_in_order(tmp_path):
    events = Events(load=constant("100/s", lasts=10.0), disorder=1.0)
    write_events(events, tmp_path / "events", silent, size=400)
    for kind in KINDS:
        assert [file.name for file in sorted((tmp_path / "events" / kind).iterdir())] == [
            f"{n:05}.parquet" for n in range(3)
        ]
        assert parquet.read_table(tmp_path / "events" / kind).equals(events.table(kind, 0, 1000))


def test_command_writes_late_events_of_a_load(tmp_path):
    arguments = ["--rate", "50/s", "--lasts", "2s", "--load", "wave", "--late", "0.1", "--late-by", "30s"]
    result = invoke("bench", "events", str(tmp_path / "events"), *arguments)
    assert result.exit_code == 0, result.stderr
    times = parquet.read_table(tmp_path / "events" / "bid")["date_time"].to_pandas()
    assert 0 < (times.diff().dt.total_seconds() < -20).mean() < 0.3


def test_folder_with_other_events_is_refused(tmp_path):
    (tmp_path / "person").mkdir()
    result = invoke("bench", "events", str(tmp_path), "--rate", "50/s", "--lasts", "2s")
    assert result.exit_code == 2
    assert f"{tmp_path} exists and is not an empty folder" in result.stderr


def test_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    result = invoke("bench", "events", str(tmp_path / "file" / "events"), "--rate", "50/s", "--lasts", "2s")
    assert result.exit_code == 2
    assert "file/events cannot be written: Not a directory" in result.stderr
