"""A manager's document: what it says, and each mistake as one sentence."""

from pathlib import Path

import pytest

from elastream.model.errors import ElastreamError
from elastream.services.manager_document import InfrastructureSetting, RegionSetting, load_manager

INFRASTRUCTURE = """
infrastructure:
  listen: 127.0.0.1:21000
  token_file: token
  journal: state/infrastructure.journal
  period: 1min
  regions:
    east: {price: 0.1, capacity: 3}
    west: {latency: 40ms}
    north:
  applications: {orders: {priority: 2}, clicks: {}}
  prefer: east
  max_latency: 50ms
"""
REGION = """
region:
  name: east
  infrastructure: http://127.0.0.1:21000/
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


def test_an_infrastructure_manager_is_read(written, tmp_path) -> None:
    setting = load_manager(written(INFRASTRUCTURE))
    assert isinstance(setting, InfrastructureSetting)
    assert (setting.address, setting.port, setting.token, setting.period) == ("127.0.0.1", 21000, "0123456789abcdef", 60.0)
    assert setting.journal == tmp_path / "state/infrastructure.journal"
    assert (setting.regions, setting.applications) == (("east", "west", "north"), ("orders", "clicks"))
    rules = setting.rules
    assert (rules.prefer, rules.max_latency, rules.priorities) == (("east",), 0.05, {"orders": 2.0, "clicks": 1.0})
    assert (rules.regions["east"].capacity, rules.regions["west"].latency) == (3, 0.04)


def test_a_region_manager_is_read(written, tmp_path) -> None:
    setting = load_manager(written(REGION))
    assert isinstance(setting, RegionSetting)
    assert (setting.name, setting.infrastructure, setting.hosts) == (
        "east",
        "http://127.0.0.1:21000",
        tmp_path / "hosts/east",
    )
    assert [(t.name, t.region, t.slots) for t in setting.types] == [("small", "east", 1)]
    assert (setting.rules.spare, setting.rules.low, setting.period) == (2, 0.1, 30.0)


@pytest.mark.parametrize(
    ("document", "old", "new", "said"),
    [
        (INFRASTRUCTURE, "127.0.0.1:21000", "here", r"manager.yaml:3: infrastructure.listen: 'here' is not an address"),
        (INFRASTRUCTURE, "  token_file: token\n", "", "infrastructure.token_file: is missing"),
        (INFRASTRUCTURE, "prefer: east", "prefer: south", "there is no region 'south' .there are: east, west, north"),
        (INFRASTRUCTURE, "priority: 2", "priority: 0", "priority: 0 is out of range: it must be above 0"),
        (INFRASTRUCTURE, "period: 1min", "period: often", "infrastructure.period"),
        (INFRASTRUCTURE, "regions:", "region:", "2: infrastructure.regions: is missing"),
        (INFRASTRUCTURE, "infrastructure:", "elsewhere:", "there is no such key"),
        (
            REGION,
            "http://127.0.0.1:21000/",
            "127.0.0.1:21000",
            "region.infrastructure: '127.0.0.1:21000' is not an address",
        ),
        (REGION, "cores: 1", "cores: 0", "host type 'small' has no core"),
        (REGION, "token_file: token", "token_file: nowhere", "nowhere cannot be read: No such file"),
        (REGION, "directory: hosts/east", "", "hosts"),
        (REGION, "spare: 2", "replica_cores: 2", "region.replica_cores: no host type has 2 cores for a replica"),
        (REGION, REGION, "{}", "one of the keys 'infrastructure' and 'region'"),
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


def test_what_the_documentation_shows_is_in_order(written) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/managers.md").read_text()
    blocks = [block.split("```")[0] for block in page.split("```yaml\n")[1:]]
    assert [type(load_manager(written(block))) for block in blocks] == [InfrastructureSetting, RegionSetting]


def test_the_smallest_type_that_is_large_enough_for_a_replica_is_asked_for(written) -> None:
    text = REGION.replace("small: {cores: 1,", "large: {cores: 4, price: 1}, medium: {cores: 2}, small: {cores: 1,")
    setting = load_manager(written(text.replace("spare: 2", "replica_cores: 2")))
    assert isinstance(setting, RegionSetting)
    assert {kind.name for kind in setting.types} == {"large", "medium"}
