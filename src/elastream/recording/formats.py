"""The format version of what a run keeps on disk: a newer one is refused, an older one is read.

Every log of JSON lines carries it in its first line, every JSON file as a field; files without one are of the time before
there was any, and read alike. What has no place for it (records that are replayed, edges, Spark's checkpoints) goes by that
of the run, in `run.json`.
"""

from collections.abc import Mapping
from typing import Any

from elastream.errors import InputError

FORMAT = 1
"""Of all files that this version writes; it reads this one and those before."""


def marked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` with the format version."""
    return {"format": FORMAT, **fields}


def unmarked(fields: dict[str, Any], place: object) -> dict[str, Any]:
    """`fields` without the format version; raises InputError, about the file at `place`, for one that is not known here."""
    version = fields.pop("format", 0)
    if not isinstance(version, int) or version > FORMAT:
        raise InputError(
            f"{place} has format {version}: a newer Elastream wrote it, and this one reads formats up to {FORMAT}"
        )
    return fields
