"""Which releases of Spark are tried, and what is said on all others."""

import subprocess
import sys

import pytest

from elastream.spark.jvm.releases import installed, refusal


@pytest.mark.parametrize("version", ["3.5.6", "5.0.0", "none"])
def test_any_other_release_is_refused_in_one_sentence(version):
    assert refusal(version) == (
        f"Elastream needs Spark 4 (4.0 to 4.3 are tested), and this is PySpark {version}: pip install 'pyspark>=4.0,<5'"
    )


def test_the_version_is_read_without_an_import(tmp_path, monkeypatch):
    import pyspark

    assert installed() == pyspark.__version__
    monkeypatch.delitem(sys.modules, "pyspark")
    assert installed() == pyspark.__version__
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert installed() == ""
    (tmp_path / "pyspark" / "version.py").write_text('__version__ = "3.5.6"')
    assert installed() == "3.5.6"


@pytest.mark.parametrize("version", ["5.0.0"])
def test_the_command_line_says_it_and_ends_with_status_2(version, tmp_path):
    program = (
        f"import sys, pyspark; pyspark.__version__ = {version!r}; from elastream.cli import main; "
        "sys.argv = ['elastream', 'run', 'examples/word_count.py']; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert refusal(version) in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
