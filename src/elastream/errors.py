"""Errors that a user can correct.

Each problem that a user can cause (an invalid dataflow, a missing file, a full disk) raises one of these, with one sentence
that names the problem and the place. The command line prints that sentence and exits with status 2; only faults of the
package itself show a stack trace.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class ElastreamError(Exception):
    """An error that a user can correct; `str(error)` is one sentence that names what is wrong and where.

    at: keys that lead to what is wrong in a document that declares it (`("operators", "words", "cores")`); empty where none
    does. `documents` puts file, line and field before the sentence.
    """

    exit_status = 2

    def __init__(self, sentence: str = "", at: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.at = at


@contextmanager
def about(*at: str) -> Iterator[None]:
    """Give an error raised inside the keys `at`, unless it has some."""
    try:
        yield
    except ElastreamError as error:
        error.at = error.at or at
        raise


class DataflowError(ElastreamError):
    """The dataflow is invalid: a cycle, an unknown operator, a missing function, two operators of one name."""


class CloudError(ElastreamError):
    """Hosts, prices or leases are invalid: a negative price, a host type without cores, a billing time unit of 0."""


class InputError(ElastreamError):
    """Input is missing or malformed: no such file, an empty folder, text that is not UTF-8, a trace with gaps."""


class EnvironmentProblem(ElastreamError):
    """The machine or engine lacks something: no Java, a port in use, a full disk, a missing mechanism."""


class HostsGone(EnvironmentProblem):
    """A provider and all its hosts are gone for good: what ran on them can only go on in another run."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, without the plan or stack trace that follows; its type if it has no text."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def in_one_line(error: BaseException) -> str:
    """The first line of an error's text, preceded by its type except for errors that a user can act on."""
    name, said = type(error).__name__, first_line(error)
    return said if isinstance(error, ElastreamError) or said == name else f"{name}: {said}"


EXTRAS = {
    "numba": "simulator",
    "threadpoolctl": "simulator",
    "ortools": "solver",
    "fastapi": "services",
    "uvicorn": "services",
    "httpx": "services",
    "plotly": "pages",
    "prometheus_client": "metrics",
    "sklearn": "learned",
    "statsforecast": "forecast",
    "kafka": "kafka",
    "fsspec": "remote",
    "requests": "remote",
    "opentelemetry": "tracing",
    "redis": "outside",
}
"""The extra by the library's import name."""


def missing(error: ImportError, what: str = "this") -> str:
    """Return one sentence that names the extra to install; empty if `error` is not about a library of an extra."""
    library = (error.name or "").partition(".")[0]
    if library not in EXTRAS:
        return ""
    return f"{what} needs {library}: pip install 'elastream[{EXTRAS[library]}]'"


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Raise EnvironmentProblem, naming the extra, if an import in the context fails for want of its library."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not (sentence := missing(error, what)):
            raise
        raise EnvironmentProblem(sentence) from error
