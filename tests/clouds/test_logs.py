"""What executors of a local cluster write."""

from pathlib import Path
from urllib.parse import unquote, urlparse

from elastream.clouds.local.authentication import quiet_executors


def test_executors_write_warnings_only_wherever_the_folder_is(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    name, _, place = quiet_executors(folder).partition("=")
    assert name == "-Dlog4j2.configurationFile"
    assert " " not in place
    lines = Path(unquote(urlparse(place).path)).read_text().splitlines()
    assert "rootLogger.level = warn" in lines
