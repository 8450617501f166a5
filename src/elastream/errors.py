"""Errors that a user can correct: one sentence with problem and location, and exit status 2 on the command line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager


class ElastreamError(Exception):
    """Error that a user can correct; `str(error)` is one sentence.

    Attributes:
        at: Keys of the faulty value in a document (`("operators", "words", "cores")`); empty if there is none. `documents`
            puts file, line and field before the sentence.
    """

    exit_status = 2

    def __init__(self, sentence: str = "", at: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.at = at


@contextmanager
def about(*at: str) -> Iterator[None]:
    """Set the keys `at` of errors raised inside, unless they have some."""
    try:
        yield
    except ElastreamError as error:
        error.at = error.at or at
        raise


class DataflowError(ElastreamError):
    """Invalid dataflow: a cycle, an unknown operator, a missing function, two operators of one name."""


class CloudError(ElastreamError):
    """Invalid hosts, prices or leases: a negative price, a host type without cores, a billing time unit of 0."""


class InputError(ElastreamError):
    """Missing or malformed input: no such file, an empty folder, text that is not UTF-8, a trace with gaps."""


class EnvironmentProblem(ElastreamError):
    """Fault of the machine or engine: no Java, a port in use, a full disk, a missing mechanism."""


class HostsGone(EnvironmentProblem):
    """Permanent loss of a provider with all its hosts; only another run can continue."""


# First line of any error of Java by Py4J, and package before the class in the next one.
CALL_OF_JAVA, CLASS_OF_JAVA = re.compile(r"An error occurred while calling \S+"), re.compile(r"^: ([a-z]\w*\.)*")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without plan or stack trace; its type if it has no text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not CALL_OF_JAVA.fullmatch(line)]
    return CLASS_OF_JAVA.sub("", lines[0]) if lines else type(error).__name__


def in_one_line(error: BaseException) -> str:
    """Return the first line of an error's text. The type stands before it, except for an ElastreamError."""
    name, line = type(error).__name__, first_line(error)
    return line if isinstance(error, ElastreamError) or line == name else f"{name}: {line}"


# Extra by import name of the library.
EXTRAS = {
    "pyspark": "spark",
    "py4j": "spark",  # comes with PySpark
    "cel_expr_python": "guards",
    "google": "guards",
    "numba": "simulate",
    "threadpoolctl": "simulate",
    "scipy": "simulate",
    "fastapi": "pool",
    "uvicorn": "page",
    "starlette": "page",
    "httpx": "pool",
    "prometheus_client": "metrics",
    "sklearn": "learned",
    "statsforecast": "forecast",
    "kafka": "kafka",
    "fsspec": "remote",
    "requests": "remote",
    "opentelemetry": "tracing",
}


def missing(error: ImportError, what: str = "this") -> str:
    """Return a sentence that names the extra to install, or "" if `error` is about something else."""
    library = (error.name or "").partition(".")[0]
    if library not in EXTRAS:
        return ""
    return f"{what} needs {library}: pip install 'elastream[{EXTRAS[library]}]'"


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Raise EnvironmentProblem that names the extra if an import inside fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not (sentence := missing(error, what)):
            raise
        raise EnvironmentProblem(sentence) from error
