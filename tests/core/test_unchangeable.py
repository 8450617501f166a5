"""A policy for which nothing is left to change."""

from elastream.core.fitting import unchangeable
from elastream.core.observation import Context
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect, records
from elastream.dataflow.stages import lay_out
from elastream.policies.threshold import Threshold


def context(functions, *capabilities):
    flow = Dataflow("f")
    lengths = flow.source(records([{"value": "a"}], "value string")).map(functions, returns="n int", name="m")
    lengths.sink(collect("o"))
    return Context(lay_out(flow.graph), capabilities=frozenset(capabilities))


def test_without_hosts_and_alternates_a_remark_says_so_once():
    assert unchangeable(context(len), Threshold()) == (
        "policy threshold has nothing to change: no hosts are leased here, and no operator has alternates",
    )


def test_alternates_or_hosts_leave_something_to_change():
    assert unchangeable(context({"a": len, "b": len}), Threshold()) == ()
    assert unchangeable(context(len, "LeaseHost"), Threshold()) == ()
