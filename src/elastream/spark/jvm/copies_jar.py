"""Makes the jar of the classes that keep copies of state (`copies/*.java`), and gives the settings that load it.

It is made once, with the compiler that Spark ships (Janino), which needs a Java runtime, no development kit and no network.
It lies in the user's cache folder, under a name that changes with the sources and with Spark. Executors fetch it from the
driver by `spark.jars`: their class path, which archives of Java classes hold for, stays as it is.
"""

import hashlib
import json
import secrets
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

from pyspark import __version__ as SPARK

from elastream.clouds.local.java import cache_folder, find_java, spark_home
from elastream.errors import EnvironmentProblem, in_one_line
from elastream.spark.jvm.adapters import COPIES, SPELLINGS, for_release
from elastream.spark.jvm.releases import release_of

PLUGIN = "elastream.copies.CopiesPlugin"
SOURCES = Path(__file__).parent / "copies"
COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"
"""Janino's stand-in for javac."""
FORMAT = 1
"""Counted up where the way of making it changes."""
LONGEST = 300.0
"""Seconds that compiling may take; it takes three of CPU."""
EARLIEST = (1980, 1, 1, 0, 0, 0)
"""Date of all files inside, the earliest that a jar knows: equal sources make equal jars."""


def copies_settings() -> Mapping[str, str]:
    """Spark settings of a session whose executors are to keep copies; raises EnvironmentProblem where there can be none."""
    return {"spark.plugins": PLUGIN, "spark.jars": jar().as_uri()}


def jar() -> Path:
    """The jar, made if there is none yet. Raises EnvironmentProblem with the reason where it cannot be made."""
    if release_of(SPARK) < COPIES:
        needed = ".".join(map(str, COPIES))
        raise EnvironmentProblem(f"no copies of state are kept: they need Spark {needed} or newer, and this is {SPARK}")
    folder = cache_folder() / "copies" / _key()
    made = folder / "elastream-copies.jar"
    if made.is_file() and zipfile.is_zipfile(made):
        return made
    making = folder.with_name(f"making-{secrets.token_hex(4)}")
    try:
        making.mkdir(parents=True)
        _compile(making / "classes")
        _pack(making / "classes", making / made.name)
        folder.mkdir(exist_ok=True)
        (making / made.name).replace(made)  # whole or not at all, whoever else makes one
    except OSError as error:
        raise EnvironmentProblem(f"no copies of state are kept: {in_one_line(error)}") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return made


def _key() -> str:
    jars = sorted((spark_home() / "jars").glob("*.jar"))
    known = [FORMAT, *((each.name, each.read_text(encoding="utf-8")) for each in sorted(SOURCES.glob("*.java")))]
    known += [[change.now, change.before] for change in SPELLINGS]
    known += [(each.name, each.stat().st_size) for each in jars]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]


def _compile(target: Path) -> None:
    jars = spark_home() / "jars"
    path = ":".join(map(str, sorted(jars.glob("*.jar"))))
    spelled = target.with_name("sources")
    spelled.mkdir()
    sources = [spelled / each.name for each in sorted(SOURCES.glob("*.java"))]
    for source in sources:
        source.write_text(for_release((SOURCES / source.name).read_text(encoding="utf-8"), SPARK), encoding="utf-8")
    target.mkdir()
    command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", COMPILER]
    try:
        done = subprocess.run(
            [*command, "-d", str(target), "-classpath", path, *map(str, sources)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(f"no copies of state are kept: compiling took more than {LONGEST:.0f} s") from None
    if done.returncode or not any(target.rglob("*.class")):
        said = (done.stderr + done.stdout).strip().splitlines() or ["it says nothing"]
        raise EnvironmentProblem(f"no copies of state are kept: with this Spark their classes do not compile: {said[-1]}")


def _pack(classes: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for each in sorted(classes.rglob("*.class")):
            packed.writestr(zipfile.ZipInfo(str(each.relative_to(classes)), EARLIEST), each.read_bytes())
