"""Objects that open a provider without being a `Cloud`, and what `Cloud` and `Provider` have by default."""

from pathlib import Path

import pytest

from elastream.clouds.provider import Cloud, Provider, RunState, as_cloud, lacks_as_provider
from elastream.core.hosts import HostType
from elastream.errors import InputError

SMALL = HostType("small", cores=1)


class Four(Provider):
    """The required members alone."""

    def lease(self, hosts): ...

    def release(self, hosts): ...

    def hosts(self):
        return {}

    def close(self): ...


class Plain:
    types, max_hosts = (SMALL,), 3

    def open(self, folder, *, ports=None, session=None, alarms=None):
        return Four()


def test_four_verbs_make_a_provider():
    provider = Four()
    assert lacks_as_provider(provider) == ""
    assert (provider.measure(), provider.report(RunState()), provider.owed()) == ({}, None, None)


def test_a_plain_object_becomes_a_cloud_with_all_defaults():
    cloud = as_cloud(Plain())
    assert (cloud.types, cloud.max_hosts, cloud.min_hosts, cloud.stabilization_down) == ((SMALL,), 3, 1, 0.0)
    assert isinstance(cloud.open(Path()), Four)


def test_a_cloud_stays_itself():
    class Mine(Plain, Cloud):
        min_hosts = 2

    cloud = Mine()
    assert as_cloud(cloud) is cloud
    assert (cloud.min_hosts, cloud.stabilization_down) == (2, 0.0)


def test_a_plain_cloud_with_optional_members_is_refused():
    eager = type("Eager", (Plain,), {"min_hosts": 2})()
    with pytest.raises(InputError, match="Eager has 'min_hosts' and is not an elastream Cloud: derive the class from it"):
        as_cloud(eager)


def test_an_object_of_another_class_lacks_what_it_does_not_have():
    assert lacks_as_provider(Plain()).startswith("Plain is not a provider of hosts: it has no terms, lease")
