"""Format version of a run's files: a newer one is refused, an older one is read.

It is in the first line of a log, or a field of a JSON file; `run.json` has it for all files without room for one.
"""

from collections.abc import Mapping
from typing import Any

from elastream.errors import InputError

# Version of all files written here; this version and earlier ones are readable.
FORMAT = 1


def marked(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"format": FORMAT, **fields}


def unmarked(fields: dict[str, Any], place: object) -> dict[str, Any]:
    """Return `fields` without the format version. Raises InputError, naming `place`, for a newer format."""
    version = fields.pop("format", 0)
    if not isinstance(version, int) or version > FORMAT:
        raise InputError(
            f"{place} has format {version}: a newer Elastream wrote it, and this one reads formats up to {FORMAT}"
        )
    return fields
