"""Supported Spark releases. Does not import PySpark.

Python workers' parent processes also import this, before they load anything heavy.
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

# Tested releases. Later ones of the same major version are tried: each mechanism is probed.
OLDEST, NEWEST = (4, 0), (4, 3)


def release_of(version: str) -> tuple[int, int]:
    """Return the release of a version: (4, 3) for `4.3.0-SNAPSHOT`, (0, 0) if it is no version."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def installed() -> str:
    """Return the version of the PySpark that would be imported; empty if unreadable without importing it."""
    if (loaded := sys.modules.get("pyspark")) is not None:
        return str(loaded.__version__)
    try:
        place = find_spec("pyspark")
        text = Path(str(place and place.origin)).with_name("version.py").read_text(encoding="utf-8")
    except (OSError, ValueError):  # in an archive
        return ""
    match = re.search(r"__version__[^=]*=\s*[\"']([^\"']+)", text)
    return match[1] if match else ""


def refusal(version: str) -> str:
    """Return why nothing here works with PySpark `version`, and what would; empty if it is to be tried."""
    release = release_of(version)
    if release >= OLDEST and release[0] == NEWEST[0]:
        return ""
    first, last = (".".join(map(str, each)) for each in (OLDEST, NEWEST))
    needed = f"Elastream needs Spark {NEWEST[0]} ({first} to {last} are tested), and this is PySpark {version}"
    return f"{needed}: pip install 'pyspark>={first},<{NEWEST[0] + 1}'"
