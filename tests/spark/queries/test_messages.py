"""Messages to operators without Spark: which batches and replays have which, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from test_updating import Life, anything

from elastream.core.action import Status
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.functions import Loop, Receiver
from elastream.dataflow.graph import Graph
from elastream.errors import InputError
from elastream.loads import constant
from elastream.recording.code_log import CodeLog
from elastream.spark.queries.updating import ask_message, ask_update

# | state | event | batches planned from now on have |
# | --- | --- | --- |
# | message m | a message is sent | m; the loop has not proposed it |
# | message m | two are sent, and the loop proposes | the second |
# | message m | the driver is killed and resumed | m; what was sent is proposed again |
# | message m | `elastream update` gives other code | m, with the other code |
# | message m | a batch planned under an earlier one replays | the earlier one |


def saying(version: int) -> Any:
    return lambda row, message: f"{message} by {version}"


def two_queries(version: int = 0, message: Any = "open") -> Graph:
    flow = Dataflow("two")
    first = {"a": Receiver(saying(version), message), "b": Receiver(saying(version), message)}
    stream = flow.source(None, load=constant(1)).map(first, returns="said string", name="first").durable()
    looped = Loop(Receiver(saying(version), {"limit": 1}), bool, 3)
    stream.map(looped, returns="said string", name="last").sink(None, name="out")
    return flow.graph


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path, two_queries())


def send(life: Life, message: Any, operator: str = "first") -> None:
    ask_message(life.directory, operator, message, "test")


def test_a_message_holds_from_a_batch_on_and_a_replay_has_that_of_its_batch(life):
    assert life.batch(0) == "open by 0"
    send(life, "shut")
    before = life.plan(0)
    assert life.propose() is Status.ACCEPTED
    assert life.run(0, before) == "open by 0"
    life.again()
    assert life.run(0, before) == "open by 0"
    life.commit(0, before)
    assert [life.batch(0), life.batch(1)] == ["shut by 0", "{'limit': 1} by 0"]
    send(life, {"limit": 2}, "last")
    assert life.propose() is Status.ACCEPTED
    assert [life.batch(0), life.batch(1)] == ["shut by 0", "{'limit': 2} by 0"]


def test_the_last_of_several_messages_counts_and_a_killed_driver_proposes_it(life):
    life.batch(0)
    for message in ("shut", "half open"):
        send(life, message)
    life.again()
    assert life.batch(0) == "open by 0"
    assert life.propose() is Status.ACCEPTED
    assert life.batch(0) == "half open by 0"
    life.again()
    assert life.batch(0) == "half open by 0"


def test_an_update_keeps_the_messages_that_were_sent(life):
    send(life, "shut")
    ask_update(two_queries(1, "new"), life.directory, anything, "test")
    assert life.propose() is Status.ACCEPTED
    assert [life.batch(0), life.batch(1)] == ["shut by 1", "{'limit': 1} by 1"]
    with pytest.raises(InputError, match="nothing to update"):
        ask_update(two_queries(1, "new"), life.directory, anything, "test")


def test_an_update_drops_a_message_that_no_longer_fits(life):
    send(life, "shut")
    ask_update(two_queries(1, 5), life.directory, anything, "test")
    life.propose()
    assert life.batch(0) == "5 by 1"
    send(life, 6)
    life.propose()
    assert life.batch(0) == "6 by 1"


def test_an_operator_that_an_update_made_a_receiver_takes_messages(life):
    flow = Dataflow("two")
    stream = flow.source(None, load=constant(1)).map(
        {"a": Receiver(saying(0), "open"), "b": Receiver(saying(0), "open")}, returns="said string", name="first"
    )
    stream.durable().map(saying(0), returns="said string", name="last").sink(None, name="out")
    ask_update(flow.graph, life.directory, anything, "test")
    with pytest.raises(InputError, match=r"operator 'last' of .* takes no messages \(these do: first\)"):
        send(life, {"limit": 2}, "last")
    ask_update(two_queries(), life.directory, anything, "test")
    send(life, {"limit": 2}, "last")


def test_an_update_takes_the_messages_of_its_file_where_none_was_sent(life):
    ask_update(two_queries(1, "new"), life.directory, anything, "test")
    life.propose()
    assert life.batch(0) == "new by 1"


def test_an_update_repairs_code_that_cannot_be_loaded(life):
    send(life, "shut")
    CodeLog(life.directory).file(1).write_bytes(b"damaged")
    ask_update(two_queries(1), life.directory, anything, "test")
    assert life.propose() is Status.ACCEPTED
    assert life.batch(0) == "open by 1"


@pytest.mark.parametrize(
    ("operator", "message", "said"),
    [
        ("second", "shut", r"operator 'second' of .* takes no messages \(these do: first, last\)"),
        ("first", 3, r"operator 'first' of .* does not take the message 3: it is a number, and the operator takes a text"),
        ("last", {"limits": 3}, "it has a field 'limits', and the operator takes limit"),
    ],
)
def test_a_message_that_does_not_fit_is_refused_and_writes_nothing(life, operator, message, said):
    with pytest.raises(InputError, match=said):
        send(life, message, operator)
    assert len(CodeLog(life.directory).versions) == 1


def test_a_message_that_the_operator_has_is_refused(life):
    send(life, "shut")
    with pytest.raises(InputError, match=r"operator 'first' of .* has this message already"):
        send(life, "shut")


def test_a_truth_is_not_the_number_that_equals_it(tmp_path):
    life = Life(tmp_path, two_queries(message=None))
    send(life, True)
    send(life, 1)
    assert len(CodeLog(life.directory).versions) == 3


def test_a_message_fits_all_alternates_of_its_operator(tmp_path):
    flow = Dataflow("two")
    either = {"a": Receiver(saying(0), {"limit": 3}), "b": Receiver(saying(0), 5)}
    flow.source(None, load=constant(1)).map(either, returns="said string", name="first").sink(None, name="out")
    with pytest.raises(InputError, match="does not take the message"):
        send(Life(tmp_path, flow.graph), {"limit": 4})
