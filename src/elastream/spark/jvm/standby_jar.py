"""Settings that load the classes that keep standby replicas (`copies/*.java`).

Executors fetch the jar by `spark.jars`, so that their class path and class archives stay the same.
"""

from collections.abc import Mapping
from pathlib import Path

from pyspark import __version__ as SPARK

from elastream.errors import EnvironmentProblem
from elastream.spark.jvm.jars import jar_of
from elastream.spark.jvm.releases import STANDBY_SINCE, release_of

PLUGIN = "elastream.copies.CopiesPlugin"
SOURCES = Path(__file__).parent / "copies"


def copies_settings() -> Mapping[str, str]:
    """Return the Spark settings of a session whose executors keep standby replicas. Raises EnvironmentProblem."""
    check_release(SPARK)
    return {"spark.plugins": PLUGIN, "spark.jars": jar().as_uri()}


def check_release(release: str) -> None:
    """Raise EnvironmentProblem for a release of Spark that cannot keep standby replicas."""
    if release_of(release) < STANDBY_SINCE:
        needed = ".".join(map(str, STANDBY_SINCE))
        raise EnvironmentProblem(f"no copies of state are kept: they need Spark {needed} or newer, and this is {release}")


def jar(sources: Path = SOURCES) -> Path:
    """Return the path of the jar of the classes in `sources`; make a missing one. Raises EnvironmentProblem."""
    try:
        return jar_of(sources)
    except EnvironmentProblem as problem:
        raise EnvironmentProblem(f"no copies of state are kept: {problem}") from problem
