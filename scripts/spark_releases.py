"""Runs the Spark tests of placing, Autopilot and composition on each release of Spark; `make test-sparks`.

Each release has an environment of its own in the user's cache folder: PySpark, and the Py4J that it asks for, by pip; every
other library is the locked one, by a link into the environment that this runs in. The matrix that is printed can be written
as JSON (`--json`). The exit status is 1 if a test failed on a release that is promised.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from elastream.clouds.local.java import cache_folder
from elastream.spark.jvm.releases import release_of

RELEASES = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")
PROMISED = (4, 1)
"""Failures on this release and later ones are failures of this program."""
OWN = ("pyspark", "py4j", "elastream", "__editable__", "setuptools", "pip", "_distutils_hack", "distutils-precedence")
"""What an environment has of its own, or not at all."""
PARTS: Mapping[str, Sequence[str]] = {
    "composition": ("tests/spark/queries/test_switches.py",),
    "Autopilot": (
        "tests/api/test_autopilot.py",
        "tests/api/test_autopilot_any_query.py",
        "tests/spark/test_attached_plant_conforms.py",
    ),
    "placing": ("tests/spark/placement/test_migration_on_spark.py",),
}
"""The files of each part."""
LINE = re.compile(r"(\d+) (passed|failed|errors?|skipped)")


def environment(version: str) -> Path:
    """The interpreter of the environment for Spark `version`, made where there is none. Raises CalledProcessError."""
    folder = cache_folder() / "sparks" / version
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if ready.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "setuptools>=77"], check=True)
    # PySpark comes as source; a wheel that is not compressed is made and unpacked in half the time.
    stored = ("--use-pep517", "--no-build-isolation", "--config-settings=--build-option=--compression=stored")
    subprocess.run([*pip, "--no-cache-dir", *stored, f"pyspark=={version}"], check=True)
    link(Path(sysconfig.get_path("purelib")), next((folder / "lib").glob("python3*")) / "site-packages")
    ready.touch()
    return python


def link(libraries: Path, target: Path) -> None:
    """Link every library of `libraries` but those of OWN into `target`; an environment counts them as installed in it."""
    for entry in libraries.iterdir():
        if not entry.name.startswith(OWN) and entry.name != "__pycache__" and not (target / entry.name).exists():
            (target / entry.name).symlink_to(entry)


def counted(output: str) -> dict[str, int]:
    """How many tests passed, failed (errors too) and were skipped, by the last line of pytest's `output` that says so."""
    found = {"passed": 0, "failed": 0, "skipped": 0}
    for line in reversed(output.splitlines()):
        if numbers := LINE.findall(line):
            for number, word in numbers:
                found["failed" if word.startswith(("fail", "error")) else word] += int(number)
            break
    return found


def word(of: Mapping[str, int]) -> str:
    """A cell of the matrix."""
    if not sum(of.values()):
        return "untested"
    skipped = f", {of['skipped']} skipped" if of["skipped"] else ""
    return (
        f"{of['passed']} passed{skipped}" if not of["failed"] else f"{of['failed']} failed, {of['passed']} passed{skipped}"
    )


def tested(version: str, part: str, root: Path, output: Path) -> dict[str, int]:
    """Run the tests of `part` on Spark `version`; what pytest said goes to a file in `output`."""
    python = environment(version)
    environ = {**os.environ, "PYTHONPATH": str(root / "src")}
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-m", "spark", "-v", "-rfEs", *PARTS[part]]
    done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    (output / f"{version}-{part}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    found = counted(done.stdout)
    if done.returncode and not found["failed"]:
        found["failed"] = 1  # pytest itself did not end as it should
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--release", action="append", choices=RELEASES, help="only this one; may be given several times")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part")
    parser.add_argument("--json", type=Path, help="write the matrix to this file")
    parser.add_argument("--output", type=Path, default=Path("build/sparks"), help="folder for what pytest says")
    given = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    given.output.mkdir(parents=True, exist_ok=True)
    matrix: dict[str, dict[str, dict[str, int]]] = {}
    for version in given.release or RELEASES:
        try:
            environment(version)
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"Spark {version} cannot be installed here, and stays untested: {error}", file=sys.stderr)
            matrix[version] = {part: counted("") for part in PARTS}
            continue
        matrix[version] = {part: tested(version, part, root, given.output) for part in given.part or PARTS}
        print(
            f"Spark {version}: " + "; ".join(f"{part} {word(each)}" for part, each in matrix[version].items()), flush=True
        )
    if given.json:
        given.json.write_text(json.dumps(matrix, indent=2) + "\n", encoding="utf-8")
    promised = [each for version, parts in matrix.items() if release_of(version) >= PROMISED for each in parts.values()]
    return int(any(each["failed"] or not each["passed"] for each in promised))


if __name__ == "__main__":
    sys.exit(main())
