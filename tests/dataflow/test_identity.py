from dataclasses import replace

import pytest

from elastream import Alternate, Dataflow
from elastream.dataflow.endpoints import kafka, parquet, records
from elastream.dataflow.identity import check_identity, identity_of
from elastream.dataflow.stages import lay_out
from elastream.errors import InputError
from elastream.loads import constant, ramp


def split(line):
    return line.split()


def flow(*, key="word", kind=None, load=None, fast=False, out="/out", state=4, store="memory", tail=False, name="words"):  # noqa: PLR0913
    made = Dataflow(name)
    lines = made.source(records([{"value": "a"}], "value string") if kind is None else kind, load=load)
    functions = [Alternate("plain", split), Alternate("fast", list)] if fast else split
    words = lines.flat_map(functions, returns="word string, n long", name="split", max_duration="2s")
    counts = words.key_by(key).count()
    counts.sink(parquet(out))
    if tail:
        counts.durable().filter(bool, name="many").sink(parquet("/many"))
    return identity_of(lay_out(made.graph), state_partitions=state, state_store=store)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"key": "n"}, "the key of operator 'count' was word and is n"),
        ({"state": 8}, "the number of state partitions was 4 and is 8"),
        ({"store": "disk"}, "the state store was memory and is disk"),
        ({"out": "/elsewhere"}, "the output of operator 'sink' was ParquetSink /out and is ParquetSink /elsewhere"),
        ({"fast": True}, "the alternates of operator 'split' was split and is plain, fast"),
        ({"kind": kafka("t")}, "the input of operator 'source' was Records and is KafkaTopic t"),
        ({"load": constant("1/s")}, "the input of operator 'source' was Records and is Records at a load"),
        ({"name": "letters"}, "the dataflow was words and is letters"),
        ({"tail": True}, "the edge from 'count' to 'many' is new"),
    ],
)
def test_what_changed_of_a_dataflow_is_said(changed, said):
    before, now = flow(), flow(**changed)
    check_identity(before, before)
    with pytest.raises(InputError, match="the dataflow cannot continue from the run's files") as refused:
        check_identity(before, now)
    assert said in "; ".join([str(refused.value), *(f"{key} is new" for key in now if key not in before)])


def test_loads_servers_levels_and_functions_may_change():
    assert flow(load=constant("1/s")) == flow(load=ramp("1/s", "9/s", over="9s"))
    assert flow(kind=kafka("t")) == flow(kind=replace(kafka("t"), servers="other:9092"))


def test_of_many_differences_three_are_named():
    with pytest.raises(InputError, match=r"; and \d+ more$"):
        check_identity(flow(), flow(key="n", state=8, store="disk", out="/x", name="letters"))
