"""The archive of Java classes: whatever becomes of its file, JVMs start."""

import fcntl
import json
import logging
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastream.clouds.local import archive as module
from elastream.clouds.local.archive import RECORDED, ClassArchive, Classes, archive_for, merge_lists, options_for
from elastream.clouds.local.java import class_path, find_java, linked_home, spark_home, version_of


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An archive of next to nothing, which takes a second to make."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "some.lst").write_text("java/lang/Object\njava/lang/String\norg/apache/spark/SparkConf\n")
    archive = ClassArchive(find_java(), folder / "key")
    assert archive.make([folder / "some.lst"]) == ""
    return archive


@pytest.fixture
def archive(made, tmp_path):
    """A copy of it, to do harm to."""
    return ClassArchive(made.java, shutil.copytree(made.folder, tmp_path / "java-classes" / "key"))


def starts(java, link):
    done = subprocess.run([java, *options_for(link), "-cp", class_path(), "-version"], capture_output=True, text=True)
    return done.returncode == 0


def truncate(archive):
    with archive.file.open("r+b") as file:
        file.truncate(archive.file.stat().st_size // 2)


def garble_the_middle(archive):
    with archive.file.open("r+b") as file:
        file.seek(archive.file.stat().st_size // 2)
        file.write(b"nonsense")


def lose_the_manifest(archive):
    (archive.folder / "manifest.json").write_text("{")


def change_java(archive):
    content = archive.file.read_bytes().replace(version_of(archive.java).encode(), b"17.0.0+0-of-somebody-else")
    archive.file.write_bytes(content)
    found = {"bytes": archive.file.stat().st_size, "crc32": module.checksum(archive.file)}
    (archive.folder / "manifest.json").write_text(json.dumps(found))


def test_java_starts_with_an_archive_that_was_made(archive, tmp_path):
    assert archive.link(tmp_path / "link")
    assert (tmp_path / "link").resolve() == archive.file
    assert starts(archive.java, tmp_path / "link")


@pytest.mark.parametrize("harm", [truncate, garble_the_middle, lose_the_manifest, change_java])
def test_damaged_or_foreign_archive_is_ignored_with_one_warning(harm, archive, tmp_path, caplog):
    harm(archive)
    with caplog.at_level(logging.WARNING):
        assert not archive.link(tmp_path / "link")
        assert not archive.link(tmp_path / "link")
    assert len(caplog.messages) == 1
    assert str(archive.file) in caplog.text
    assert not archive.folder.exists(), "the next one is made there"


def test_without_an_archive_the_one_that_comes_with_java_is_used(tmp_path, caplog):
    java = find_java()
    assert not ClassArchive(java, tmp_path / "nothing").link(tmp_path / "link")
    assert (tmp_path / "link").resolve() == module.default_archive(java).resolve()
    assert starts(java, tmp_path / "link")
    assert not caplog.messages


def test_only_one_process_makes_an_archive_at_a_time(made, tmp_path):
    with (tmp_path / "making.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ClassArchive(made.java, tmp_path / "key").make([]) == "another process makes one"
    assert not (tmp_path / "key").exists()


def test_making_an_archive_clears_leftovers(archive, tmp_path):
    classes, homes = archive.folder.parent, tmp_path / module.HOMES
    unfinished = classes / "making-1234"
    archive.folder.rename(unfinished)
    assert not archive.usable()
    for name, home in (("gone", tmp_path / "nowhere"), ("there", tmp_path)):
        (classes / name).mkdir()
        (classes / name / "manifest.json").write_text(json.dumps({"spark_home": str(home)}))
        (homes / name).mkdir(parents=True)
        (homes / name / "jars").symlink_to(home)
    (tmp_path / "some.lst").write_text("java/lang/Object\n")
    assert archive.make([tmp_path / "some.lst"]) == ""
    assert archive.usable()
    assert [each.exists() for each in (unfinished, classes / "gone", homes / "gone")] == [False] * 3
    assert [each.exists() for each in (classes / "there", homes / "there")] == [True] * 2


def test_a_java_that_cannot_make_one_is_quoted_and_leaves_nothing(tmp_path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'no archives here' >&2\nexit 3\n")
    java.chmod(0o755)
    archive = ClassArchive(java, tmp_path / "cache" / "key")
    (tmp_path / "some.lst").write_text("java/lang/Object\n")
    assert archive.make([tmp_path / "gone.lst"]) == "no loaded classes were recorded"
    assert archive.make([tmp_path / "some.lst"]) == "Java ended with status 3: no archives here"
    assert [each.name for each in (tmp_path / "cache").iterdir()] == ["making.lock"]
    assert archive_for(java) is None


def test_the_name_of_an_archive_changes_with_the_class_path(monkeypatch, tmp_path):
    before = archive_for(find_java()).folder.name
    assert archive_for(find_java()).folder.name == before
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where the link to the jars is
    assert archive_for(find_java()).folder.name != before


def test_recorded_lists_are_joined_without_what_was_being_written(tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text("# NOTE\njava/lang/Object\n@lambda-proxy a b\nunder/wa")
    second.write_text("java/lang/Object id: 0\nown/Loader id: 7 super: 0 source: /some.jar\nother/One\n")
    assert merge_lists([first, second, tmp_path / "gone"]) == ["java/lang/Object", "@lambda-proxy a b", "other/One"]


def test_a_folder_that_cannot_have_the_link_does_without_an_archive(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    assert Classes(find_java(), tmp_path / "10:30").options(Path(RECORDED)) == (), "a path that Java's options cannot have"
    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert Classes(find_java(), tmp_path).options(Path(RECORDED)) == ()


def test_where_there_is_none_jvms_record_what_one_is_made_from_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    classes = Classes(find_java(), tmp_path)
    options = classes.options(Path(RECORDED))
    assert options[0] == f"-XX:SharedArchiveFile={tmp_path}/classes.jsa"
    assert options[-1] == "-XX:DumpLoadedClassList=classes.lst"
    assert str(tmp_path / "h1.lst") in classes.maker([tmp_path / "h1.lst"])
    assert classes.maker([tmp_path / "h1.lst"]) == ()
    assert classes.options(Path(RECORDED)) == options[:-1]


def no_folder(cache, monkeypatch):
    cache.write_text("a file where the folder should be")


def no_room(cache, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=1e6))


@pytest.mark.parametrize("harm", [no_folder, no_room])
def test_full_or_read_only_cache_records_nothing_and_is_no_warning(harm, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    harm(tmp_path / "cache", monkeypatch)
    classes = Classes(find_java(), tmp_path)
    assert not [option for option in classes.options(Path(RECORDED)) if "DumpLoaded" in option]
    assert classes.maker([tmp_path / "h1.lst"]) == ()
    assert not caplog.records  # a slower start needs no warning: results are the same


def test_spark_s_home_has_one_path_for_all_and_no_archives_of_pyspark(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = linked_home()
    assert linked_home() == home
    assert home.is_relative_to(tmp_path)
    assert (home / "jars").resolve() == spark_home() / "jars"
    assert not (home / "python").exists()
    assert str(home / "jars") in class_path()


def test_a_cache_behind_a_link_gives_the_path_that_it_leads_to(monkeypatch, tmp_path):
    (tmp_path / "kept" / module.HOMES).mkdir(parents=True)
    (tmp_path / "elastream").mkdir()
    (tmp_path / "elastream" / module.HOMES).symlink_to(tmp_path / "kept" / module.HOMES)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert linked_home().parent == tmp_path / "kept" / module.HOMES


def test_where_no_links_can_be_spark_s_own_home_is_used(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert linked_home() == spark_home()
