"""Hosts as files."""

import json
import math

import pytest

from elastream.clouds.host_directory import HostDirectory
from elastream.clouds.provider import HostStatus, HostUsage, Phase
from elastream.core.hosts import HostType
from elastream.errors import CloudError, ElastreamError, InputError

SMALL = HostType("small", cores=1.0, slots=1)


def test_a_lease_is_a_file_and_leasing_it_again_changes_nothing(tmp_path):
    directory = HostDirectory(tmp_path / "hosts")
    directory.lease({"h1": SMALL})
    directory.lease({"h1": SMALL})
    assert directory.hosts() == {"h1": HostStatus("small", Phase.UP)}
    used = directory.measure()["h1"]
    assert (used.replicas, math.isnan(used.cpu)) == (0, True)
    assert (tmp_path / "hosts" / "history.log").read_text() == "lease h1\n"
    assert sorted(file.name for file in (tmp_path / "hosts").iterdir()) == ["h1.json", "history.log"]


def test_a_release_takes_it_away_once(tmp_path):
    directory = HostDirectory(tmp_path)
    directory.lease({"h1": SMALL})
    (tmp_path / "h1.status.json").write_text("{}")
    directory.release(["h1"])
    directory.release(["h1"])
    assert directory.hosts() == {}
    assert (tmp_path / "history.log").read_text() == "lease h1\nrelease h1\n"


def test_its_status_says_how_a_host_is(tmp_path):
    directory = HostDirectory(tmp_path)
    directory.lease({"h1": SMALL})
    (tmp_path / "h1.status.json").write_text(json.dumps({"up": False, "cpu": 0.4, "replicas": 2}))
    assert directory.hosts() == {"h1": HostStatus("small", Phase.STARTING)}
    assert directory.measure() == {"h1": HostUsage(cpu=0.4, replicas=2)}


@pytest.mark.parametrize("damage", ["{", "[]", '{"cpu": "much"}'])
def test_a_damaged_status_is_named(tmp_path, damage):
    directory = HostDirectory(tmp_path)
    directory.lease({"h1": SMALL})
    (tmp_path / "h1.status.json").write_text(damage)
    with pytest.raises(InputError, match="h1"):
        directory.hosts()


@pytest.mark.parametrize("name", ["../h1", "", ".h1", "a/b", "h1.status"])
def test_a_name_that_is_no_file_s_is_refused(tmp_path, name):
    with pytest.raises(CloudError, match="cannot be the name of a host"):
        HostDirectory(tmp_path).lease({name: SMALL})


def test_a_directory_that_cannot_be_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ElastreamError, match=r"the hosts in .* cannot be read or written"):
        HostDirectory(tmp_path / "file")
