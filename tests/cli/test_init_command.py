"""`elastream init` writes a project whose test passes."""

import json
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from elastream.cli.app import app
from support.commands import invoke


def test_project_is_valid_and_its_test_passes(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    created = invoke("init", folder)
    assert created.exit_code == 0, created.output
    assert sorted(each.name for each in folder.iterdir()) == ["load.csv", "test_words.py", "words.py"]
    checked = invoke("check", folder / "words.py")
    assert "dataflow 'words' is valid" in checked.output
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    tested = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_figures_of_a_simulation_go_to_standard_output(tmp_path: Path) -> None:
    runner = CliRunner()
    runner.invoke(app, ["init", str(tmp_path)])
    simulated = runner.invoke(app, ["simulate", str(tmp_path / "words.py"), "--json", "-"])
    assert simulated.exit_code in (0, 1), simulated.output
    assert "figures" in json.loads(simulated.stdout)
    assert "horizon" in simulated.stderr


def test_file_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text("mine")
    refused = invoke("init", tmp_path)
    assert refused.exit_code == 2
    assert refused.output == f"elastream: {tmp_path / 'words.py'} exists already: name another folder\n"
    assert (tmp_path / "words.py").read_text() == "mine"
