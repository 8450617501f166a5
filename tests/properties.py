"""How many examples a property is tried on: as many as its test says in `make test-all`, a part of them in `make test`."""

from hypothesis import settings

USUAL = 100
"""Examples of the profile "full", in which every test gets as many as it says."""
FEWEST = 5


def examples(full: int) -> int:
    """Examples for a test that wants `full` of them, under the profile in force."""
    return max(min(full, FEWEST), full * settings.default.max_examples // USUAL)
