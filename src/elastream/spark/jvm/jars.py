"""Jars of Elastream's Java classes.

Spark's compiler (Janino) makes each once, into the user's cache folder, without a JDK or network.
"""

import hashlib
import json
import secrets
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from subprocess import DEVNULL

from pyspark import __version__ as SPARK

from elastream.clouds.local.java import cache_folder, find_java, spark_home
from elastream.errors import EnvironmentProblem, in_one_line
from elastream.spark.jvm.releases import SPELLINGS, STANDBY_SINCE, for_release, release_of

# Classes of the driver for an Autopilot in a process of its own.
BESIDE = Path(__file__).parent / "beside"
# Classes that keep standby replicas. Executors fetch their jar by `spark.jars`, so that their class path and class archives
# stay the same.
COPIES, COPIES_PLUGIN = Path(__file__).parent / "copies", "elastream.copies.CopiesPlugin"
# Janino's stand-in for javac.
COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"
# Increase when the way of making jars changes.
JAR_FORMAT = 1
# It takes three seconds of CPU.
COMPILE_TIMEOUT_S = 300.0
# The earliest date that a jar can hold: equal sources make equal jars.
JAR_DATE = (1980, 1, 1, 0, 0, 0)


def copies_settings() -> Mapping[str, str]:
    """Return the Spark settings of a session whose executors keep standby replicas. Raises EnvironmentProblem."""
    check_release(SPARK)
    return {"spark.plugins": COPIES_PLUGIN, "spark.jars": copies_jar().as_uri()}


def check_release(release: str) -> None:
    """Raise EnvironmentProblem for a release of Spark that cannot keep standby replicas."""
    if release_of(release) < STANDBY_SINCE:
        needed = ".".join(map(str, STANDBY_SINCE))
        raise EnvironmentProblem(f"no copies of state are kept: they need Spark {needed} or newer, and this is {release}")


def copies_jar(sources: Path = COPIES) -> Path:
    """Return the path of the jar of the classes that keep standby replicas; make a missing one."""
    try:
        return jar_of(sources)
    except EnvironmentProblem as problem:
        raise EnvironmentProblem(f"no copies of state are kept: {problem}") from problem


def jar_of(sources: Path) -> Path:
    """Return the path of the jar of the classes in the folder `sources`; make a missing one.

    Raises:
        EnvironmentProblem: It cannot be written, or the classes do not compile with this Spark.
    """
    folder = cache_folder() / sources.name / _key(sources)
    made = folder / f"elastream-{sources.name}.jar"
    if made.is_file() and zipfile.is_zipfile(made):
        return made
    making = folder.with_name(f"making-{secrets.token_hex(4)}")
    try:
        making.mkdir(parents=True)
        _compile(sources, making / "classes")
        _pack(making / "classes", making / made.name)
        folder.mkdir(exist_ok=True)
        (making / made.name).replace(made)  # atomic: other processes may make one, too
    except OSError as error:
        raise EnvironmentProblem(in_one_line(error)) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return made


def _key(sources: Path) -> str:
    jars = sorted((spark_home() / "jars").glob("*.jar"))
    content = [JAR_FORMAT, *((each.name, each.read_text(encoding="utf-8")) for each in sorted(sources.glob("*.java")))]
    content += [[change.now, change.before] for change in SPELLINGS]
    content += [(each.name, each.stat().st_size) for each in jars]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _compile(folder: Path, target: Path) -> None:
    jars, limit = spark_home() / "jars", COMPILE_TIMEOUT_S
    path = ":".join(map(str, sorted(jars.glob("*.jar"))))
    spelled = target.with_name("sources")
    spelled.mkdir()
    sources = [spelled / each.name for each in sorted(folder.glob("*.java"))]
    for source in sources:
        source.write_text(for_release((folder / source.name).read_text(encoding="utf-8"), SPARK), encoding="utf-8")
    target.mkdir()
    command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", COMPILER]
    try:
        command += ["-d", str(target), "-classpath", path, *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit, stdin=DEVNULL)
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(f"compiling took more than {limit:.0f} s") from None
    if done.returncode or not any(target.rglob("*.class")):
        output = (done.stderr + done.stdout).strip().splitlines() or ["it says nothing"]
        raise EnvironmentProblem(f"with this Spark their classes do not compile: {output[-1]}")


def _pack(classes: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for each in sorted(classes.rglob("*.class")):
            packed.writestr(zipfile.ZipInfo(str(each.relative_to(classes)), JAR_DATE), each.read_bytes())
