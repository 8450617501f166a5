"""What calls raise under faults, by name: the error of the contract, and others."""

from collections.abc import Mapping

from py4j.protocol import Py4JError

from elastream.errors import EnvironmentProblem

ERRORS: Mapping[str, type[Exception]] = {
    each.__name__: each
    for each in (EnvironmentProblem, OSError, TimeoutError, RuntimeError, KeyError, ValueError, Py4JError)
}


def raised(how: str) -> Exception:
    """The exception that a schedule names."""
    return ERRORS[how.split()[0]]("as meant")
