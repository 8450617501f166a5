"""Extracts the cause of a failed query from Spark's error, as one sentence."""

import json
import re

from elastream.model.errors import first_line
from elastream.spark.worker.runner import FAILED

__all__ = ["explain_failure"]

_CAUSES = (
    (re.compile(r"No space left on device"), "the disk is full: Spark could not write its checkpoint, state or results"),
    (re.compile(r"Permission denied: '?([^'\n]+)|(/\S+): Permission denied"), "{0} cannot be written: permission denied"),
    (re.compile(r"ModuleNotFoundError: No module named '([^']+)'"), "the hosts lack the Python module {0!r}"),
    (re.compile(r"java\.lang\.OutOfMemoryError: ([^\n]+)"), "an executor ran out of memory ({0})"),
)


def explain_failure(exception: BaseException) -> str:
    """The cause of a streaming query's failure, in one sentence without a stack trace.

    For a user function that raised: operator, alternate, record and error. For known causes: a specific sentence. Else:
    the root cause in Spark's text.
    """
    text = str(exception)
    if (at := text.find(FAILED)) >= 0:
        return _operator_failed(text[at + len(FAILED) :])
    for pattern, sentence in _CAUSES:
        if match := pattern.search(text):
            return sentence.format(*(group for group in match.groups() if group))
    causes = re.findall(r"(?:Caused by: |^)((?:[\w.$]+(?:Error|Exception)): [^\n]+)", text, re.MULTILINE)
    return f"the query failed: {causes[-1] if causes else first_line(exception)}"


def _operator_failed(text: str) -> str:
    found, _ = json.JSONDecoder().raw_decode(text)
    alternate = f" (alternate {found['alternate']!r})" if found["alternate"] != found["operator"] else ""
    where = f"a batch of {found['batch_of']} records that begins with" if found["batch_of"] else "the record"
    return f"operator {found['operator']!r}{alternate} failed on {where} {found['record']}: {found['error']}"
