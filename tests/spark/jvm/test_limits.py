"""Limits of a session's executors, by its settings and by its cluster manager."""

import pytest

from elastream.spark.jvm.capabilities import least_interval, session_limits
from elastream.spark.jvm.cluster_manager import NO_LIMIT, SessionLimit, parse_limit


@pytest.mark.parametrize(
    ("master", "settings", "slots", "limit"),
    [
        ("spark://h:7077", {"spark.cores.max": "6"}, 2, SessionLimit(3, "spark.cores.max=6")),
        ("local-cluster[4,1,700]", {"spark.cores.max": "1"}, 1, SessionLimit(1, "spark.cores.max=1")),
        ("local-cluster[2, 4, 700]", {}, 2, SessionLimit(4, "local-cluster[2, 4, 700]")),
        ("local-cluster[3,1,700]", {}, 0, SessionLimit(3, "local-cluster[3,1,700]")),
        ("yarn", {"spark.cores.max": "1"}, 1, NO_LIMIT),
        ("k8s://h", {"spark.dynamicAllocation.maxExecutors": "5"}, 0,
         SessionLimit(5, "spark.dynamicAllocation.maxExecutors=5")),
        ("spark://h:7077", {"spark.cores.max": "6"}, 0, NO_LIMIT),
    ],
)  # fmt: skip
def test_settings_of_a_session_limit_its_executors(master, settings, slots, limit):
    assert min(session_limits(master, settings.get, slots), key=lambda each: each.executors) == limit


def test_lowest_limit_of_the_cluster_manager_counts():
    assert parse_limit([["7", "resource quota 'a'"], ["3", "resource quota 'b'"]]) == SessionLimit(3, "resource quota 'b'")
    assert parse_limit([]) == NO_LIMIT


STORE = "spark.sql.streaming.stateStore"
ROCKS = {f"{STORE}.providerClass": "a.RocksDBStateStoreProvider", f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true"}


@pytest.mark.parametrize(
    ("version", "settings", "seconds"),
    [
        ("4.1.4", ROCKS, 0.6),
        ("4.1.4", {**ROCKS, f"{STORE}.maintenanceInterval": "15000"}, 0.15),
        ("4.0.5", {**ROCKS, "spark.sql.streaming.minBatchesToRetain": "10"}, 6.0),
        ("4.2.1", ROCKS, 0.0),
        ("4.1.4", {}, 0.0),
        ("4.1.4", {f"{STORE}.providerClass": "a.RocksDBStateStoreProvider"}, 0.0),
    ],
)
def test_state_moves_only_if_its_files_outlive_a_late_snapshot(version, settings, seconds):
    assert least_interval(version, settings.get) == pytest.approx(seconds)
