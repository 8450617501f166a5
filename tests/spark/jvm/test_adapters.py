"""One table says what older releases of Spark spell another way; nothing else of the package asks for the release."""

import pytest

from elastream.spark.jvm.adapters import NEWEST, OLDEST, SPELLINGS, for_release, release_of
from elastream.spark.jvm.copies_jar import SOURCES
from elastream.spark.jvm.driver_side import HERE
from elastream.spark.jvm.session import FILES_OF_CHECKPOINTS

WRITTEN = "\n".join(each.read_text() for each in (*HERE.glob("*.java"), *SOURCES.glob("*.java"))) + FILES_OF_CHECKPOINTS


@pytest.mark.parametrize(
    ("version", "release"),
    [("4.1.4", (4, 1)), ("4.3.0-SNAPSHOT", (4, 3)), ("4.10.0", (4, 10)), ("none", (0, 0))],
)
def test_a_release_is_the_first_two_numbers_of_a_version(version, release):
    assert release_of(version) == release


def test_the_newest_release_is_what_sources_are_written_for():
    assert for_release(WRITTEN, "4.3.0") == WRITTEN


@pytest.mark.parametrize("change", SPELLINGS, ids=lambda change: change.now)
def test_each_row_is_used_and_speaks_of_a_release_that_is_covered(change):
    assert change.now in WRITTEN
    assert OLDEST < change.since <= NEWEST


@pytest.mark.parametrize("change", SPELLINGS, ids=lambda change: change.now)
def test_an_older_release_meets_no_spelling_that_came_later(change):
    major, minor = change.since
    assert change.now not in for_release(WRITTEN, f"{major}.{minor - 1}.9")


def test_a_class_that_moved_is_found_where_it_was():
    assert for_release(FILES_OF_CHECKPOINTS, "4.0.5").endswith("execution.streaming.FileSystemBasedCheckpointFileManager")
    assert for_release(FILES_OF_CHECKPOINTS, "4.1.0") == FILES_OF_CHECKPOINTS
