"""`key_tables(run)`: the key tables of a run that goes on, to append to."""

from pathlib import Path

from elastream.recording.directory import RunDirectory
from elastream.recording.key_tables import KeyTableLog, selections_recorded
from elastream.recording.live import refuse_ended
from elastream.recording.recorder import Recording


def key_tables(run: Path | str) -> KeyTableLog:
    """The key tables of the run in the folder `run`, which other processes may append to while it goes on.

    Raises InputError for a run that has ended, or a folder that is no run's.
    """
    folder = Path(run)
    recording = Recording.outline(folder)
    refuse_ended(folder, recording, "key tables")
    return KeyTableLog(RunDirectory(folder), selections_recorded(recording.header))
