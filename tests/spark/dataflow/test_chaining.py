"""What a choice does not select sleeps: no exit of its is written, and an empty branch has none."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.action import SwitchEdge
from elastream.core.composition import switched
from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow
from elastream.spark.dataflow.chaining import awake, open_exits
from elastream.spark.worker.composition import CompositionCodec
from elastream.spark.worker.walk import Walk, run_walk
from support.walks import Under, walk_of

NUMBER = pa.schema([("n", pa.int64())])


def peak() -> tuple[Walk, CompositionCodec]:
    """Source -> tag -> a choice of nothing, light (to a sink) or heavy (to a sink, and to one that light feeds as well)."""
    flow = Dataflow("peak")
    tagged = flow.source(None).map(lambda n: n, returns="n long", name="tag")
    branches = tagged.choice("when")
    branches.nothing(name="asleep")
    light = branches.map(lambda n: n, returns="n long", name="light")
    heavy = branches.map(lambda n: n, returns="n long", name="heavy")
    heavy.sink(None, name="own")
    light.merge(heavy).sink(None, name="both")
    codec = CompositionCodec(flow.graph)
    return walk_of(flow.graph, [NUMBER], {"n long": NUMBER}), codec


def under(codec: CompositionCodec, target: str) -> int:
    return codec.encode(switched(Composition.default(codec.graph), [SwitchEdge("when", target)]))


def test_exits_are_open_where_the_choices_lead():
    walk, codec = peak()
    names = [exit.name for exit in walk.exits]
    assert sorted(names) == ["both", "own"]  # the empty branch has no exit
    found = {target: {names[n] for n in open_exits(walk, under(codec, target))} for target in ("asleep", "light", "heavy")}
    assert found == {"asleep": set(), "light": {"both"}, "heavy": {"both", "own"}}
    assert awake(walk, names.index("own"))(under(codec, "heavy"))
    assert not awake(walk, names.index("own"))(under(codec, "light"))


@given(numbers=st.lists(st.integers(0, 9), min_size=1), target=st.sampled_from(["asleep", "light", "heavy"]))
def test_records_leave_only_by_exits_that_are_open(numbers, target):
    walk, codec = peak()
    code = under(codec, target)
    rows = list(run_walk(walk, Under(fixed=code), 0, [pa.record_batch({"n": numbers})], lambda rows: None))
    left = {int(exit) for batch in rows for exit in batch.column(0).to_pylist()}
    assert left <= open_exits(walk, code)
    assert sum(batch.num_rows for batch in rows) == len(numbers) * len(open_exits(walk, code))
