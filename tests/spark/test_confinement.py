import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.model.errors import CloudError
from elastream.spark.confinement import PERIOD, CgroupV1, CgroupV2, Link, Network, find_cgroups, mounted_cgroups, quota

V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"


class TestWhereGroupsCanBeMade:
    def test_two_trees_of_version_1_are_found_and_preferred_to_an_empty_version_2(self):
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

    def test_in_version_2_every_group_above_the_own_one_is_a_candidate_nearest_first(self):
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

    def test_version_2_leaves_a_group_alone_that_hands_the_cpu_controller_on_already(self, tmp_path):
        (tmp_path / "cgroup.subtree_control").write_text("cpuset cpu memory")
        find_cgroups("x", iter([CgroupV2(tmp_path)]))
        assert (tmp_path / "cgroup.subtree_control").read_text() == "cpuset cpu memory"


class TestWhatIsWritten:
    """The kernel's files, stood in for by plain ones in a folder."""

    def test_version_1_sets_and_lifts_a_quota(self, tmp_path):
        group = CgroupV1(tmp_path / "cpu", tmp_path / "cpuacct")
        for tree in ("cpu", "cpuacct"):
            (tmp_path / tree).mkdir()
        group.create("h1")
        group.limit("h1", 0.5)
        assert (tmp_path / "cpu/h1/cpu.cfs_period_us").read_text() == "100000"
        assert (tmp_path / "cpu/h1/cpu.cfs_quota_us").read_text() == "50000"
        group.limit("h1", None)
        assert (tmp_path / "cpu/h1/cpu.cfs_quota_us").read_text() == "-1"

    def test_version_1_reads_nanoseconds_and_joins_both_trees(self, tmp_path):
        group = CgroupV1(tmp_path / "cpu", tmp_path / "cpuacct")
        for tree in ("cpu", "cpuacct"):
            (tmp_path / tree).mkdir()
        group.create("h1")
        (tmp_path / "cpuacct/h1/cpuacct.usage").write_text("2500000000\n")
        assert group.cpu_seconds("h1") == 2.5
        group.join("h1")
        assert [(tmp_path / tree / "h1/cgroup.procs").read_text() for tree in ("cpu", "cpuacct")] == ["0", "0"]

    def test_version_2_sets_and_lifts_a_quota_in_one_file(self, tmp_path):
        group = CgroupV2(tmp_path)
        group.create("h1")
        group.limit("h1", 1.5)
        assert (tmp_path / "h1/cpu.max").read_text() == "150000 100000"
        group.limit("h1", None)
        assert (tmp_path / "h1/cpu.max").read_text() == "max 100000"

    def test_version_2_reads_microseconds_and_its_members(self, tmp_path):
        group = CgroupV2(tmp_path)
        group.create("h1")
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
    def test_a_quota_is_never_below_what_the_kernel_takes_and_within_rounding_of_what_was_asked(self, cores):
        assert quota(cores) >= 1000
        if cores >= 0.01:
            assert quota(cores) / PERIOD == pytest.approx(cores, abs=1 / PERIOD)


class TestLink:
    def test_a_rate_and_a_delay_are_read_in_the_units_people_write(self):
        link = Link(rate="100mbit", delay="5ms")
        assert (link.bits_per_second, link.delay_microseconds) == (100_000_000, 5000)
        assert str(link) == "100 Mbit/s and 5 ms one way"

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"rate": "fast"}, "'fast'"),
            ({"rate": "100 parsec"}, "parsec"),
            ({"rate": "0mbit"}, "above 0"),
            ({"delay": "-5ms"}, "negative"),
            ({}, "limits nothing"),
        ],
        ids=["no number", "no unit of rate", "no rate at all", "negative delay", "nothing given"],
    )
    def test_a_link_that_makes_no_sense_is_refused_in_one_sentence(self, wrong, said):
        with pytest.raises(CloudError, match=said):
            Link(**wrong)

    def test_a_delay_is_given_to_netem_together_with_the_rate(self):
        said = Network(7).discipline(Link(rate="10mbit", delay="5ms"))
        assert said == ["netem", "delay", "5000us", "rate", "10000000bit"]

    def test_without_netem_the_rate_is_held_by_a_bucket_that_takes_offloaded_packets_whole(self):
        said = Network(7, netem=False).discipline(Link(rate="10mbit", delay="5ms"))
        assert said[:3] == ["tbf", "rate", "10000000bit"]
        assert int(said[said.index("burst") + 1]) >= 65536

    def test_without_netem_a_delay_alone_limits_nothing(self):
        assert Network(7, netem=False).discipline(Link(delay="5ms")) == []

    @given(st.integers(1, 254), st.integers(2, 254))
    def test_device_names_fit_the_kernels_fifteen_characters(self, number, index):
        network = Network(number)
        assert len(network.bridge) <= 15
        assert len(network.device(index)) <= 15


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
class TestNetworkNamespaces:
    def test_a_namespace_has_a_limited_link_of_its_own_and_leaves_nothing(self):
        try:
            network = Network(253).open()
        except OSError as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        try:
            network.add(10, Link(rate="10mbit"))
            inside = subprocess.run([*network.inside(10), "ip", "address"], capture_output=True, text=True, check=True)
            assert "198.18.253.10/24" in inside.stdout
            shaped = subprocess.run([*network.inside(10), "tc", "qdisc"], capture_output=True, text=True, check=True)
            assert "10Mbit" in shaped.stdout
        finally:
            network.remove(10)
            network.close()
        left = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
        assert "elastream253" not in left
        assert network.device(10) not in left
        assert not Path("/run/netns", network.namespace(10)).exists()

    def test_what_a_killed_supervisor_left_under_the_same_number_is_no_obstacle(self):
        try:
            Network(252).open().add(10, Link(rate="10mbit"))
        except OSError as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        again = Network(252).open()
        try:
            again.add(10, Link(rate="10mbit"))
        finally:
            again.remove(10)
            again.close()
