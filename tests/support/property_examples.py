"""Numbers of examples of properties: all that a test asks for in `make test-slow`, a part of them in `make test`."""

from hypothesis import settings

USUAL = 100  # examples of the profile "full", in which every test gets as many as it asks for
FEWEST = 3


def examples(full: int) -> int:
    """Return the number of examples under the profile in force, for a test that asks for `full`."""
    return max(min(full, FEWEST), full * settings.default.max_examples // USUAL)
