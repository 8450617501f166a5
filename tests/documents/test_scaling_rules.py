"""Rules for the number of hosts in a document: every field, and the line of what is wrong."""

from dataclasses import fields

import pytest

from elastream.core.scaling import ScalingRules
from elastream.documents.dataflow import load_document
from elastream.documents.schema import ScalingKeys
from elastream.errors import DataflowError

FLOW = """\
dataflow: shop
operators:
  requests: {source: simulated}
  answer: {from: requests, alternates: {full: {cost: 50ms}}}
  out: {from: answer, sink: simulated}
"""


def load(tmp_path, scaling):
    path = tmp_path / "shop.yaml"
    path.write_text(FLOW + scaling)
    return load_document(path).settings["scaling"]


def test_a_document_without_rules_has_none(tmp_path):
    assert load(tmp_path, "") == ScalingRules()


def test_all_rules_may_be_written(tmp_path):
    found = load(
        tmp_path,
        """\
scaling:
  stabilization_up: 30s
  stabilization_down: 5min
  scale_down_interval: 10 min
  max_scale_up: 1
  max_scale_down: 0.5
  tolerance: 0.1
  catch_up: 15 min
  excluded_periods: ["* 9-11 * * 1-5", "* 0 1 * *"]
  time_zone: Europe/Vienna
  min_hosts: 2
  max_hosts: 8
  budget: 12/h
  approve: 8/h
""",
    )
    assert found.stabilization_down == 300.0
    assert found.excluded_periods == ("* 9-11 * * 1-5", "* 0 1 * *")
    assert set(found.set) == {each.name for each in fields(ScalingRules) if each.init} == set(ScalingKeys.model_fields)


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ("scaling:\n  tolerance: 0.1\n  max_scale_down: 2\n", "shop.yaml:8: scaling.max_scale_down: 2 is not a share"),
        ("scaling: {excluded_periods: noon}\n", "shop.yaml:6: scaling.excluded_periods: 'noon' is not a cron expression"),
        ("scaling: {max_host: 3}\n", "shop.yaml:6: scaling.max_host: "),
        ("scaling: {stabilization_up: soon}\n", "shop.yaml:6: scaling.stabilization_up: 'soon' is not a duration"),
        ("scaling: {max_hosts: true}\n", "shop.yaml:6: scaling.max_hosts: True is not a whole number"),
        ("scaling: {approve: true}\n", "shop.yaml:6: scaling.approve: True is not money per time; write it as '12/h'"),
        ("scaling: {budget: 12}\n", "shop.yaml:6: scaling.budget: 12 is not money per time"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, scaling, said):
    with pytest.raises(DataflowError) as raised:
        load(tmp_path, scaling)
    assert said in str(raised.value)
