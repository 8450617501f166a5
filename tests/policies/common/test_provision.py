"""Sizing by hand-made dataflows: what a rate fills, what fills hosts, and what a load comes to."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.hosts import HostType
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.errors import CloudError, DataflowError, InputError
from elastream.loads import constant, steps
from elastream.policies.common import provision

SMALL = HostType("small", 1.0)


def chain(*costs, cores=1.0, memory=0.0, selectivity=1.0) -> Graph:
    """Operators `a`, `b`, ... one after the other between `source` and `sink`."""
    names = [chr(ord("a") + n) for n in range(len(costs))]
    line = ["source", *names, "sink"]
    return Graph(
        "chain",
        (
            Operator("source", Kind.SOURCE),
            *(
                Operator(n, alternates=(Alternate(n, cost=c, selectivity=selectivity),), cores=cores, memory=memory)
                for n, c in zip(names, costs, strict=True)
            ),
            Operator("sink", Kind.SINK, cores=0.0),
        ),
        tuple(Edge(a, b) for a, b in itertools.pairwise(line)),
    )


def test_work_follows_selectivity():
    assert provision.declared_cores(chain(0.001, 0.002, selectivity=3.0), {"source": 100.0}) == pytest.approx(
        {"a": 0.1, "b": 0.6}
    )


def test_a_measured_cost_takes_the_place_of_a_declared_one():
    graph = chain(None, 0.002)
    assert provision.declared_cores(graph, {"source": 100.0}, {"a": (0.001, 2.0)}) == pytest.approx({"a": 0.1, "b": 0.4})


def test_an_operator_without_a_cost_is_named():
    with pytest.raises(DataflowError, match="operator 'b' declares no cost"):
        provision.declared_cores(chain(0.1, None), {"source": 1.0})


def test_fused_the_work_fills_hosts_to_the_target_and_stages_their_slots():
    layout = lay_out(chain(0.001, 0.002))
    assert provision.provision_for_cores(layout, SMALL, {"a": 1.4, "b": 0.7}) == provision.Provision(3, {"source": 3})


def test_apart_every_operator_has_the_instances_that_its_work_fills():
    layout = lay_out(chain(0.001, 0.002, cores=0.5), chained=False)
    assert provision.provision_for_cores(layout, SMALL, {"a": 0.7, "b": 0.36}) == provision.Provision(2, {"a": 2, "b": 2})


def test_run_begins_with_hosts_for_one_instance_of_each_operator():
    assert provision.first_provision(lay_out(chain(1.0, 1.0, 1.0), chained=False), SMALL).hosts == 3
    assert provision.first_provision(lay_out(chain(1.0, 1.0, 1.0, cores=0.5), chained=False), SMALL).hosts == 2
    assert provision.first_provision(lay_out(chain(1.0, 1.0, 1.0)), SMALL).hosts == 1


def test_an_operator_that_fits_no_host_is_named_with_what_to_change():
    with pytest.raises(CloudError, match=r"operator 'a' needs 2 cores .* declare fewer `cores`"):
        provision.first_provision(lay_out(chain(1.0, cores=2.0), chained=False), SMALL)


def test_hosts_are_filled_in_proportion_to_work():
    layout = lay_out(chain(0.001, 0.003), chained=False)
    assert provision.instances_to_fill(layout, SMALL, 8, {"a": 1.0, "b": 3.0}) == {"a": 2, "b": 6}
    assert provision.instances_to_fill(layout, SMALL, 8, {}) == {"a": 4, "b": 4}


def test_peak_and_mean_of_a_load():
    load = steps(("10/s", "30s"), ("50/s", "10s"))
    graph = chain(0.01)
    assert provision.rates_of(graph, {"source": load}, "mean") == {"source": 20.0}
    assert provision.rates_of(graph, {"source": load}, "peak") == {"source": 50.0}
    # What lasts half as long as records may wait counts half.
    assert provision.rates_of(graph, {"source": load}, "peak", window=20.0) == {"source": 30.0}
    assert provision.declared_provision(lay_out(graph), SMALL, {"source": load}).hosts == 1
    assert provision.declared_provision(lay_out(chain(0.1)), SMALL, {"source": load}).hosts == 8


def test_a_load_without_end_or_a_source_without_load_is_refused():
    with pytest.raises(InputError, match="the load has no end, so that its peak is unknown"):
        provision.rates_of(chain(0.01), {"source": constant("5/s")}, "peak")
    with pytest.raises(InputError, match="source 'source' declares no load"):
        provision.rates_of(chain(0.01), {}, "mean")


WORK = st.lists(st.floats(0.0, 40.0), min_size=1, max_size=6)


@given(work=WORK, own=st.sampled_from([0.25, 0.5, 1.0]), cores=st.sampled_from([1.0, 2.0, 4.0]), apart=st.booleans())
def test_provision_is_the_smallest_that_holds_its_work(work, own, cores, apart):
    graph = chain(*work, cores=own)
    layout, kind = lay_out(graph, chained=not apart), HostType("h", cores)
    needed = dict(zip("abcdef", work, strict=False))
    found = provision.provision_for_cores(layout, kind, needed)
    if apart:
        assert all(found.parallelism[n] * own * 0.7 >= each - 1e-6 for n, each in needed.items())
        assert found.hosts == max(1, math.ceil(sum(found.parallelism.values()) * own / cores - 1e-9))
    else:
        assert sum(work) <= found.hosts * cores * 0.7 + 1e-6
        assert found.hosts == 1 or sum(work) > (found.hosts - 1) * cores * 0.7 - 1e-6
