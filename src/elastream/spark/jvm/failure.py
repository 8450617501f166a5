"""Cause of a failed query in Spark's message, which a driver and an event log have alike."""

import re


def cause_of_failure(message: str) -> str:
    """Return the cause in the message of a failed query, in one line: of Python code its own error, else the first line."""
    _, _, trace = message.partition("Traceback (most recent call last):")
    raised = [line for line in trace.splitlines() if re.match(r"[A-Za-z_][\w.]*(:|$)", line)]
    if raised:
        return raised[0].strip()
    text = re.sub(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ", "", message.strip())
    first = text.partition("\n")[0].strip()
    lost = re.search(r"most recent failure: Lost task .*?\): (.+)", first)
    return re.sub(r" SQLSTATE: \w+$", "", lost[1] if lost else first)
