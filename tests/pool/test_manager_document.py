"""A manager's document: what it says, and each mistake as one sentence."""

from pathlib import Path

import pytest

from elastream.errors import ElastreamError
from elastream.pool.arbiter import Entitlement
from elastream.pool.document import ArbiterSetting, RegionSetting, load_manager

REGIONS = """
arbiter:
  name: demo
  listen: 127.0.0.1:21000
  token_file: token
  journal: state/arbiter.journal
  period: 1min
  regions:
    east: {price: 0.1, capacity: 3}
    west: {latency: 40ms}
    north:
  host_types:
    small: {cores: 1, region: east}
    large: {cores: 4, region: west}
  applications: {orders: {priority: 2, minimum: 2}, clicks: {}}
  prefer: east
  max_latency: 50ms
"""
MACHINES = """
arbiter:
  name: demo
  listen: 127.0.0.1:9000
  machines: {small: 2, vm: 1}
  token_file: token
  patience: 1min
  host_types:
    vm: {cores: 1, memory: 2GB, region: cloud}
  latency: {local: {cloud: 20ms}}
"""
REGION = """
region:
  name: east
  arbiter: http://127.0.0.1:21000/
  token_file: token
  journal: east.journal
  spare: 2
  host_types: {small: {cores: 1, price: 0.3, btu: 1h}}
  hosts: {directory: hosts/east}
"""


@pytest.fixture
def written(tmp_path: Path):
    (tmp_path / "token").write_text("0123456789abcdef\n")

    def write(text: str) -> Path:
        (tmp_path / "manager.yaml").write_text(text)
        return tmp_path / "manager.yaml"

    return write


def test_an_arbiter_of_regions_is_read(written, tmp_path) -> None:
    setting = load_manager(written(REGIONS))
    assert isinstance(setting, ArbiterSetting)
    assert (setting.host, setting.port, setting.token, setting.period) == ("127.0.0.1", 21000, "0123456789abcdef", 60.0)
    assert setting.journal == tmp_path / "state/arbiter.journal"
    assert (setting.regions, setting.machines) == (("east", "west", "north"), {})
    assert setting.entitlements == {"orders": Entitlement(2.0, 2), "clicks": Entitlement()}
    rules = setting.rules
    assert (rules.prefer, rules.max_latency) == (("east",), 0.05)
    assert (rules.regions["east"].capacity, rules.regions["west"].latency) == (3, 0.04)
    assert [kind.region for kind in setting.offer.kinds] == ["east", "west"]


def test_an_arbiter_of_machines_is_read(written, tmp_path) -> None:
    setting = load_manager(written(MACHINES))
    assert isinstance(setting, ArbiterSetting)
    assert setting.machines == {"m1": "small", "m2": "small", "m3": "vm"}
    assert (setting.offer.max_hosts, setting.offer.kinds[1].region, setting.rules.patience) == (3, "cloud", 60.0)
    assert setting.journal == tmp_path / "demo.journal"


def test_a_region_manager_is_read(written, tmp_path) -> None:
    setting = load_manager(written(REGION))
    assert isinstance(setting, RegionSetting)
    assert (setting.name, setting.arbiter, setting.hosts) == (
        "east",
        "http://127.0.0.1:21000",
        tmp_path / "hosts/east",
    )
    assert [(t.name, t.region, t.slots) for t in setting.types] == [("small", "east", 1)]
    assert (setting.rules.spare, setting.rules.low, setting.period) == (2, 0.1, 30.0)


@pytest.mark.parametrize(
    ("document", "old", "new", "said"),
    [
        (REGIONS, "127.0.0.1:21000", "here", r"manager.yaml:4: arbiter.listen: 'here' is not an address"),
        (REGIONS, "token_file: token", "token_file: nowhere", "nowhere cannot be read: No such file"),
        (REGIONS, "prefer: east", "prefer: south", "there is no region 'south' .there are: east, west, north"),
        (REGIONS, "priority: 2", "priority: 0", "priority: 0 is out of range: it must be above 0"),
        (REGIONS, "minimum: 2", "minimum: 1000000", "minimum: 1000000 is out of range"),
        (REGIONS, "region: west", "region: moon", "arbiter.host_types.large: there is no region 'moon'"),
        (REGIONS, "  regions:", "  region:", "arbiter"),
        (MACHINES, "machines: {small: 2, vm: 1}", "machines: {}", ":5: arbiter.machines: there are no machines"),
        (MACHINES, "small: 2", "smal: 1", "there is no host type 'smal', did you mean 'small'?"),
        (MACHINES, "small: 2", "small: 500", "one machine has addresses for 200"),
        (MACHINES, "  name: demo\n", "", "arbiter.name: is missing"),
        (MACHINES, "  patience", "  regions: {east: {}}\n  patience", "an arbiter has either machines of its own"),
        (REGION, "http://127.0.0.1:21000/", "127.0.0.1:21000", "region.arbiter: '127.0.0.1:21000' is not an address"),
        (REGION, "cores: 1", "cores: 0", "host type 'small' has no core"),
        (REGION, "spare: 2", "replica_cores: 2", "region.replica_cores: no host type has 2 cores for a replica"),
        (REGION, REGION, "{}", "one of the keys 'arbiter' and 'region'"),
        (REGION, REGION, "- a", "1: a manager's document is a mapping"),
    ],
)
def test_a_mistake_is_one_sentence(written, document: str, old: str, new: str, said: str) -> None:
    with pytest.raises(ElastreamError, match=said) as raised:
        load_manager(written(document.replace(old, new)))
    assert "\n" not in str(raised.value)


def test_a_token_that_can_be_guessed_is_refused(written, tmp_path) -> None:
    path = written(REGION)
    (tmp_path / "token").write_text("secret")
    with pytest.raises(ElastreamError, match="must have at least 16 characters"):
        load_manager(path)


def test_the_smallest_type_that_is_large_enough_for_a_replica_is_requested(written) -> None:
    text = REGION.replace("small: {cores: 1,", "large: {cores: 4, price: 1}, medium: {cores: 2}, small: {cores: 1,")
    setting = load_manager(written(text.replace("spare: 2", "replica_cores: 2")))
    assert isinstance(setting, RegionSetting)
    assert {kind.name for kind in setting.types} == {"large", "medium"}
