"""Errors in one line, whatever their text."""

import pytest

from elastream.model.errors import EnvironmentProblem, first_line, in_one_line


@pytest.mark.parametrize(
    ("error", "first", "line"),
    [
        (ValueError("one\ntwo"), "one", "ValueError: one"),
        (ValueError("\n  one"), "one", "ValueError: one"),
        (ValueError(), "ValueError", "ValueError"),
        (EnvironmentProblem("no Java"), "no Java", "no Java"),
        (EnvironmentProblem(""), "EnvironmentProblem", "EnvironmentProblem"),
    ],
)
def test_an_error_has_a_first_line_even_where_it_has_no_text(error: Exception, first: str, line: str) -> None:
    assert (first_line(error), in_one_line(error)) == (first, line)
