"""Copies of a state partition against Spark's own providers and files, in a Java without a Spark session.

The partition's task moves to an executor that has a copy, in any order with batches, failed attempts, maintenance that
deletes old files, copies that fail half-way and copies that are behind. Rows are compared one by one.
"""

import random
import subprocess
import zipfile
from pathlib import Path

import pytest
from pyspark import __version__ as SPARK

from elastream.clouds.local.java import find_java, spark_home
from elastream.errors import EnvironmentProblem
from elastream.spark.jvm.jars import COMPILER, COPIES_PLUGIN, check_release, copies_jar, copies_settings
from elastream.spark.jvm.releases import STANDBY_SINCE, release_of

CHECK, ROOM = (Path(__file__).parent / name for name in ("CopiesCheck.java", "RoomCheck.java"))
OPENED = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang", "java.util")]
"""What Spark's launcher adds to every Java."""
QUIET = "rootLogger.level = off\n"


kept = pytest.mark.skipif(
    release_of(SPARK) < STANDBY_SINCE, reason="copies of state cannot be kept with this release of Spark"
)


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """The class path of the check, which is compiled as the jar is."""
    folder = tmp_path_factory.mktemp("classes")
    (folder / "log4j2.properties").write_text(QUIET)
    path = [str(copies_jar()), *map(str, sorted((spark_home() / "jars").glob("*.jar")))]
    command = [str(find_java()), "-cp", f"{spark_home() / 'jars'}/*", COMPILER, "-d", str(folder)]
    subprocess.run([*command, "-classpath", ":".join(path), str(CHECK), str(ROOM)], check=True, capture_output=True)
    return f"{folder}:{copies_jar()}:{spark_home() / 'jars'}/*"


@pytest.mark.slow
@kept
def test_the_fewest_copies_leave_for_those_of_a_nearer_successor(classes):
    chance, cases = random.Random(1), []
    for _ in range(300):
        ranks = sorted(chance.choices(range(4), k=chance.randint(1, 8)))
        cases.append(
            (
                ranks,
                [chance.choice((0, chance.randint(1, 50))) for _ in ranks],
                chance.randrange(4),
                chance.randint(-20, 120),
            )
        )
    said = [
        f"{','.join(map(str, ranks))} {','.join(map(str, memory))} {rank} {missing}"
        for ranks, memory, rank, missing in cases
    ]
    done = subprocess.run(
        [str(find_java()), "-cp", classes, "elastream.copies.RoomCheck", *said], capture_output=True, text=True, check=True
    )
    answers = done.stdout.split()
    assert len(answers) == len(cases)
    assert "none" in answers
    for answer, (ranks, memory, rank, missing) in zip(answers, cases, strict=True):
        further = [number for number, of in enumerate(ranks) if of > rank and memory[number]]
        if answer == "none":
            assert sum(memory[number] for number in further) < missing
            continue
        leave = [number for number, each in enumerate(answer) if each == "1"]
        freed = [memory[number] for number in leave]
        assert leave == further[len(further) - len(leave) :], "the coldest of hosts further away, and no others"
        assert sum(freed) >= missing
        assert not leave or sum(freed[1:]) < missing, "one less would have done"


def moved(classes, folder, steps, *cases):
    command = [str(find_java()), *OPENED, "-cp", classes, "elastream.copies.CopiesCheck", str(folder), str(steps), *cases]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [f"{store}:{seed}" for store, seed, *_ in lines] == list(cases), done.stdout  # anything else is a difference
    return [list(map(int, numbers)) for _, _, *numbers in lines]


@kept
@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", "disk"])
def test_no_order_of_events_makes_a_copy_wrong(classes, store, tmp_path):
    found = moved(classes, tmp_path, 300, *(f"{store}:{seed}" for seed in range(5)))
    for wrong, committed, taken, behind, _ in found:
        assert not wrong
        assert committed > 20
        assert taken > 1
        assert behind > 0
    assert sum(failed for *_, failed in found) > 0


@kept
def test_the_jar_is_made_once_and_holds_the_plugin():
    made = copies_jar()
    assert f"{COPIES_PLUGIN.replace('.', '/')}.class" in zipfile.ZipFile(made).namelist()
    at = made.stat().st_mtime_ns
    assert copies_settings() == {"spark.plugins": COPIES_PLUGIN, "spark.jars": made.as_uri()}
    assert (copies_jar(), made.stat().st_mtime_ns) == (made, at)


@kept
def test_classes_that_this_spark_refuses_are_a_sentence(tmp_path):
    (tmp_path / "Wrong.java").write_text("package elastream.copies; class Wrong extends org.apache.spark.Gone { }")
    with pytest.raises(EnvironmentProblem, match="with this Spark their classes do not compile"):
        copies_jar(tmp_path)


def test_a_release_with_which_none_are_kept_is_a_sentence():
    with pytest.raises(EnvironmentProblem, match=r"are kept: they need Spark 4\.1 or newer, and this is 4\.0\.5"):
        check_release("4.0.5")
