"""Finds, in what Spark says of a failed query, the one sentence that a person needs."""

import json
import re

from elastream.spark.worker.runner import FAILED

__all__ = ["explain_failure", "first_line"]

_CAUSES = (
    (re.compile(r"No space left on device"), "the disk is full: Spark could not write its checkpoint, state or results"),
    (re.compile(r"Permission denied: '?([^'\n]+)|(/\S+): Permission denied"), "{0} cannot be written: permission denied"),
    (re.compile(r"ModuleNotFoundError: No module named '([^']+)'"), "the hosts lack the Python module {0!r}"),
    (re.compile(r"java\.lang\.OutOfMemoryError: ([^\n]+)"), "an executor ran out of memory ({0})"),
)


def explain_failure(exception: BaseException) -> str:
    """What went wrong in a streaming query, in one sentence without a stack trace.

    A user's function that raised is named with its alternate, the record and the error; of other failures, the known ones
    get a sentence of their own and the rest Spark's own first cause.
    """
    text = str(exception)
    if (at := text.find(FAILED)) >= 0:
        return _operator_failed(text[at + len(FAILED) :])
    for pattern, sentence in _CAUSES:
        if match := pattern.search(text):
            return sentence.format(*(group for group in match.groups() if group))
    causes = re.findall(r"(?:Caused by: |^)((?:[\w.$]+(?:Error|Exception)): [^\n]+)", text, re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"the query failed: {causes[-1] if causes else (lines[0] if lines else type(exception).__name__)}"


def first_line(error: BaseException) -> str:
    """What Spark says of a plan that is wrong, without the plan below it."""
    return str(error).splitlines()[0]


def _operator_failed(text: str) -> str:
    story, _ = json.JSONDecoder().raw_decode(text)
    alternate = f" (alternate {story['alternate']!r})" if story["alternate"] != story["operator"] else ""
    where = f"a batch of {story['batch_of']} records that begins with" if story["batch_of"] else "the record"
    return f"operator {story['operator']!r}{alternate} failed on {where} {story['record']}: {story['error']}"
