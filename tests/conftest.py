"""What tests may count on, however they were started, and on however slow a machine; and in which order they run.

A shell that runs a command in the background, and nohup, let it ignore signals. Processes that tests start inherit that,
and a test which ends them by a signal would wait for ever.
"""

import atexit
import fcntl
import logging
import os
import shutil
import signal
import tempfile

import pytest
from hypothesis import settings
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from xdist.scheduler import LoadFileScheduling

from elastream.clouds.local.archive import LOCK
from elastream.clouds.local.java import HOMES, cache_folder, linked_home
from properties import USUAL
from spark_jvm import end_shared_session, shared_session

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for ending in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(ending, signal.SIG_DFL)

# pytest lends its handler to loggers that do not propagate. PySpark makes such loggers when a query fails, and they change
# the format of every handler that they are given: what later tests of this process read from `caplog` would be JSON.
PySparkLogger.addHandler = logging.Logger.addHandler  # type: ignore[method-assign]

# No deadline: an example that takes long says that the machine is busy, and nothing of what is tested.
# `make test` runs a quarter of the examples, `make test-all` all of them (--hypothesis-profile=full).
settings.register_profile("quick", deadline=None, max_examples=USUAL // 4)
settings.register_profile("full", deadline=None, max_examples=USUAL)
settings.load_profile("quick")

# JVMs live for seconds here, and the optimising compiler spends more in them than it saves.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

CACHE = os.environ.get("CACHE_OF_TESTS")
if CACHE is None:  # the first process; its workers, and what they start, inherit both
    # No test writes into the user's cache. Archives of Java classes that are there are used; none is made beside the tests,
    # which takes a core for ten seconds: as long as tests run, another process seems to make one.
    kept = cache_folder()
    os.environ["JARS_OF_TESTS"] = str(kept / "tests")  # what Maven fetched for them stays: that takes minutes
    CACHE = tempfile.mkdtemp(prefix="cache-of-tests-")
    atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
    os.environ |= {"CACHE_OF_TESTS": CACHE, "XDG_CACHE_HOME": CACHE}
    CLASSES = cache_folder() / "java-classes"
    CLASSES.mkdir(parents=True)
    for archive in (kept / "java-classes").glob("*/manifest.json"):
        (CLASSES / archive.parent.name).symlink_to(archive.parent)
    if (kept / HOMES).exists():  # an archive holds for the class path that is written with it
        (cache_folder() / HOMES).symlink_to(kept / HOMES)
    MAKING = (CLASSES / LOCK).open("w")
    fcntl.flock(MAKING, fcntl.LOCK_EX)
    # Sessions of tests, too.
    os.environ["SPARK_HOME"] = str(linked_home())

SHARING = (
    "tests/spark/queries/test_compile.py",
    "tests/spark/queries/test_switches.py",
    "tests/spark/queries/test_patterns_on_spark.py",
    "tests/spark/queries/test_linear_road_on_spark.py",
    "tests/spark/dataflow/test_keyed.py",
    "tests/spark/dataflow/test_sources.py",
    "tests/spark/jvm/test_runs_python.py",
    "tests/docs/test_blocks_on_spark.py",
)
"""Files whose tests share a session: one worker runs them all."""
LONGEST = (
    *SHARING,
    "tests/spark/test_plant.py",
    "tests/benchmarks/test_churn.py",
    "tests/spark/placement/test_migration_on_spark.py",
    "tests/api/test_autopilot_any_query.py",
    "tests/api/test_resume.py",
    "tests/api/test_run.py",
    "tests/spark/test_crash_of_driver.py",
    "tests/clouds/test_local.py",
    "tests/clouds/test_providers_conform.py",
)
"""What several workers begin with: so that no long file is left when all others have come to their ends."""


class Scheduling(LoadFileScheduling):
    """A worker runs whole files, and all of those that share a session."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "a shared session" if file in SHARING else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {file: number for number, file in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.nodeid.split("::")[0], len(rank)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test on Spark with a session of its own finds none open."""
    if item.get_closest_marker("spark") and "local_spark" not in getattr(item, "fixturenames", ()):
        end_shared_session()


@pytest.fixture
def local_spark() -> SparkSession:
    """A session on this process's own cores, shared by all tests that a worker runs and that need no hosts."""
    return shared_session()
