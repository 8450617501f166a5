"""Which releases of Spark this is for; PySpark is not imported for it.

All of `elastream.spark` asks here first, also the processes that Python workers are forked from, which name their executor
before they load anything heavy.
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

OLDEST, NEWEST = (4, 0), (4, 3)
"""The releases that it is tested on. Later ones of the same major version are tried: each mechanism is probed."""


def release_of(version: str) -> tuple[int, int]:
    """The release of a version such as `4.1.4` or `4.3.0-SNAPSHOT`: (4, 1), (4, 3); (0, 0) if it is no version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def installed() -> str:
    """The version of the PySpark that would be imported; empty where that is not to be read without importing it."""
    if (loaded := sys.modules.get("pyspark")) is not None:
        return str(loaded.__version__)
    try:
        place = find_spec("pyspark")
        text = Path(str(place and place.origin)).with_name("version.py").read_text(encoding="utf-8")
    except (OSError, ValueError):  # in an archive
        return ""
    found = re.search(r"__version__[^=]*=\s*[\"']([^\"']+)", text)
    return found[1] if found else ""


def refusal(version: str) -> str:
    """Why nothing here works with PySpark `version`, and what would; empty where that is to be tried."""
    release = release_of(version)
    if release >= OLDEST and release[0] == NEWEST[0]:
        return ""
    first, last = (".".join(map(str, each)) for each in (OLDEST, NEWEST))
    needed = f"Elastream needs Spark {NEWEST[0]} ({first} to {last} are tested), and this is PySpark {version}"
    return f"{needed}: pip install 'pyspark>={first},<{NEWEST[0] + 1}'"
