"""Invokes the command line in this process."""

from typer.testing import CliRunner, Result

from elastream.cli.app import app


def invoke(*words: object, columns: int | None = None) -> Result:
    """Return the result of `elastream WORDS`. columns: width of the terminal; by default there is none."""
    return CliRunner(env={} if columns is None else {"COLUMNS": str(columns)}).invoke(app, [str(word) for word in words])
