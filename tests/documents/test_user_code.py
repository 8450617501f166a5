"""Errors of users' programs as sentences."""

from pathlib import Path

from elastream.documents.user_code import blame

# PySpark asserts a session, without a message, where a Column is made.
PYSPARK = 'exec(compile("assert False", "/lib/site-packages/pyspark/sql/functions.py", "exec"))\n'


def raised(program: Path, text: str) -> BaseException:
    program.write_text(text)
    try:
        exec(compile(text, str(program), "exec"), {})
    except AssertionError as error:
        return error
    raise ValueError(f"{text} raised nothing")


def test_column_without_a_session_is_a_sentence(tmp_path: Path) -> None:
    error = blame(raised(tmp_path / "flow.py", PYSPARK), tmp_path)
    assert error is not None
    assert "flow.py:1: a Column needs a Spark session" in str(error)


def test_assertion_of_a_user_keeps_its_name(tmp_path: Path) -> None:
    error = blame(raised(tmp_path / "flow.py", "assert False, 'wrong'\n"), tmp_path)
    assert str(error).endswith("flow.py:1: AssertionError: wrong")
