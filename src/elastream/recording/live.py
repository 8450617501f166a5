"""Check that a recorded run is still live: only then does it accept guards or key tables."""

import time
from pathlib import Path

from elastream.core.wording import clock
from elastream.errors import InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.recorder import Recording
from elastream.units import format_duration

# Seconds without an observation until a run without an end counts as dead: an action may take so long.
SILENT_S = 120.0


def check_live(run: Path, recording: Recording, what: str) -> None:
    """Raise InputError, about `what` it cannot accept, unless the run in the folder `run` is live."""
    ending = recording.ending
    if ending is not None:
        why = f", {ending.reason}" if ending.reason else ""
        raise InputError(f"{run} has {ending.status} at {clock(ending.time)}{why}: {what} are for a run that goes on")
    if not run.is_dir():
        raise InputError(f"{run} is no run's folder: {what} are given to the run, not to a recording of it")
    silent = time.time() - RunDirectory(run).recording.stat().st_mtime
    if silent > SILENT_S:
        silence = format_duration(round(silent))
        raise InputError(f"{run} has recorded nothing for {silence}: it died without an end, or hangs")
