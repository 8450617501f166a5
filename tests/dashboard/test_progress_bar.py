"""How far a computation is, where there is no terminal."""

import io

from rich.console import Console

from elastream.dashboard import progress
from elastream.dashboard.progress import progress_bar


def test_progress_is_no_part_of_what_a_command_prints(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    with progress_bar(Console(file=io.StringIO())) as say:
        say("threshold", 0, 2)
        say("threshold", 2, 2)
    assert capsys.readouterr() == ("", "0 of 2 done: threshold\n")
