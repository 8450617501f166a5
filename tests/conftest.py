"""The environment and the order of tests.

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

from elastream.clouds.local.archive import LOCK
from elastream.clouds.local.java import HOMES, cache_folder, linked_home
from support.property_examples import USUAL
from support.shared_session import end_shared_session, shared_session

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for ending in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(ending, signal.SIG_DFL)

# pytest lends its handler to loggers that do not propagate. PySpark makes such loggers when a query fails, and they change
# the format of every handler that they are given: what later tests of this process read from `caplog` would be JSON.
PySparkLogger.addHandler = logging.Logger.addHandler  # type: ignore[method-assign]

# No deadline: an example that takes long says that the machine is busy, and nothing of what is tested.
# `make test` runs a tenth of the examples, `make test-slow` all of them (--hypothesis-profile=full).
settings.register_profile("quick", deadline=None, max_examples=USUAL // 10)
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with tests on Spark, which take longest. A file stays in one process (`--dist loadfile`).

    Before them, one process compiles the simulator: the others, which would each compile it, load it from the disk later.
    """
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    if item.path.name == "test_any_rate.py":
        return -1
    if "local_spark" in getattr(item, "fixturenames", ()):
        return 0
    return 1 if item.get_closest_marker("spark") else 2


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test on Spark with a session of its own finds none open."""
    if item.get_closest_marker("spark") and "local_spark" not in getattr(item, "fixturenames", ()):
        end_shared_session()


@pytest.fixture
def local_spark() -> SparkSession:
    """A session on this process's own cores, shared by all tests that a worker runs and that need no hosts."""
    return shared_session()
