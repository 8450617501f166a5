"""What checkpoints of state weigh, by files that are written here as Spark's two state stores write theirs."""

import json
import math
import os
import zipfile

import numpy as np
import pytest

from elastream.spark.jvm.driver_side import java_context
from elastream.spark.jvm.state_partitions import SavedState, StatefulOperator, StatefulStage
from elastream.spark.telemetry.listed_files import ListedFiles, disk_of
from elastream.spark.telemetry.state_files import LocalDisk, MoveLoad, StateSizes, move_load
from elastream_papers.thesis.resilience.checkpoint_files import StateFile, delta_over_full, state_files
from support.waiting import wait_until


def stage(root, partitions=2, stores=("default",)):
    return StatefulStage("count", partitions, str(root), (StatefulOperator(0, "StateStoreSave", stores),))


def saved(root, version):
    return SavedState(LocalDisk(str(root)), version, ((0, "default"),))


def sizes_of(stage):
    """Return sizes that may be looked at as often as a test does."""
    return StateSizes(stage, LocalDisk(stage.root), listing_cores=math.inf)


def write(folder, name, size, at=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"x" * size)
    if at is not None:
        os.utime(folder / name, (at, at))


def write_rocks(folder, name, shared):
    """A snapshot of RocksDB: an archive that names the shared files that belong to it."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"sstFiles": [{"localFileName": "1.sst", "dfsSstFileName": "1-a.sst", "sizeBytes": size} for size in shared]}
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps(about))
    return (folder / name).stat().st_size


def test_the_state_is_the_newest_snapshot_and_what_was_written_since(tmp_path):
    sizes = sizes_of(stage(tmp_path))
    write(tmp_path / "0/0", "1.delta", 100)
    write(tmp_path / "0/1", "1.delta", 300)
    sizes.look(0)
    assert sizes.megabytes.tolist() == pytest.approx([1e-4, 3e-4])
    assert sizes.delta == 1.0
    for partition in ("0", "1"):
        write(tmp_path / "0" / partition, "2.delta", 50)
        write(tmp_path / "0" / partition, "2.snapshot", 400)
        write(tmp_path / "0" / partition, "3.delta", 40)
        write(tmp_path / "0" / partition, "4.delta", 9)  # of a batch that is not committed
    sizes.look(2)
    assert sizes.megabytes.tolist() == pytest.approx([4.4e-4, 4.4e-4])
    assert sizes.delta == pytest.approx(80 / 880)
    sizes.look(1)  # what is known of a newer batch stays
    assert sizes.delta == pytest.approx(80 / 880)


def test_a_rocksdb_snapshot_counts_its_files_in_both_formats(tmp_path):
    own = write_rocks(tmp_path / "0/0", "3_ab-1.zip", [5000, 7000])
    write(tmp_path / "0/0", "4_ab-2.changelog", 600)
    write(tmp_path / "0/0", "4_ab-2.changelog.crc", 12)
    (tmp_path / "0/0/SSTs").mkdir()
    sizes = sizes_of(stage(tmp_path, partitions=1))
    sizes.look(3)
    assert sizes.megabytes.tolist() == pytest.approx([(own + 12_600) / 1e6])
    assert sizes.delta == pytest.approx(600 / (own + 12_600))


def test_move_loads_the_newest_snapshot_and_the_changes_since(tmp_path):
    zipped = write_rocks(tmp_path / "0/1", "2.zip", [700, 50])
    for version in (1, 2, 3, 4):
        write(tmp_path / "0/1", f"{version}.changelog", 10 * version)
    assert move_load(saved(tmp_path, 3), 1)[:3] == (pytest.approx((zipped + 750 + 30) / 1e6), pytest.approx(3e-5), 1)
    assert move_load(saved(tmp_path, 4), 1).logs == 2
    assert move_load(saved(tmp_path, 4), 1).text.endswith("MB of state, with 2 change logs")


def test_move_of_state_without_files_loads_an_unknown_amount():
    assert math.isnan(move_load(saved("/nowhere/state", 3), 0).megabytes)
    assert move_load(saved("/nowhere/state", 3), 0).text == ""


def test_stores_of_a_join_add_up(tmp_path):
    names = ("left-keyToNumValues", "right-keyToNumValues")
    for number, name in enumerate(names, 1):
        write(tmp_path / "0/0" / name, "1.delta", 100 * number)
    sizes = sizes_of(stage(tmp_path, 1, names))
    sizes.look(0)
    assert sizes.megabytes.tolist() == pytest.approx([3e-4])


@pytest.mark.parametrize("missing", ["everything", "a change", "a snapshot that was read"])
def test_what_files_do_not_tell_is_unknown(tmp_path, missing):
    if missing == "a change":
        write(tmp_path / "0/0", "1.delta", 10)
        write(tmp_path / "0/0", "3.delta", 10)
    if missing == "a snapshot that was read":
        write(tmp_path / "0/0", "3.zip", 10)
    sizes = sizes_of(stage(tmp_path, partitions=1))
    sizes.look(2)
    assert np.isnan(sizes.megabytes).tolist() == [True]
    assert math.isnan(sizes.delta)


def test_a_store_without_changes_has_a_size_and_no_delta(tmp_path):
    own = write_rocks(tmp_path / "0/0", "2.zip", [900])
    sizes = sizes_of(stage(tmp_path, partitions=1))
    sizes.look(1)
    assert sizes.megabytes.tolist() == pytest.approx([(own + 900) / 1e6])
    assert math.isnan(sizes.delta)


def test_a_look_that_took_long_is_not_repeated_at_once(tmp_path):
    sizes = StateSizes(stage(tmp_path, partitions=1), LocalDisk(str(tmp_path)), listing_cores=1e-9)
    write(tmp_path / "0/0", "1.delta", 10)
    sizes.look(0)
    write(tmp_path / "0/0", "2.delta", 10)
    sizes.look(1)
    assert sizes.megabytes.tolist() == pytest.approx([1e-5])


def test_state_files_are_listed_by_version_with_the_newest_attempt(tmp_path):
    write(tmp_path, "2_a.changelog", 20, at=100.0)
    write(tmp_path, "2_b.changelog", 30, at=101.0)
    write(tmp_path, "1.delta", 10, at=99.0)
    write(tmp_path, "1.snapshot", 40, at=105.0)
    assert state_files(tmp_path) == (
        StateFile(1, False, 10.0, 99.0),
        StateFile(1, True, 40.0, 105.0),
        StateFile(2, False, 30.0, 101.0),
    )
    assert state_files(tmp_path / "nowhere") == ()


def test_a_checkpoints_writes_are_compared_with_the_state_of_its_version():
    def files(*both):
        changes = [StateFile(version, False, 10.0 * version, 0.0) for version in range(1, 9)]
        return (*changes, *(StateFile(version, True, 100.0, 0.0) for version in both))

    assert delta_over_full([files(2, 4), files(6)]) == pytest.approx((40 + 60) / 200)
    assert math.isnan(delta_over_full([files(2), files()]))
    assert math.isnan(delta_over_full([files(12)]))
    assert math.isnan(delta_over_full([]))


@pytest.mark.parametrize(
    ("load", "worth"),
    [
        (MoveLoad(100.0, 60.0, 11), True),
        (MoveLoad(60.0, 60.0, 11), True),  # no snapshot yet
        (MoveLoad(100.0, 60.0, 10), False),
        (MoveLoad(100.0, 40.0, 60), False),
        (MoveLoad(9.0, 8.0, 60), False),
        (MoveLoad(), False),
        (MoveLoad(math.nan, 60.0, 60), False),
    ],
)
def test_a_snapshot_is_worth_it_if_it_is_overdue_and_smaller_than_the_changes(load, worth):
    assert load.worth_a_snapshot == worth


@pytest.fixture(params=["local", "listed"])
def disk(request, tmp_path, local_spark):
    """The disk with the files of `tmp_path`, by its own path or mounted in Hadoop's view."""
    if request.param == "local":
        return LocalDisk(str(tmp_path))
    mount = f"fs.viewfs.mounttable.{tmp_path.name}.link./state".replace("_", "-")
    java_context(local_spark).hadoopConfiguration().set(mount, f"file://{tmp_path}")
    return ListedFiles(local_spark, f"viewfs://{tmp_path.name.replace('_', '-')}/state", pause=0.0)


def newest(disk):
    before = disk.look()
    wait_until(lambda: disk.look() > before + 1)  # one that began now


def test_sizes_rows_and_loads_are_those_of_the_files(disk, tmp_path):
    zipped = write_rocks(tmp_path / "0/0/left", "2_ab.zip", [700, 50])
    for version in (1, 2, 3, 4):
        write(tmp_path / "0/0/left", f"{version}_ab.changelog", 10 * version)
    write(tmp_path / "0/0/left", "4_cd.changelog", 500, at=2e9)
    newest(disk)
    stage = StatefulStage("count", 2, "", (StatefulOperator(0, "StateStoreSave", ("left",)),))
    sizes = StateSizes(stage, disk, listing_cores=math.inf)
    sizes.look(3)
    assert sizes.megabytes.tolist() == pytest.approx([(zipped + 750 + 30 + 500) / 1e6, math.nan], nan_ok=True)
    load = move_load(SavedState(disk, 3, ((0, "left"),)), 0)
    assert load.current is isinstance(disk, LocalDisk)
    assert load[:3] == (pytest.approx((zipped + 750 + 30) / 1e6), pytest.approx(3e-5), 1)


def test_a_snapshot_that_goes_is_unknown(disk, tmp_path):
    write(tmp_path / "0/0", "2.zip", 10)
    newest(disk)
    sizes = StateSizes(StatefulStage("count", 1, "", (StatefulOperator(0),)), disk, listing_cores=math.inf)
    sizes.look(1)
    assert np.isnan(sizes.megabytes).all()


def test_a_file_system_that_is_not_there_leaves_bytes_unknown(local_spark, caplog):
    disk = disk_of(local_spark, "nowhere://cluster/state")
    wait_until(lambda: disk.look() > 0)
    assert (list(disk.files("0/0")), disk.modified("0/0/1.delta")) == ([], 0.0)
    assert 'bytes of state are not current: No FileSystem for scheme "nowhere"' in caplog.text
