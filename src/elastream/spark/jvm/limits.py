"""Limits of a session's executors that its settings declare; requests beyond them stay pending for ever."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from elastream.clouds.provider import UNLIMITED


@dataclass(frozen=True, slots=True)
class SessionLimit:
    executors: int = UNLIMITED
    name: str = ""


NO_LIMIT = SessionLimit()


def session_limits(master: str, setting: Callable[[str], str | None], slots: int) -> list[SessionLimit]:
    """Return the limits that a session's master and settings declare.

    Args:
        slots: Cores of an executor; 0 if unknown.
    """
    limits, cores = [], setting("spark.cores.max")
    if cores and slots and master.startswith(("spark://", "local-cluster")):
        limits.append(SessionLimit(int(cores) // slots, f"spark.cores.max={cores}"))
    if most := setting("spark.dynamicAllocation.maxExecutors"):
        limits.append(SessionLimit(int(most), f"spark.dynamicAllocation.maxExecutors={most}"))
    if small := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]", master):
        workers, each = int(small[1]), int(small[2])
        limits.append(SessionLimit(workers * max(1, each // max(1, slots or each)), master))
    return limits or [NO_LIMIT]
