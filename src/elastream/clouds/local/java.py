"""Finds Java, and builds the commands of Spark's daemons from pyspark's jars, without its shell scripts.

The scripts start an extra JVM to print a command; without them a worker starts in half the time.
"""

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

from platformdirs import user_cache_path

from elastream.clouds.local.closed import for_others
from elastream.errors import EnvironmentProblem

DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
"""Spark's setting of what a session's JVM is started with."""
HOMES = "spark-homes"
"""Folder in the cache with links to the homes of Spark's installations."""
JAVA = 17
"""Oldest Java version that Spark 4 supports."""

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

FOREIGN = frozenset({"SPARK_PUBLIC_DNS", "SPARK_LOCAL_HOSTNAME", "SPARK_CONF_DIR"})
"""Variables of a user's Spark installation that would change addresses or configuration of ours."""

SCALA = "SPARK_SCALA_VERSION"
"""Environment variable by which Spark's own programs are told the version of Scala."""

LONGEST_FOLDER = 107 - len("/.01234567-89ab-cdef-0123-456789abcdef.sock")
"""Characters of a folder with sockets of Spark's Python workers, whose names are of this kind: Linux takes paths of 107."""
USUAL_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """The `java` for Spark: that of JAVA_HOME if set, else the first on PATH.

    Raises EnvironmentProblem if there is none, or it is older than Java 17.
    """
    home = environment.get("JAVA_HOME")
    advice = f"Spark needs Java {JAVA} or newer: install one (Debian, Ubuntu: openjdk-17-jre-headless) or set JAVA_HOME"
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise EnvironmentProblem(f"JAVA_HOME is {home}, but there is no {java}; {advice}")
    else:
        found = shutil.which("java", path=environment.get("PATH", ""))
        if found is None:
            raise EnvironmentProblem(f"no Java found, neither by JAVA_HOME nor on PATH; {advice}")
        java = Path(found).resolve()
    version = re.search(r'version "(?:1\.)?(\d+)', _printed(java))
    if version is None:
        raise EnvironmentProblem(f"`{java} -version` printed no version; {advice}")
    if int(version[1]) < JAVA:
        raise EnvironmentProblem(f"{java} is Java {version[1]}; {advice}")
    return java


@functools.cache
def _printed(java: Path) -> str:
    return subprocess.run([java, "-version"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stderr


def version_of(java: Path) -> str:
    """The build of a Java, such as `17.0.15+6-Debian-1deb12u1`: its name for itself, also in archives that it makes."""
    build = re.search(r" VM .*\(build ([^,)]+)", _printed(java))
    return build[1] if build else _printed(java).strip()


def spark_home() -> Path:
    """The folder of the installed pyspark, with Spark's jars. Raises EnvironmentProblem if pyspark is not installed."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise EnvironmentProblem("the package pyspark is not installed")
    return Path(found.origin).parent


def cache_folder() -> Path:
    """Where what is kept between runs lies: `elastream` in the user's cache folder (XDG_CACHE_HOME, on Linux)."""
    return user_cache_path("elastream")


def scala_version() -> str:
    """The version of Scala that Spark's jars are for, such as `2.13`: what its scripts ask for where they find no release.

    Raises EnvironmentProblem where there are no jars.
    """
    jars = spark_home() / "jars"
    core = next(jars.glob("spark-core_*.jar"), None)
    if core is None:
        raise EnvironmentProblem(f"Spark's jars are missing from {jars}: install pyspark anew")
    return core.name.removeprefix("spark-core_").partition("-")[0]


def linked_home() -> Path:
    """Spark's home by links to what is in it, without the archives of PySpark; Spark's own home where links cannot be.

    Python processes that a JVM starts take PySpark from these archives where there are any, and compile it anew each time,
    for 0.7 s of CPU; without them they take the one that is installed. The links lie in the user's cache folder, at a path
    that all JVMs of this environment share: an archive of classes holds for one class path.
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
    """The class path of Spark's processes, written as Spark itself writes that of drivers and executors.

    An archive of classes holds for one class path: only so can they all share one.
    """
    home = linked_home()
    first = sorted((home / "jars").glob("slf4j-api-*.jar"))
    return os.pathsep.join(map(str, (home / "conf", *first, home / "jars" / "*")))


def daemon_command(java: Path, main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """Command that runs the class `org.apache.spark.deploy.<main>` in a small JVM, with further `options` for it."""
    return [
        str(java), *SMALL_JVM, *options, *SETTINGS, "-cp", class_path(), f"org.apache.spark.deploy.{main}", *arguments
    ]  # fmt: skip


def temporary_folder(name: str) -> Path:
    """Where a host may have a folder `name` for temporary files: where this machine has them, or, where the sockets of
    Spark's Python workers would have longer paths there than Linux takes, in the usual places. Raises EnvironmentProblem
    without any.
    """
    roots = [Path(tempfile.gettempdir()), *USUAL_TEMPORARY]
    for root in roots:
        if len(os.fsencode(root / name)) <= LONGEST_FOLDER and os.access(root, os.W_OK | os.X_OK):
            return root / name
    most = LONGEST_FOLDER - len(name) - 1
    raise EnvironmentProblem(
        f"the folder for temporary files, {roots[0]}, has too long a path for the sockets of Spark's Python workers, and "
        f"{' and '.join(map(str, roots[1:]))} cannot be written: set TMPDIR to a folder with at most {most} characters"
    )


def daemon_environment(address: str, scratch: Path | None = None, temporary: Path | None = None) -> dict[str, str]:
    """Environment of a daemon that listens at `address` only: this process's, as far as hosts may see it, plus what Spark's
    scripts would set. scratch, temporary: folders of a host for what its executors keep for a while; a killed one leaves it
    behind (sockets, libraries of 10 MB), so that each host has its own, which are removed after it.
    """
    found = {key: value for key, value in for_others(os.environ).items() if key not in FOREIGN}
    if scratch is not None and temporary is not None:
        options = f"{found.get('JDK_JAVA_OPTIONS', '')} -Djava.io.tmpdir={temporary}".strip()
        found |= {"SPARK_LOCAL_DIRS": str(scratch), "TMPDIR": str(temporary), "JDK_JAVA_OPTIONS": options}
    return {
        **found,
        "SPARK_HOME": str(linked_home()),
        SCALA: scala_version(),
        "SPARK_LOCAL_IP": address,
    }
