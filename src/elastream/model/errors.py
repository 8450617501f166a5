"""Errors that a user can act on.

Whatever a person can cause - a bad dataflow, a missing file, a full disk - is one of these and carries one clear
sentence that names the thing and the place. The command line prints that sentence and exits with status 2; a stack
trace is left to what we did wrong ourselves.
"""


class ElastreamError(Exception):
    """Something a user can put right; `str(error)` is one sentence that names what is wrong and where."""

    exit_status = 2


class DataflowError(ElastreamError):
    """The dataflow itself is wrong: a cycle, an unknown operator, a missing function, two operators of one name."""


class CloudError(ElastreamError):
    """Hosts, prices or leases are wrong: a negative price, a host type with no core, a billing time unit of zero."""


class InputError(ElastreamError):
    """What is read is wrong: no such file, an empty directory, a text that is not UTF-8, a trace with gaps."""


class EnvironmentProblem(ElastreamError):
    """The machine is not as needed: no Java, a port in use, a full disk, an engine that lacks a mechanism."""


def in_one_line(error: BaseException) -> str:
    """The first line of what `error` says, with its type unless a user can act on it; its type alone where it is silent."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, ElastreamError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
