"""Java and the commands of Spark's daemons. Spark's scripts would start one more JVM to print a command."""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from elastream.clouds.local.authentication import for_others
from elastream.errors import EnvironmentProblem

DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
HOMES = "spark-homes"  # folder in the cache with links to the homes of Spark installations
MIN_JAVA = 17  # oldest version that Spark 4 supports

# Master and workers only exchange messages: small heap, first-tier compilation only, one collector thread.
SMALL_JVM = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
)
SETTINGS = (
    "-Dspark.decommission.enabled=true",  # without it SIGPWR kills a worker
    "-Dspark.storage.decommission.enabled=false",
    "-Dspark.master.rest.enabled=false",
    "-Dspark.port.maxRetries=0",  # a port in use is an error, not replaced by another
    "-Dspark.deploy.maxExecutorRetries=-1",  # lost executors must not end the application
    # By their web pages anybody could end applications and hosts.
    "-Dspark.ui.killEnabled=false",
    "-Dspark.master.ui.decommission.allow.mode=DENY",
)

# variables of a user's Spark installation that would change our addresses or configuration
FOREIGN = frozenset({"SPARK_PUBLIC_DNS", "SPARK_LOCAL_HOSTNAME", "SPARK_CONF_DIR"})

SCALA_VARIABLE = "SPARK_SCALA_VERSION"  # Spark's own programs read the version of Scala from it

# Linux limits a socket's path to 107 characters; Spark's Python workers add such a name.
MAX_TEMPORARY_PATH = 107 - len("/.01234567-89ab-cdef-0123-456789abcdef.sock")
USUAL_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the `java` of JAVA_HOME if set, else the first on PATH.

    Raises:
        EnvironmentProblem: There is none, or it is older than Java 17.
    """
    home = environment.get("JAVA_HOME")
    advice = f"Spark needs Java {MIN_JAVA} or newer: install one (Debian, Ubuntu: openjdk-17-jre-headless) or set JAVA_HOME"
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise EnvironmentProblem(f"JAVA_HOME is {home}, but there is no {java}; {advice}")
    else:
        path = shutil.which("java", path=environment.get("PATH", ""))
        if path is None:
            raise EnvironmentProblem(f"no Java found, neither by JAVA_HOME nor on PATH; {advice}")
        java = Path(path).resolve()
    version = re.search(r'version "(?:1\.)?(\d+)', _version_output(java))
    if version is None:
        raise EnvironmentProblem(f"`{java} -version` printed no version; {advice}")
    if int(version[1]) < MIN_JAVA:
        raise EnvironmentProblem(f"{java} is Java {version[1]}; {advice}")
    return java


@functools.cache
def _version_output(java: Path) -> str:
    return subprocess.run([java, "-version"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stderr


def version_of(java: Path) -> str:
    """Return the build of a Java, such as `17.0.15+6-Debian-1deb12u1`, as its archives contain it."""
    build = re.search(r" VM .*\(build ([^,)]+)", _version_output(java))
    return build[1] if build else _version_output(java).strip()


def spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentProblem("the package pyspark is not installed")
    return Path(spec.origin).parent


def cache_folder() -> Path:
    """Return the user's cache folder of files shared by runs."""
    from platformdirs import user_cache_path

    return user_cache_path("elastream")


def scala_version() -> str:
    jars = spark_home() / "jars"
    core = next(jars.glob("spark-core_*.jar"), None)
    if core is None:
        raise EnvironmentProblem(f"Spark's jars are missing from {jars}: install pyspark anew")
    return core.name.removeprefix("spark-core_").partition("-")[0]


def linked_home() -> Path:
    """Return a folder of links to Spark's home without PySpark's archives, or Spark's home itself.

    Python processes that a JVM starts would compile PySpark from these archives each time (0.7 s of CPU).
    """
    home = spark_home()
    folder = (cache_folder() / HOMES).resolve() / hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for entry in home.iterdir():
            link = folder / entry.name
            if entry.name != "python" and not link.is_symlink():
                with contextlib.suppress(FileExistsError):  # another process was faster
                    link.symlink_to(entry)
    except OSError:  # a file system without symbolic links, or a folder that cannot be written
        return home
    return folder


def class_path() -> str:
    home = linked_home()
    first = sorted((home / "jars").glob("slf4j-api-*.jar"))
    return os.pathsep.join(map(str, (home / "conf", *first, home / "jars" / "*")))


def daemon_command(java: Path, main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command that runs `org.apache.spark.deploy.<main>` in a small JVM."""
    return [
        str(java), *SMALL_JVM, *options, *SETTINGS, "-cp", class_path(), f"org.apache.spark.deploy.{main}", *arguments
    ]  # fmt: skip


def temporary_folder(name: str, usual: Sequence[Path] = USUAL_TEMPORARY) -> Path:
    """Return a path for a host's temporary files, short enough for sockets of Python workers.

    Args:
        usual: Folders to try if the environment's own has too long a path.

    Raises:
        EnvironmentProblem: No folder is writable and short enough.
    """
    roots = [Path(tempfile.gettempdir()), *usual]
    for root in roots:
        if len(os.fsencode(root / name)) <= MAX_TEMPORARY_PATH and os.access(root, os.W_OK | os.X_OK):
            return root / name
    most = MAX_TEMPORARY_PATH - len(name) - 1
    raise EnvironmentProblem(
        f"the folder for temporary files, {roots[0]}, has too long a path for the sockets of Spark's Python workers, and "
        f"{' and '.join(map(str, roots[1:]))} cannot be written: set TMPDIR to a folder with at most {most} characters"
    )


def daemon_environment(address: str, scratch: Path | None = None, temporary: Path | None = None) -> dict[str, str]:
    """Return the environment of a daemon that listens only at `address`, with its folder for shuffle files."""
    environment = {key: value for key, value in for_others(os.environ).items() if key not in FOREIGN}
    if scratch is not None and temporary is not None:
        options = f"{environment.get('JDK_JAVA_OPTIONS', '')} -Djava.io.tmpdir={temporary}".strip()
        environment |= {"SPARK_LOCAL_DIRS": str(scratch), "TMPDIR": str(temporary), "JDK_JAVA_OPTIONS": options}
    return {
        **environment,
        "SPARK_HOME": str(linked_home()),
        SCALA_VARIABLE: scala_version(),
        "SPARK_LOCAL_IP": address,
    }
