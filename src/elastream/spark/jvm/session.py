"""The Spark session of a dataflow, with the settings that elastic streaming needs; each was measured to matter."""

import contextlib
import logging
import os
import re
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
from elastream.spark.jvm.driver_side import jvm_of, why_in_java
from elastream.spark.jvm.releases import for_release

STATE_STORES: Mapping[StateStore, Mapping[str, str]] = MappingProxyType(
    {
        "memory": {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem"},
        "disk": {
            "spark.sql.streaming.stateStore.providerClass": (
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
            ),
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            # Costs a read before each write, for a count of rows that nothing uses.
            "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
            # glibc keeps what RocksDB freed, in up to eight arenas of 64 MB a core: after an hour of moves 320 MB.
            "spark.executorEnv.MALLOC_ARENA_MAX": "2",
            # On the raw file system, snapshots fail with a ClassCastException.
            "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        },
    }
)

PROGRESS_SETTINGS: Mapping[str, str] = MappingProxyType({"spark.sql.streaming.numRecentProgressUpdates": "200"})
# A bounded run needs the progress of all batches: after a long sleep, these are more than Spark's hundred.
BOUNDED_SETTINGS: Mapping[str, str] = MappingProxyType(dict.fromkeys(PROGRESS_SETTINGS, "100000"))

FILES_OF_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

# A lost executor costs at most this once per batch. Below half a second, tasks of an unevenly loaded stage start to run
# away from their state.
LOCALITY_WAIT = "1s"

# Java's own choice on one core. An executor sees all cores of its machine, since a quota is lifted while a host starts;
# more collector threads than cores only wait for each other.
SERIAL_GC = "-XX:+UseSerialGC"
# For executors on less than a core. The optimising compiler spends 12 CPU seconds in an executor's first minutes; the first
# tier's code is good enough for hosts that small.
SMALL_JVM = (SERIAL_GC, "-XX:TieredStopAtLevel=1")
# For executors on one core. The first tier alone reached 115,000 records/s in three minutes, not 199,000; Java's usual
# thresholds take the core from tasks just when a host joins. So code that runs ten times as often is optimised.
ONE_CORE_JVM = (
    SERIAL_GC,
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)

# Gives back what RocksDB freed, with a Java that can. In an hour of moves glibc kept 150 MB of free pages in two arenas,
# and hosts could not go.
TRIMMED = ("-XX:+IgnoreUnrecognizedVMOptions", "-XX:TrimNativeHeapInterval=30000")

# Stack of the driver's threads. Spark searches the text of a failed Python callback with a regular expression that recurses
# a few times per character; on the default stack a query stopped in mid-batch dies of that.
DRIVER_STACK = "-Xss32m"

# Spark's name of its secret among Hadoop's credentials.
SECRET_KEY = "sparkCookie"

# Spark requires a secret among the settings, but uses the one in the credentials.
SECRET_PLACEHOLDER = "in the credentials of the driver"

# Settings for checkpoints on a local disk; elsewhere Spark's defaults are better.
LOCAL_FILE_SETTINGS = ("spark.sql.streaming.checkpointFileManagerClass",)

# The JVM of a killed driver ends when it notices that its input has ended.
JVM_END_TIMEOUT_S = 60.0

# Spark's log goes to the run's folder, because the terminal shows the live view. Spark logs every departing host, for
# months: the newest 40 MB are kept.
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


def _jvm_for(cores: Collection[float]) -> Sequence[str]:
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
    """Return the Spark settings of an elastic session.

    Args:
        executor_cores: None if hosts differ: each host's executor takes all slots.
        host_cores: Cores that executors are limited to, by host type.
    """
    cores = {} if executor_cores is None else {"spark.executor.cores": str(executor_cores)}
    trimmed = TRIMMED if state_store == "disk" else ()
    return {
        "spark.executor.extraJavaOptions": shlex.join([*_jvm_for(host_cores), *trimmed, *java_options]),
        "spark.driver.host": driver_address,
        "spark.driver.bindAddress": driver_address,
        "spark.driver.memory": "1g",
        "spark.executor.memory": f"{executor_memory:.0f}m",
        **cores,
        "spark.decommission.enabled": "true",
        # Shuffle files of one micro-batch are worthless to the next; migrating them would delay a release.
        "spark.storage.decommission.enabled": "false",
        "spark.executor.heartbeatInterval": "5s",
        "spark.locality.wait": LOCALITY_WAIT,
        "spark.stage.maxConsecutiveAttempts": "32",
        # A task that fetches from a lost executor notices the loss only after this wait: with Spark's default of 5 s, a
        # batch stood still for 6.9 s. The total of 15 s, for an executor that only does not answer, is Spark's.
        "spark.shuffle.io.retryWait": "200ms",
        "spark.shuffle.io.maxRetries": "75",
        "spark.excludeOnFailure.enabled": "false",
        "spark.sql.shuffle.partitions": str(state_partitions),
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.metricsEnabled": "false",
        # Forks workers with pandas and pyarrow loaded, in milliseconds instead of half a second of CPU each.
        "spark.python.daemon.module": "elastream.spark.worker.daemon",
        # On a slow machine a Python worker may take long to connect.
        "spark.python.authenticate.socketTimeout": "120s",
        **PROGRESS_SETTINGS,
        **session_settings(state_store),
    }


def session_settings(state_store: StateStore = "memory") -> Mapping[str, str]:
    """Return the Spark settings that compiled queries need."""
    if state_store not in STATE_STORES:
        raise InputError(f"there is no state store {state_store!r}; known: {', '.join(STATE_STORES)}")
    return {
        # About 40 ms less for every crossing into Python.
        "spark.python.unix.domain.socket.enabled": "true",
        # By default Hadoop starts up to three processes (chmod, readlink) a local file, and a batch writes a file a state
        # partition. This and the raw file system below took batches from 1.3 s to 0.5 s on a one-core host. Files are still
        # renamed into place, so that a crash leaves no partial ones.
        "spark.sql.streaming.checkpointFileManagerClass": for_release(FILES_OF_CHECKPOINTS, SPARK),
        # A partition that moves reads its last snapshot and every change since.
        "spark.sql.streaming.stateStore.maintenanceInterval": "15s",
        # Would merge state partitions, the unit that moves between hosts.
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
    """Return a session on `master`.

    Args:
        python: Interpreter of executors, by default the driver's.

    Raises:
        EnvironmentProblem: A session is open already, or Spark does not start.
    """
    if SparkSession.getActiveSession() is not None:
        raise EnvironmentProblem(
            "a Spark session is open in this process already: stop it before run(...), or run in it with cloud=InProcess()"
        )
    os.environ["SPARK_LOCAL_IP"] = settings["spark.driver.host"]
    # Workers run the driver's interpreter in folders of their own, and find the modules beside the user's program.
    os.environ["PYSPARK_DRIVER_PYTHON"] = os.path.abspath(sys.executable)
    os.environ["PYSPARK_PYTHON"] = python or os.environ["PYSPARK_DRIVER_PYTHON"]
    # The run reports errors of the shutdown in a sentence; the gateway would add a stack trace.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    builder = SparkSession.builder.master(master).appName(name)
    logs = folder / "driver-log4j2.properties"
    logs.write_text(LOGGING.format(file=in_properties(str(folder / "driver.log"))))
    options = [settings.get(DRIVER_OPTIONS, ""), f"-Dlog4j2.configurationFile={logs.as_uri()}", DRIVER_STACK]
    places = {
        DRIVER_OPTIONS: " ".join(options).strip(),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "scratch"),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(own_modules()),
    }
    for key, value in {**settings, **places}.items():
        builder = builder.config(key, value)
    others = psutil.Process().children()
    home = spark_home() if packaged else linked_home()
    try:
        _reset_jvm({**settings, **places})
        with _stderr_into(folder / "driver-stderr.log"), _environment(home):
            if secret is not None:
                builder = builder.config("spark.authenticate.secret", SECRET_PLACEHOLDER)
                _start_jvm_with_secret(secret, {**settings, **places})
            spark = builder.getOrCreate()
    except (PySparkException, Py4JError, RuntimeError, OSError) as error:
        log = folder / "driver-stderr.log"
        why = (unfetched_packages(log.read_text(errors="replace")) if log.exists() else "") or why_in_java(error)
        raise EnvironmentProblem(f"Spark did not start on {master}: {why}") from error
    except (KeyboardInterrupt, SystemExit):
        _end_jvm(others)
        raise
    _silence(getattr(spark.sparkContext, "_accumulatorServer", None))
    return spark


def unfetched_packages(log: str) -> str:
    """Return a sentence about packages missing in the JVM's `log`, or ""."""
    packages = re.findall(r"unresolved dependency: ([^;,\s]+;[^:,\s]+)", log)
    if not packages:
        return ""
    names = ", ".join(dict.fromkeys(name.replace("#", ":").replace(";", ":") for name in packages))
    causes = re.findall(r"(java\.net\.\w+: [^)\n]+)", log)
    return (
        f"the packages {names} cannot be fetched{f' ({causes[-1].strip()})' if causes else ''}; give their files with the "
        "Spark setting spark.jars, or a repository that this machine reaches with spark.jars.repositories"
    )


def _silence(accumulators: Any) -> None:
    """Suppress the accumulator server's traceback after its JVM has gone."""
    # A signal may end the JVM before the driver.
    if accumulators is None:
        return
    report = accumulators.handle_error

    def handle_error(request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), EOFError | OSError):
            report(request, client_address)

    accumulators.handle_error = handle_error


# Setting names of all sessions of this process so far.
_settings_so_far: set[str] = set()


def _reset_jvm(settings: Mapping[str, str]) -> None:
    jvm, gone = SparkContext._jvm, _settings_so_far - settings.keys()
    _settings_so_far.update(settings)
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
    """Lock `file` for the driver's JVM; yield a function that unlocks it.

    A killed driver's JVM runs on for seconds: a resumed run waits for its end. Raises EnvironmentProblem if it stays.
    """
    channel = jvm_of(spark).java.io.RandomAccessFile(str(file), "rw").getChannel()
    until = time.monotonic() + JVM_END_TIMEOUT_S
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
    """Return the secret that a session's executors need; None if there is none, or only its cluster manager has it."""
    settings = spark.sparkContext.getConf()
    if (settings.get("spark.authenticate") or "").lower() != "true":
        return None
    hadoop = jvm_of(spark).org.apache.hadoop
    credentials = hadoop.security.UserGroupInformation.getCurrentUser().getCredentials()
    if (key := credentials.getSecretKey(hadoop.io.Text(SECRET_KEY))) is not None:
        return bytes(key).decode()
    secret = settings.get("spark.authenticate.secret")
    return None if secret is None else str(secret)


def session_stopped(spark: SparkSession) -> bool:
    context = spark.sparkContext._jsc
    try:
        return context is None or bool(context.sc().isStopped())
    except (Py4JError, OSError, AttributeError):  # the JVM has ended
        return True


@contextlib.contextmanager
def _stderr_into(file: Path) -> Iterator[None]:
    before = os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _start_jvm_with_secret(secret: str, settings: Mapping[str, str]) -> None:
    """Start the JVM with the secret among Hadoop's credentials: tasks can read settings."""
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(settings.items())))
    assert SparkContext._jvm is not None
    hadoop = SparkContext._jvm.org.apache.hadoop
    credentials = hadoop.security.Credentials()
    credentials.addSecretKey(hadoop.io.Text(SECRET_KEY), bytearray(secret.encode()))
    hadoop.security.UserGroupInformation.getCurrentUser().addCredentials(credentials)


@contextlib.contextmanager
def _environment(home: Path) -> Iterator[None]:
    before = {name: os.environ.pop(name, None) for name in ("SPARK_HOME", SCALA_VARIABLE, POOL_TOKEN)}
    os.environ |= {"SPARK_HOME": str(home), SCALA_VARIABLE: scala_version()}
    try:
        yield
    finally:
        for name in ("SPARK_HOME", SCALA_VARIABLE):
            del os.environ[name]
        os.environ |= {name: value for name, value in before.items() if value is not None}


def _end_jvm(others: Container[psutil.Process]) -> None:
    """Kill the driver's JVM, however far it has started; `others` are children of this process to spare."""
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
    """Return `text` with the escapes of a Java properties file, which is in Latin-1."""
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(code) if 32 <= code < 128 and code != ord("\\") else f"\\u{code:04x}" for code in codes)


def own_modules() -> list[str]:
    """Return the module path of the user's program and its neighbours."""
    brought = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return [entry for entry in dict.fromkeys(sys.path) if entry and Path(entry).is_dir() and not entry.startswith(brought)]
