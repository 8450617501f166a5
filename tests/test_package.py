"""The package: what installs, what Autopilot needs of it, and what is said where an extra is missing."""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from elastream.errors import EXTRAS, missing

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMES = {
    "protobuf": "google",
    "ruamel.yaml": "ruamel",
    "scikit-learn": "sklearn",
    "kafka-python": "kafka",
    "opentelemetry-api": "opentelemetry",
}
"""Import names that are not the distribution's."""
USE = """
from elastream import Autopilot, HostType, Local, ScalingRules
from elastream.clouds import PriceList
from elastream.policies import ByLoad, Threshold
from elastream.cli.app import app
from elastream.observability.events import EventLog
assert PriceList(core_hour=0.04).of(HostType("executor", cores=2)).price > 0
"""


def python(*words, **more):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300, **more)


def imported(requirement):
    name = re.split(r"[<>=\[; ]", requirement)[0]
    return NAMES.get(name, name.replace("-", "_"))


def test_autopilot_needs_no_extra():
    blocked = f"import sys; sys.modules.update(dict.fromkeys({sorted(EXTRAS)}))"
    found = python("-c", blocked + USE)
    assert found.returncode == 0, found.stderr


def test_every_library_of_an_extra_is_known_by_it():
    extras = PROJECT["optional-dependencies"]
    own = {"demo", "dev", "all", "outside"}
    needed = {imported(each) for extra in extras.keys() - own for each in extras[extra] if not each.startswith("elastream")}
    assert needed == EXTRAS.keys()
    for library, extra in EXTRAS.items():
        assert library in {imported(each) for each in extras[extra]}
    assert not EXTRAS.keys() & {imported(each) for each in PROJECT["dependencies"]}


def test_what_needs_an_extra_says_which():
    code = "import sys; sys.modules['numba'] = None\nfrom elastream import simulate"
    found = python("-c", code)
    said = found.stderr.strip().splitlines()[-1]
    assert said == "ImportError: simulate needs numba: pip install 'elastream[simulator]'"


def test_a_command_that_needs_an_extra_is_one_sentence():
    code = "import sys; sys.modules['numba'] = None; sys.argv = ['elastream', 'simulate', 'x']"
    code += "\nfrom elastream.cli import main; main()"
    found = python("-c", code)
    assert (found.returncode, found.stderr) == (
        2,
        "elastream: this command needs numba: pip install 'elastream[simulator]'\n",
    )


def test_another_missing_library_is_not_explained_away():
    assert missing(ModuleNotFoundError("x", name="somebody_elses")) == ""


def closure(requirements):
    """Distributions that are installed for `requirements`, those that they need included."""
    found, waiting = {}, [re.split(r"[<>=\[;! ]", each)[0] for each in requirements]
    while waiting:
        name = waiting.pop()
        if name.lower() in found:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[name.lower()] = distribution
        needs = [each for each in distribution.requires or () if "extra ==" not in each]
        waiting += [re.split(r"[<>=\[;!~( ]", each)[0] for each in needs]
    return found.values()


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_with_the_core_dependencies_only(tmp_path):
    source = tmp_path / "source"  # a build leaves its folders beside what it builds
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    wheeling = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q")
    built = python(*wheeling, "-w", tmp_path / "dist", source)
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "dist").glob("elastream-*.whl")
    assert python("-m", "venv", "--without-pip", tmp_path / "venv").returncode == 0
    site = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    # The core dependencies are linked, not downloaded: what is installed here is what the lock has.
    for distribution in closure(PROJECT["dependencies"]):
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            source, target = Path(str(distribution.locate_file(top))), site / top
            if source.exists() and not target.exists():
                target.symlink_to(source)
    installed = python("-m", "pip", "install", "--no-deps", "--no-index", "-q", "--target", site, wheel)
    assert installed.returncode == 0, installed.stderr
    own = [tmp_path / "venv" / "bin" / "python", "-I"]
    said = subprocess.run(
        [*own, "-c", USE + "import elastream, json; print(json.dumps([elastream.__file__, elastream.__version__]))"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    place, version = json.loads(said.stdout)
    assert Path(place).is_relative_to(site)
    assert version == PROJECT["version"]
    files = {path.name for path in (site / "elastream" / "observability" / "monitoring").iterdir()}
    assert {"dashboard.json", "alerts.yaml", "prometheus.yaml", "__init__.py"} <= files
    for library in EXTRAS:
        assert not (site / library).exists(), library


def test_a_report_without_its_extra_is_one_sentence():
    code = "import sys; sys.modules['plotly'] = None\nfrom elastream.report.page import render\nrender(None)"
    found = python("-c", code)
    assert found.stderr.strip().endswith("EnvironmentProblem: the report needs plotly: pip install 'elastream[pages]'")
