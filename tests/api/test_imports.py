"""Modules that `from elastream import Autopilot` loads: a job that is only watched pays for nothing else."""

import json
import subprocess
import sys

import pytest

MAX_MODULES = 150
ABSENT = {
    "cel_expr_python",
    "jinja2",
    "pandas",
    "pyarrow",
    "pydantic",
    "rich",
    "ruamel",
    "sqlglot",
    "elastream.api.result",
    "elastream.clouds.local.cluster",
    "elastream.dashboard",
    "elastream.documents",
    "elastream.guards",
    "elastream.report",
    "elastream.spark.dataflow.edges",
    "elastream.spark.dataflow.shipping",
    "elastream.spark.dataflow.sources",
    "elastream.spark.queries.compiled",
    "elastream.spark.queries.compiler",
}


@pytest.fixture(scope="module")
def modules():
    program = "import json, sys; from elastream import Autopilot; print(json.dumps(sorted(sys.modules)))"
    return frozenset(json.loads(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout))


def test_autopilot_loads_a_bounded_part_of_the_package(modules):
    own = [name for name in modules if name.split(".")[0] == "elastream"]
    assert "elastream.api.autopilot" in own
    assert len(own) <= MAX_MODULES


def test_autopilot_loads_nothing_that_it_does_not_need(modules):
    assert not modules & ABSENT
