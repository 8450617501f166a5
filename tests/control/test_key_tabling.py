"""What the loop proposes when key tables are appended to a run."""

from dataclasses import replace

from elastream.control.extension import BY, KeyTableExtension
from elastream.core.action import SetKeyTable
from elastream.core.alarm import Alarms
from elastream.core.frames import Frame
from elastream.core.guarding import GuardDecision
from elastream.core.observation import Composition, Context, Observation
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.key_table import KeyTable, KeyTableBook
from elastream.dataflow.stages import lay_out
from elastream.errors import InputError


def seen(tables: dict[str, int]) -> Observation:
    flow = Dataflow("forecasting")
    varied = flow.source(None).map(
        {"mean": dict, "trend": dict}, returns="customer long", name="predict", select_by="customer"
    )
    varied.sink(None)
    context = Context(lay_out(flow.graph))
    return Observation(0.0, context, Frame(), composition=Composition(1, tables=tables))


def table(alternate: str) -> KeyTable:
    return KeyTable("forecasting", "predict", ("customer",), {(1,): alternate})


def test_the_newest_version_is_requested_until_it_is_wanted():
    book, alarms = KeyTableBook(), Alarms(lambda: 0.0)
    tabling = KeyTableExtension(book)
    assert tabling.proposals(seen({}), (), alarms) == ()
    book.append(table("mean"))
    book.append(table("trend"))
    for wanted in ({}, {"predict": 1}):
        (proposal,) = tabling.proposals(seen(wanted), (), alarms)
        assert (proposal.action, proposal.by) == (SetKeyTable("predict", 2), BY)
    assert tabling.proposals(seen({"predict": 2}), (), alarms) == ()


def test_a_table_with_a_forbidden_alternate_waits_until_it_is_allowed():
    alarms, tabling = Alarms(lambda: 0.0), KeyTableExtension(KeyTableBook(table("trend")))
    for allowed, refused in ((("mean",), "its guards do not allow trend, which the table names"), (("mean", "trend"), "")):
        guarded = replace(seen({}), standings={"predict": GuardDecision("predict", allowed)})
        (proposal,) = tabling.proposals(guarded, (), alarms)
        assert proposal.refused == refused


def test_a_table_in_force_goes_when_guards_forbid_it_and_comes_back():
    alarms, tabling = Alarms(lambda: 0.0), KeyTableExtension(KeyTableBook(table("trend")))
    forbids, allows = ({"predict": GuardDecision("predict", allowed)} for allowed in (("mean",), ("mean", "trend")))
    (proposal,) = tabling.proposals(replace(seen({"predict": 1}), standings=forbids), (), alarms)
    assert (proposal.action, proposal.refused) == (SetKeyTable("predict", 0), "")
    assert proposal.action.why == "its guards do not allow trend, which the table names"
    (waiting,) = tabling.proposals(replace(seen({}), standings=forbids), (), alarms)
    assert waiting.refused
    (again,) = tabling.proposals(replace(seen({}), standings=allows), (), alarms)
    assert (again.action, again.refused) == (SetKeyTable("predict", 1), "")
    unknown = {"predict": GuardDecision("predict", ())}  # none is allowed: what runs stays
    assert tabling.proposals(replace(seen({"predict": 1}), standings=unknown), (), alarms) == ()


def test_an_older_allowed_table_stays_while_the_newest_is_forbidden():
    alarms, tabling = Alarms(lambda: 0.0), KeyTableExtension(KeyTableBook(table("mean"), table("trend")))
    guarded = replace(seen({"predict": 1}), standings={"predict": GuardDecision("predict", ("mean",))})
    (proposal,) = tabling.proposals(guarded, (), alarms)
    assert proposal.action == SetKeyTable("predict", 2)
    assert proposal.refused


def test_tables_that_cannot_be_read_sound_an_alarm_and_change_nothing():
    class Damaged(KeyTableBook):
        broken = True

        def newest(self):
            if self.broken:
                raise InputError("tables.jsonl, line 3: not a version of a key table")
            return super().newest()

    book, alarms = Damaged(table("mean")), Alarms(lambda: 0.0)
    tabling = KeyTableExtension(book)
    assert tabling.proposals(seen({}), (), alarms) == ()
    (alarm,) = alarms.active
    assert "line 3" in alarm.said
    book.broken = False
    assert len(tabling.proposals(seen({}), (), alarms)) == 1
    assert alarms.active == ()
