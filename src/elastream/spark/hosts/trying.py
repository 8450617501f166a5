"""Calls of a provider, and notes of leases, while a run starts: one that fails now and then ends no start, as it ends no
run."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from elastream.errors import ElastreamError, EnvironmentProblem, in_one_line
from elastream.recording.lines import JournalProblem

T = TypeVar("T")

TRIED = 15.0
"""Seconds for which a call may fail, one time after the other."""
PAUSE = 0.5
"""Seconds between two tries."""

log = logging.getLogger(__name__)


def tried(do: Callable[[], T], what: str) -> T:
    """What `do` returns, which may be called several times. what: cannot be done while it fails: "hosts cannot be leased".

    An ElastreamError is what a provider has to say, and raised at once; but a ledger that cannot be written may be on a
    disk that is full for a moment. Raises EnvironmentProblem once TRIED is over.
    """
    began, warned = time.monotonic(), False
    while True:
        try:
            return do()
        except Exception as error:
            if isinstance(error, ElastreamError) and not isinstance(error, JournalProblem):
                raise
            said = f"{what}: {in_one_line(error)}"
            if time.monotonic() - began >= TRIED:
                raise EnvironmentProblem(said) from error
            log.log(logging.DEBUG if warned else logging.WARNING, "%s", said, exc_info=warned)
            warned = True
        time.sleep(PAUSE)
