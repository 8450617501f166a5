"""Opens the Spark session that a dataflow runs in, with the settings that elastic streaming needs, and probes it once.

What is set here is what was measured to matter: short locality waits, so that a lost executor stalls a batch for a
second and not for half a minute; no limit on executors lost, because releasing hosts is normal here; nothing on screen.
"""

import contextlib
import logging
import os
import shlex
import sys
import sysconfig
import time
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark import __version__ as SPARK
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from elastream.clouds.local.authentication import POOL_TOKEN
from elastream.clouds.local.java import DRIVER_OPTIONS, SCALA_VARIABLE, linked_home, scala_version, spark_home
from elastream.errors import EnvironmentProblem, InputError
from elastream.settings import StateStore
from elastream.spark.jvm.adapters import for_release
from elastream.spark.jvm.gateway import jvm_of, why_in_java

STATE_STORES: Mapping[StateStore, Mapping[str, str]] = MappingProxyType(
    {
        "memory": {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem"},
        "disk": {
            "spark.sql.streaming.stateStore.providerClass": (
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
            ),
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            # A read before each write, for a count of rows that nothing here asks for.
            "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
            # On the raw file system its snapshots fail with a ClassCastException: it hands files over by way of the other.
            "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        },
    }
)

FILES_OF_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

LOCALITY_WAIT = "1s"
"""How long a task waits for the executor that holds its state. A lost executor costs at most this once per batch; below
half a second, tasks of an unevenly loaded stage start to run away from their state."""

ONE_COLLECTOR = "-XX:+UseSerialGC"
"""Java's own choice where it sees one core. An executor sees all of its machine, since a quota is lifted while a host
starts; more collector threads than cores only wait for each other."""
SMALL_JVM = (ONE_COLLECTOR, "-XX:TieredStopAtLevel=1")
"""For executors on less than a core. The optimising compiler spends 12 CPU seconds in an executor's first minutes; what the
first tier makes is good enough for hosts that small."""
ONE_CORE_JVM = (
    ONE_COLLECTOR,
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Where all executors are on one core. With the first tier alone they came to 115,000 records/s in three minutes and not to
199,000; optimising as soon as Java usually does takes the core from tasks just when a host joins. So what runs ten times
as often is optimised."""

STACK = "-Xss32m"
"""Stack of the driver's threads: Spark searches for an interrupt in the text of a failed Python callback with an expression
that recurses a few times per character, and on the default stack a query stopped in mid-batch dies of that instead."""

COOKIE = "sparkCookie"
"""What Spark calls its secret among Hadoop's credentials."""

ELSEWHERE = "in the credentials of the driver"
"""Stands where Spark wants the secret to be among the settings; it takes the one in the credentials."""

OF_LOCAL_FILES = ("spark.sql.streaming.checkpointFileManagerClass",)
"""Settings that are best for checkpoints on a disk of this machine; elsewhere Spark knows better."""

REMAINS = 60.0
"""Seconds for which the JVM of a killed driver is waited for; it ends when it notices that its input has ended."""

LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yy/MM/dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""
"""Spark's own log goes to the run's folder: the terminal is for the live view, and hosts that leave make Spark talk, for
months: the newest 40 MB are kept."""


def _jvm_for(cores: Collection[float]) -> Sequence[str]:
    """Java's options for executors that are held to `cores` cores: one session has the same for all of its hosts."""
    if any(each < 1 for each in cores):
        return SMALL_JVM
    return ONE_CORE_JVM if cores and all(each < 2 for each in cores) else ()


def settings_for(
    *,
    driver_address: str,
    executor_memory: float,
    executor_cores: int | None,
    state_partitions: int,
    state_store: StateStore = "memory",
    host_cores: Collection[float] = (),
    java_options: Sequence[str] = (),
) -> Mapping[str, str]:
    """Spark settings of an elastic session; `executor_memory` in mebibytes.

    executor_cores: None where hosts differ in slots; the one executor of each host then takes all of its own. host_cores:
    of each type of host, that its executor is held to. java_options: of the executors, beside those that follow from it.
    """
    cores = {} if executor_cores is None else {"spark.executor.cores": str(executor_cores)}
    return {
        "spark.executor.extraJavaOptions": shlex.join([*_jvm_for(host_cores), *java_options]),
        "spark.driver.host": driver_address,
        "spark.driver.bindAddress": driver_address,
        "spark.driver.memory": "1g",
        "spark.executor.memory": f"{executor_memory:.0f}m",
        **cores,
        "spark.decommission.enabled": "true",
        # Shuffle files of one micro-batch are worthless to the next; waiting for their migration would only keep a host.
        "spark.storage.decommission.enabled": "false",
        "spark.executor.heartbeatInterval": "5s",
        "spark.locality.wait": LOCALITY_WAIT,
        "spark.stage.maxConsecutiveAttempts": "32",
        # A task that had begun to fetch from a lost executor hears only after this wait that it is lost: with 5 s, Spark's
        # default, a batch stood still for 6.9 s. As patient as Spark is with one that only does not answer: 15 s in all.
        "spark.shuffle.io.retryWait": "200ms",
        "spark.shuffle.io.maxRetries": "75",
        "spark.excludeOnFailure.enabled": "false",
        "spark.sql.shuffle.partitions": str(state_partitions),
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.metricsEnabled": "false",
        # Workers are forked with pandas, pyarrow and the walk loaded, in milliseconds instead of half a second of CPU each.
        "spark.python.daemon.module": "elastream.spark.worker.daemon",
        # A slow machine is no reason to end a query: a Python worker may take its time to say hello.
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.sql.streaming.numRecentProgressUpdates": "200",
        **session_settings(state_store),
    }


def session_settings(state_store: StateStore = "memory") -> Mapping[str, str]:
    """Spark settings that compiled queries need from the session that they run in; raises InputError for no such store."""
    if state_store not in STATE_STORES:
        raise InputError(f"there is no state store {state_store!r}; known: {', '.join(STATE_STORES)}")
    return {
        # About 40 ms less for every crossing into Python.
        "spark.python.unix.domain.socket.enabled": "true",
        # Hadoop's default ways with local files start a process (chmod, readlink) up to three times a file, and a batch
        # writes a file a state partition: this and the raw file system below took batches from 1.3 s to 0.5 s on a one-core
        # host. Files still come into being under another name and are renamed, which a crash leaves whole or not there.
        "spark.sql.streaming.checkpointFileManagerClass": for_release(FILES_OF_CHECKPOINTS, SPARK),
        # A partition that moves reads its last snapshot and every change since.
        "spark.sql.streaming.stateStore.maintenanceInterval": "15s",
        # State partitions are the unit that moves between hosts: nothing may merge them.
        "spark.sql.adaptive.enabled": "false",
        **STATE_STORES[state_store],
    }


def open_session(
    master: str,
    name: str,
    folder: Path,
    settings: Mapping[str, str],
    secret: str | None = None,
    *,
    python: str = "",
    packaged: bool = False,
) -> SparkSession:
    """A session on `master`; raises EnvironmentProblem where one is open already or Spark does not start.

    `folder` takes Spark's warehouse and scratch files, so that a run leaves nothing elsewhere. secret: what the master asks
    for; `settings` then turn authentication on. python: the interpreter of executors, by default the driver's. packaged:
    whether Spark's home must have PySpark as archives.
    """
    if SparkSession.getActiveSession() is not None:
        raise EnvironmentProblem("a Spark session is open in this process already; stop it before run(...)")
    os.environ["SPARK_LOCAL_IP"] = settings["spark.driver.host"]
    # Workers run the interpreter of the driver, from folders of their own, and find the modules beside the user's program.
    os.environ["PYSPARK_DRIVER_PYTHON"] = os.path.abspath(sys.executable)
    os.environ["PYSPARK_PYTHON"] = python or os.environ["PYSPARK_DRIVER_PYTHON"]
    # The run reports errors of the shutdown in a sentence; the gateway would add a stack trace.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    builder = SparkSession.builder.master(master).appName(name)
    logs = folder / "driver-log4j2.properties"
    logs.write_text(LOGGING.format(file=in_properties(str(folder / "driver.log"))))
    places = {
        DRIVER_OPTIONS: f"{settings.get(DRIVER_OPTIONS, '')} -Dlog4j2.configurationFile={logs.as_uri()} {STACK}".strip(),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "scratch"),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(_own_modules()),
    }
    for key, value in {**settings, **places}.items():
        builder = builder.config(key, value)
    others = psutil.Process().children()
    home = spark_home() if packaged else linked_home()
    try:
        _renew_jvm({**settings, **places})
        with _stderr_into(folder / "driver-stderr.log"), _environment(home):
            if secret is not None:
                builder = builder.config("spark.authenticate.secret", ELSEWHERE)
                _enter(secret, {**settings, **places})
            spark = builder.getOrCreate()
    except (PySparkException, Py4JError, RuntimeError, OSError) as error:
        raise EnvironmentProblem(f"Spark did not start on {master}: {why_in_java(error)}") from error
    except (KeyboardInterrupt, SystemExit):
        _end_jvm(others)
        raise
    _untold(getattr(spark.sparkContext, "_accumulatorServer", None))
    return spark


def _untold(accumulators: Any) -> None:
    """Let the server of accumulators print no traceback where its JVM has gone: a signal to all of a run's processes, as
    service managers send it, ends that before the driver has ended the run in order."""
    if accumulators is None:
        return
    tell = accumulators.handle_error

    def handle_error(request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), EOFError | OSError):
            tell(request, client_address)

    accumulators.handle_error = handle_error


_given: set[str] = set()
"""Names of the settings of all sessions of this process so far."""


def _renew_jvm(settings: Mapping[str, str]) -> None:
    """Have the JVM that an earlier session of this process left forget it, and know the jars of the next.

    The JVM keeps the first session's settings as its properties, which every later one begins with, its class path and the
    folder for its scratch files, which a later one would bring back after it was deleted.
    """
    jvm, gone = SparkContext._jvm, _given - settings.keys()
    _given.update(settings)
    if jvm is None:
        return
    for name in gone:
        jvm.java.lang.System.clearProperty(name)
    getattr(getattr(jvm.org.apache.spark.util, "Utils$"), "MODULE$").clearLocalRootDirs()
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for jar in filter(None, settings.get("spark.jars", "").split(",")):
        if (where := jvm.org.apache.spark.util.Utils.resolveURI(jar)).getScheme() == "file":
            loader.addURL(where.toURL())


@contextlib.contextmanager
def holding(spark: SparkSession, file: Path) -> Iterator[Callable[[], None]]:
    """Lock `file` for the driver's JVM, until that is gone or what this gives is called; at once where the inside raises.

    A JVM outlives a killed driver by seconds, and its queries go on meanwhile: a run that goes on waits for its end. Raises
    EnvironmentProblem where it does not end.
    """
    channel = jvm_of(spark).java.io.RandomAccessFile(str(file), "rw").getChannel()
    until = time.monotonic() + REMAINS
    try:
        while channel.tryLock() is None:
            if time.monotonic() > until:
                raise EnvironmentProblem(f"the JVM of the run's earlier driver still runs, and holds {file}: end it first")
            time.sleep(0.2)
        yield channel.close
    except BaseException:
        channel.close()
        raise


def secret_of(spark: SparkSession) -> str | None:
    """What executors of a session have to know; None where nobody asks, or nobody but its cluster manager knows.

    It is in the credentials or among the settings. Spark's own security manager is not asked: the gateway would look at all
    methods of Spark's environment, and some of their classes are in no jar that comes with PySpark.
    """
    settings = spark.sparkContext.getConf()
    if (settings.get("spark.authenticate") or "").lower() != "true":
        return None
    hadoop = jvm_of(spark).org.apache.hadoop
    kept = hadoop.security.UserGroupInformation.getCurrentUser().getCredentials()
    if (key := kept.getSecretKey(hadoop.io.Text(COOKIE))) is not None:
        return bytes(key).decode()
    found = settings.get("spark.authenticate.secret")
    return None if found is None else str(found)


def session_stopped(spark: SparkSession) -> bool:
    """Whether `spark` was stopped, or its JVM is gone."""
    context = spark.sparkContext._jsc
    try:
        return context is None or bool(context.sc().isStopped())
    except (Py4JError, OSError, AttributeError):  # the JVM is gone
        return True


@contextlib.contextmanager
def _stderr_into(file: Path) -> Iterator[None]:
    """Let processes started inside write their stderr to `file`.

    The driver's JVM and the Python processes that it starts keep it for life: what they say on their way down, or of an
    executor that was released, would run through the live view.
    """
    before = os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _enter(secret: str, settings: Mapping[str, str]) -> None:
    """Start the JVM, and let it know the secret before it calls the master.

    Spark looks for it in Hadoop's credentials first. As a setting it would be seen on the command line and in each task.
    """
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(settings.items())))
    assert SparkContext._jvm is not None
    hadoop = SparkContext._jvm.org.apache.hadoop
    credentials = hadoop.security.Credentials()
    credentials.addSecretKey(hadoop.io.Text(COOKIE), bytearray(secret.encode()))
    hadoop.security.UserGroupInformation.getCurrentUser().addCredentials(credentials)


@contextlib.contextmanager
def _environment(home: Path) -> Iterator[None]:
    """Let the JVM started inside, and its Python processes, take `home` for Spark's, and not see the pool's token."""
    before = {name: os.environ.pop(name, None) for name in ("SPARK_HOME", SCALA_VARIABLE, POOL_TOKEN)}
    os.environ |= {"SPARK_HOME": str(home), SCALA_VARIABLE: scala_version()}
    try:
        yield
    finally:
        for name in ("SPARK_HOME", SCALA_VARIABLE):
            del os.environ[name]
        os.environ |= {name: value for name, value in before.items() if value is not None}


def _end_jvm(others: Container[psutil.Process]) -> None:
    """End the driver's JVM, be it as far as it may; `others`: children of this process that are not it.

    Left alone it goes on for half a minute where opening a session is interrupted: its master has ended by then.
    """
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child not in others and any("spark" in word.lower() for word in child.cmdline()):
                for each in (child, *child.children(recursive=True)):
                    each.kill()
    if (gateway := SparkContext._gateway) is not None and gateway.proc is not None:
        gateway.proc.kill()
        gateway.proc.wait()
    # The next session of this process starts a JVM of its own.
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None


def in_properties(text: str) -> str:
    """`text` as a file of Java properties has it, which is read as Latin-1, whatever the locale."""
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(code) if 32 <= code < 128 and code != ord("\\") else f"\\u{code:04x}" for code in codes)


def _own_modules() -> list[str]:
    """Entries of the module path that the interpreter does not bring by itself: the user's program and its neighbours."""
    brought = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return [entry for entry in dict.fromkeys(sys.path) if entry and Path(entry).is_dir() and not entry.startswith(brought)]
