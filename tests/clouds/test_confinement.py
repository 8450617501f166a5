import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.clouds.local.confinement import (
    PERIOD,
    CgroupV1,
    CgroupV2,
    cores_allowed,
    find_cgroups,
    memory_allowed,
    mounted_cgroups,
    own_groups,
    quota,
)

V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"


class TestWhereGroupsCanBeMade:
    def test_two_trees_of_version_1_are_preferred_to_an_empty_version_2(self):
        found = list(mounted_cgroups(V1_MOUNTS, "2:cpuacct:/\n1:cpu:/\n0::/\n"))
        assert found == [CgroupV1(Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpuacct"))]

    def test_one_tree_of_version_1_can_serve_both_controllers(self):
        mounts = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        tree = Path("/sys/fs/cgroup/cpu,cpuacct/user.slice")
        assert list(mounted_cgroups(mounts, "4:cpu,cpuacct:/user.slice\n")) == [CgroupV1(tree, tree)]

    def test_a_container_that_sees_its_own_group_as_the_root_stays_inside_it(self):
        mounts = V1_MOUNTS.replace("/ /sys/fs/cgroup/cpu ", "/docker/abc /sys/fs/cgroup/cpu ").replace(
            "/ /sys/fs/cgroup/cpuacct ", "/docker/abc /sys/fs/cgroup/cpuacct "
        )
        found = list(mounted_cgroups(mounts, "2:cpuacct:/docker/abc/job\n1:cpu:/docker/abc/job\n"))
        assert found == [CgroupV1(Path("/sys/fs/cgroup/cpu/job"), Path("/sys/fs/cgroup/cpuacct/job"))]

    def test_in_version_2_groups_above_are_candidates_nearest_first(self):
        found = list(mounted_cgroups(V2_MOUNTS, "0::/user.slice/session-1.scope\n"))
        assert found == [CgroupV2(Path("/sys/fs/cgroup/user.slice")), CgroupV2(Path("/sys/fs/cgroup"))]

    def test_in_version_2_a_process_in_the_root_group_makes_groups_there(self):
        assert list(mounted_cgroups(V2_MOUNTS, "0::/\n")) == [CgroupV2(Path("/sys/fs/cgroup"))]

    def test_a_machine_without_control_groups_has_none_and_the_reason_is_said(self):
        assert list(mounted_cgroups("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n", "")) == []
        assert find_cgroups("x", iter([])) == (None, "no control group with a CPU quota is mounted")

    def test_a_place_that_cannot_be_written_is_named_in_the_reason(self, tmp_path):
        cgroups, reason = find_cgroups("x", iter([CgroupV1(tmp_path / "absent", tmp_path / "absent")]))
        assert cgroups is None
        assert str(tmp_path / "absent") in reason

    def test_version_2_asks_a_group_to_hand_the_cpu_controller_on(self, tmp_path):
        (tmp_path / "cgroup.subtree_control").write_text("memory pids")
        find_cgroups("x", iter([CgroupV2(tmp_path)]))
        assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"

    def test_version_2_leaves_a_group_alone_that_hands_the_cpu_on_already(self, tmp_path):
        (tmp_path / "cgroup.subtree_control").write_text("cpuset cpu memory")
        find_cgroups("x", iter([CgroupV2(tmp_path)]))
        assert (tmp_path / "cgroup.subtree_control").read_text() == "cpuset cpu memory"


class TestWhatIsWritten:
    """The kernel's files, stood in for by plain ones in a folder."""

    def test_version_1_sets_a_quota_reads_nanoseconds_and_joins_both_trees(self, tmp_path):
        group = CgroupV1(tmp_path / "cpu", tmp_path / "cpuacct")
        for tree in ("cpu", "cpuacct"):
            (tmp_path / tree).mkdir()
        group.create("h1")
        group.limit("h1", 0.5)
        assert (tmp_path / "cpu/h1/cpu.cfs_period_us").read_text() == "100000"
        assert (tmp_path / "cpu/h1/cpu.cfs_quota_us").read_text() == "50000"
        group.limit("h1", None)
        assert (tmp_path / "cpu/h1/cpu.cfs_quota_us").read_text() == "-1"
        (tmp_path / "cpuacct/h1/cpuacct.usage").write_text("2500000000\n")
        assert group.cpu_seconds("h1") == 2.5
        group.join("h1")
        assert [(tmp_path / tree / "h1/cgroup.procs").read_text() for tree in ("cpu", "cpuacct")] == ["0", "0"]

    def test_version_2_sets_a_quota_and_reads_microseconds_and_members(self, tmp_path):
        group = CgroupV2(tmp_path)
        group.create("h1")
        group.limit("h1", 1.5)
        assert (tmp_path / "h1/cpu.max").read_text() == "150000 100000"
        group.limit("h1", None)
        assert (tmp_path / "h1/cpu.max").read_text() == "max 100000"
        (tmp_path / "h1/cpu.stat").write_text("usage_usec 1250000\nuser_usec 1000000\nsystem_usec 250000\nnr_periods 0\n")
        (tmp_path / "h1/cgroup.procs").write_text("17\n23\n")
        assert group.cpu_seconds("h1") == 1.25
        assert group.members("h1") == {17, 23}

    @pytest.mark.parametrize("version", [1, 2])
    def test_a_group_that_is_gone_has_no_members_and_counts_as_removed(self, tmp_path, version):
        group = CgroupV1(tmp_path, tmp_path) if version == 1 else CgroupV2(tmp_path)
        assert group.members("h1") == set()
        assert group.remove("h1")

    def test_a_group_that_something_lives_in_is_not_removed(self, tmp_path):
        (tmp_path / "h1" / "child").mkdir(parents=True)
        assert not CgroupV2(tmp_path).remove("h1")

    @given(st.floats(0.001, 512))
    def test_quota_is_the_requested_one_and_never_below_the_kernels_least(self, cores):
        assert quota(cores) >= 1000
        if cores >= 0.01:
            assert quota(cores) / PERIOD == pytest.approx(cores, abs=1 / PERIOD)


class TestWhatAProcessMayUse:
    def test_the_least_quota_of_its_groups_counts_in_either_version(self, tmp_path):
        for name, text in (("inner", "max 100000"), ("outer", "150000 100000")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "cpu.max").write_text(text)
        assert cores_allowed([tmp_path / "inner", tmp_path / "outer"]) == 1.5
        assert cores_allowed([tmp_path / "inner"]) == math.inf
        (tmp_path / "first").mkdir()
        (tmp_path / "first/cpu.cfs_quota_us").write_text("25000")
        (tmp_path / "first/cpu.cfs_period_us").write_text("50000")
        assert cores_allowed([tmp_path / "first", tmp_path / "outer"]) == 0.5
        (tmp_path / "first/cpu.cfs_quota_us").write_text("-1")
        assert cores_allowed([tmp_path / "first"]) == math.inf

    def test_without_groups_or_files_nothing_holds_it(self, tmp_path):
        assert cores_allowed([]) == cores_allowed([tmp_path]) == math.inf

    def test_a_process_in_a_group_with_a_quota_reads_it(self):
        cgroups, why = find_cgroups("elastream-test-reads")
        if cgroups is None:
            pytest.skip(why)
        name = "elastream-test-quota"
        cgroups.create(name)
        try:
            cgroups.limit(name, 0.25)
            reads, writes = os.pipe()
            if os.fork() == 0:
                cgroups.join(name)
                os.write(writes, str(cores_allowed(own_groups())).encode())
                os._exit(0)
            os.wait()
            assert float(os.read(reads, 100)) == 0.25
        finally:
            cgroups.remove(name)


def test_least_memory_limit_of_the_groups_counts(tmp_path):
    files = {"own": ("memory.max", "max"), "pod": ("memory.max", "1000"), "old": ("memory.limit_in_bytes", "2000")}
    for name, (file, text) in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    groups = [tmp_path / name for name in ("own", "pod", "old", "none")]
    assert memory_allowed(groups) == 1000
    assert memory_allowed(groups[:1]) == math.inf
