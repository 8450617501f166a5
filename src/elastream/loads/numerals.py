"""Numbers as files write them: thousands in groups, decimal points and decimal commas.

A column decides, not a cell: `6,000` beside `12,5` is six, and beside `1,234,567` it is six thousand.
"""

import re
from collections.abc import Sequence

MISSING = frozenset({"", "nan", "null", "none", "na", "n/a", "#n/a", "-", "--", "nil", "undefined", "<na>", "nat"})

_BLANKS = "[ \u00a0\u202f\u2009'’_]"
_EXPONENT = r"(?:[eE][+-]?\d+)?"
_GROUPS = {mark: rf"[+-]?[1-9]\d{{0,2}}(?:{re.escape(mark)}\d{{3}})+" for mark in ",."}
_BLANK_GROUPS = rf"[+-]?[1-9]\d{{0,2}}(?:{_BLANKS}\d{{3}})+"


def _forms(decimal: str, thousands: str) -> re.Pattern[str]:
    point = re.escape(decimal)
    whole = rf"(?:[+-]?\d*|{_GROUPS[thousands]}|{_BLANK_GROUPS})"
    return re.compile(rf"(?=[+-]?{point}?\d){whole}(?:{point}\d*)?{_EXPONENT}")


_FORMS = {".": _forms(".", ","), ",": _forms(",", ".")}
_GROUPED = {mark: re.compile(groups) for mark, groups in _GROUPS.items()}


class AmbiguousNumberError(ValueError):
    """A column whose numbers can be read in two ways."""


def is_missing(text: str) -> bool:
    return not text.isdecimal() and text.strip().lower() in MISSING


def is_number(text: str) -> bool:
    return text.isdecimal() or any(form.fullmatch(text.strip()) for form in _FORMS.values())


def decimal_mark(texts: Sequence[str], separator: str) -> str:
    """Return the mark before the decimals of a column, `.` or `,`.

    Args:
        separator: Separator of the file's cells. Where it is a comma, the decimals of its writer have a point.

    Raises:
        AmbiguousNumberError: The texts leave it open, or contradict each other.
    """
    marked = [text for text in map(str.strip, texts) if "," in text or "." in text]
    both = [[mark for mark in ".," if _FORMS[mark].fullmatch(text)] for text in marked]
    sure = {marks[0] for marks in both if len(marks) == 1}
    if len(sure) == 2:
        raise AmbiguousNumberError("some numbers have a decimal point, and others a decimal comma")
    unsure = next((text for text in marked if any(form.fullmatch(text) for form in _GROUPED.values())), None)
    if sure and not (unsure is not None and separator == "," and "," in sure):
        return sure.pop()
    if not sure and separator in ("", ","):
        return "."
    if unsure is not None:
        raise AmbiguousNumberError(f"{unsure} can have thousands or decimals: write it without a mark between its digits")
    return "."


def number_of(text: str, decimal: str) -> float:
    text = text.strip()
    if text.isdecimal():
        return float(text)
    if not _FORMS[decimal].fullmatch(text):
        raise ValueError(f"{text!r} is not a number")
    return float(re.sub(_BLANKS, "", text).replace("," if decimal == "." else ".", "").replace(",", "."))
