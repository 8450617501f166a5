"""What Autopilot keeps in its folder: who holds it, the journal of actions, the leases.

A folder that cannot be used is no reason not to look after the queries: then all of it is in memory, with a warning.
"""

import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from elastream.control.journal import Journal
from elastream.errors import ElastreamError, in_one_line
from elastream.recording.directory import PRIVATE, RunDirectory
from elastream.recording.lease_log import LeaseLog
from elastream.recording.manifest import Manifest, held, read_manifest, write_manifest

log = logging.getLogger("elastream.autopilot")

APPLICATION = "the Spark application"


@dataclass(frozen=True, slots=True)
class Keeping:
    """folder: None where nothing is kept on disk. journal: of actions. leases: of hosts, by epoch seconds."""

    folder: Path | None
    journal: Journal
    leases: LeaseLog


def keeping(folder: Path | None, application: str, stack: ExitStack) -> Keeping:
    """Open `folder`, which this Autopilot holds until `stack` is left; a Spark application has the id `application`.

    What another application left undone was about its own hosts, which may have the same names: it is dropped. The leases
    are not: their hosts may outlive it, at the provider.
    """
    if folder is None:
        return Keeping(None, Journal(), LeaseLog())
    directory = RunDirectory(folder)
    try:
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        stack.enter_context(held(directory))
        before = read_manifest(directory) if directory.manifest.exists() else None
        journal, leases = Journal(directory.journal), LeaseLog(directory.leases)
        stack.callback(leases.close)
        if before is None or before.identity.get(APPLICATION) != application:
            journal.drop_unconcluded("it was another application's")
            write_manifest(directory, Manifest("queries", time.time(), identity={APPLICATION: application}))
    except (ElastreamError, OSError) as error:
        log.warning("autopilot keeps no recording and no journal: %s", in_one_line(error))
        return Keeping(None, Journal(), LeaseLog())
    return Keeping(folder, journal, leases)
