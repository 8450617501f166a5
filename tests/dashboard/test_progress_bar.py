"""How far a computation is, where there is no terminal."""

import io

from rich.console import Console

from elastream.dashboard.progress import progress_bar


def test_progress_goes_to_standard_error(capsys):
    with progress_bar(Console(file=io.StringIO()), line_seconds=0.0) as say:
        say("threshold", 0, 2)
        say("threshold", 2, 2)
    assert capsys.readouterr() == ("", "0 of 2 done: threshold\n")
