"""The package: what installs, what Autopilot needs of it, and what is said where an extra is missing."""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from elastream.errors import EXTRAS, missing
from elastream.recording.recorder import Recorder
from support.example_run import play

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = PROJECT["optional-dependencies"]
NAMES = {
    "protobuf": "google",
    "ruamel.yaml": "ruamel",
    "scikit-learn": "sklearn",
    "kafka-python": "kafka",
    "opentelemetry-api": "opentelemetry",
    "cel-expr-python": "cel_expr_python",
}
"""Import names that are not the distribution's."""
USE = """
from elastream import HostType, Local, ScalingRules
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


def test_every_library_of_an_extra_is_known_by_it():
    extras = OPTIONAL
    own = {"bench", "all"}
    needed = {imported(each) for extra in extras.keys() - own for each in extras[extra] if not each.startswith("elastream")}
    assert needed | {"py4j"} == EXTRAS.keys()
    for library, extra in EXTRAS.items():
        assert library in {imported(each) for each in extras[extra]} | {"py4j"}
    assert not EXTRAS.keys() & {imported(each) for each in PROJECT["dependencies"]}


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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a build leaves its folders beside what it builds
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    wheeling = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q")
    built = python(*wheeling, "-w", folder / "dist", source)
    assert built.returncode == 0, built.stderr
    (wheel,) = (folder / "dist").glob("elastream-*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """Make environments that have the built wheel, the core dependencies and the named extras, and run programs there."""

    def make(*extras, beside=()):
        folder = tmp_path_factory.mktemp("-".join(extras) or "core")
        assert python("-m", "venv", "--without-pip", folder / "venv").returncode == 0
        site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
        requirements = [*PROJECT["dependencies"], *(each for extra in extras for each in OPTIONAL[extra])]
        # The dependencies are linked, not downloaded: what is installed here is what the lock has.
        for distribution in closure(requirements):
            for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
                link(Path(str(distribution.locate_file(top))), site / top)
        for package in beside:
            link(Path(find_spec(package).origin).parent, site / package)
        zipfile.ZipFile(wheel).extractall(site)  # all that installing a pure wheel is, without pip's seconds
        if not extras and not beside:
            assert not [library for library in EXTRAS if (site / library).exists()]

        def run(code, *arguments):
            own = [folder / "venv" / "bin" / "python", "-I", "-c", code, *map(str, arguments)]
            return subprocess.run(own, capture_output=True, text=True, timeout=300, cwd=folder)

        return run

    return make


def link(source, target):
    if source.exists() and not target.exists():
        target.symlink_to(source)


@pytest.fixture(scope="module")
def core(environment):
    return environment()


def test_core_is_small_beside_spark_and_arrow():
    engine = {each.name for each in closure(["pandas", "pyarrow", "numpy"])}
    files = [
        distribution.locate_file(file)
        for distribution in closure(PROJECT["dependencies"])
        if distribution.name not in engine
        for file in distribution.files or ()
    ]
    assert sum(file.stat().st_size for file in files if file.exists()) <= 60e6


COMMAND = "from elastream.cli import main; main()"


def test_wheel_has_its_files_and_names_without_extras(core):
    code = "import elastream; from pathlib import Path; folder = Path(elastream.__file__).parent\n"
    code += (
        "print(elastream.__version__, *(path.relative_to(folder) for path in folder.rglob('*.*') if path.suffix != '.py'))"
    )
    result = core(USE + code)
    assert result.returncode == 0, result.stderr
    version, *files = result.stdout.split()
    assert version == PROJECT["version"]
    monitoring = {f"observability/monitoring/{name}" for name in ("dashboard.json", "alerts.yaml", "prometheus.yaml")}
    assert {"py.typed", "report/templates/report.html.j2", "report/templates/page.css", *monitoring} <= set(files)


IMPORT_ALL = """
import importlib, json, pkgutil, elastream
from elastream.errors import missing
failed = {}
for module in pkgutil.walk_packages(elastream.__path__, "elastream."):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        failed[module.name] = missing(error) or str(error)
print(json.dumps(failed))
"""
OF_EXTRAS = re.compile(
    r"elastream\.(bench|dashboard\.page|simulator|spark|api|testing|evaluation|pool|guards|observability|core\.throughput|policies)\b"
)
"""Packages of which some modules need an extra to be imported."""


def test_every_module_imports_without_extras_or_names_its_extra(core):
    result = core(IMPORT_ALL)
    assert result.returncode == 0, result.stderr
    failed = json.loads(result.stdout)
    assert {name: said for name, said in failed.items() if "pip install 'elastream[" not in said} == {}
    assert [name for name in failed if not OF_EXTRAS.match(name)] == []


EXAMPLE = ROOT / "examples" / "word_count.yaml"


def test_check_works_beside_a_pyspark_without_metadata(environment):
    cloud = "pool:url=http://127.0.0.1:9,application=wc"
    result = environment(beside=("pyspark", "py4j"))(COMMAND, "check", EXAMPLE, "--cloud", cloud)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout


def test_check_without_pyspark_names_its_extra(core):
    result = core(COMMAND, "check", EXAMPLE)
    assert result.returncode == 2
    assert result.stderr.splitlines() == ["elastream: this command needs pyspark: pip install 'elastream[spark]'"]


WORKS = {
    "spark": (COMMAND, "check", EXAMPLE),
    "guards": (COMMAND, "guards", "check", ROOT / "examples" / "guards.yaml"),
    "simulate": (COMMAND, "simulate", EXAMPLE),
    "pool": ("from elastream.pool.service import web_settings",),
    "page": ("from elastream.dashboard.page.server import Page; import uvicorn",),
    "metrics": ("from elastream.observability.metrics import PrometheusObserver; PrometheusObserver()",),
    "learned": ("from elastream.policies.forecasting.selection import NeuralNetwork; import sklearn",),
    "forecast": ("from elastream.policies.forecasting.seasonal import BackTested; assert not BackTested().lacking()",),
    "kafka": ("import kafka",),
    "remote": ("from fsspec.implementations.webhdfs import WebHDFS",),
    "tracing": ("from elastream.observability.tracing import SpanObserver; SpanObserver()",),
}


def test_every_extra_is_tried():
    assert WORKS.keys() == OPTIONAL.keys() - {"all", "bench"}


@pytest.mark.slow
@pytest.mark.parametrize("extra", WORKS)
def test_an_extra_alone_is_enough_for_its_feature(environment, extra):
    result = environment(extra)(*WORKS[extra])
    assert result.returncode == 0, result.stderr + result.stdout


def test_report_and_explain_work_without_extras(core, tmp_path):
    play(Recorder(tmp_path))
    result = core(COMMAND, "report", tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Decisions</h2>" in page
    assert "<b>Latency, s</b>" in page
    result = core(COMMAND, "explain", tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


NEEDS = {
    "from elastream import Autopilot": "Autopilot needs pyspark: pip install 'elastream[spark]'",
    "from elastream import simulate": "simulate needs numba: pip install 'elastream[simulate]'",
    "from elastream.clouds import Pool; Pool('http://127.0.0.1:9', application='wc').types": (
        "the connection to the pool needs httpx: pip install 'elastream[pool]'"
    ),
    "from elastream.observability.metrics import PrometheusObserver; PrometheusObserver()": (
        "serving Prometheus metrics needs prometheus_client: pip install 'elastream[metrics]'"
    ),
    "from elastream.observability.tracing import SpanObserver; SpanObserver()": (
        "tracing needs opentelemetry: pip install 'elastream[tracing]'"
    ),
}
USE_EACH = """
import json, sys
said = []
for code in json.loads(sys.argv[1]):
    try:
        exec(code)
    except Exception as error:
        said.append(str(error))
print(json.dumps(said))
"""


def test_a_missing_extra_is_one_sentence(core):
    result = core(USE_EACH, json.dumps([*NEEDS]))
    assert json.loads(result.stdout) == [*NEEDS.values()], result.stderr


ARBITER = "arbiter: {name: demo, listen: 127.0.0.1:8471, machines: {small: 1}}"


@pytest.mark.parametrize("words", [["experiment", "visp"], ["manager", "arbiter.yaml"]])
def test_a_command_without_its_extra_is_one_sentence(core, words, tmp_path):
    (tmp_path / "arbiter.yaml").write_text(ARBITER)
    result = core(COMMAND, *(tmp_path / word if word.endswith(".yaml") else word for word in words))
    assert result.returncode == 2
    *_, sentence = result.stderr.splitlines()
    extra = r"elastream: this command needs \w+: pip install 'elastream\[\w+\]'"
    assert re.fullmatch(
        rf"{extra}|elastream: the papers' experiments are a package of their own: pip install elastream-papers", sentence
    )
    assert "Traceback" not in result.stderr
