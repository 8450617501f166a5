"""Guard text: valid expressions, and error messages."""

import pytest
from cel_expr_python import cel
from hypothesis import given
from hypothesis import strategies as st

from elastream.dataflow.signals import Signal, SignalKind, SignalReading
from elastream.guards.evaluator import Element, Evaluator, Guard
from elastream.guards.interpreter import evaluate
from elastream.guards.language import GuardError, Language
from support.guards_by_hand import SIGNALS, texts

LANGUAGE = Language(SIGNALS)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("error > ", (1, 9), "syntax error: the expression ends too early"),
        ("eror > 0.3", (1, 1), "there is no signal or function 'eror', did you mean 'error'?"),
        ("alert ||\n  eror > 0.3", (2, 3), "there is no signal or function 'eror', did you mean 'error'?"),
        ("mean(error, '5m') > 1", (1, 5), "there is no signal or function 'mean'"),
        ("error > 'high'", (1, 7), "'>' does not take (number, text)"),
        ("error", (1, 1), "it is a number: a guard is a truth value"),
        ("avg(error + 1, '5m') > 1", (1, 5), "avg takes a signal by name, not an expression"),
        (
            "avg(error, '5 parsecs') > 1",
            (1, 12),
            "'5 parsecs' is not a duration: 'parsecs' is not one of us, ms, s, min, h, d",
        ),
        ("avg(error, tariff) > 1", (1, 12), "the duration of avg is a text such as '5m', not an expression"),
        ("avg(error, '8d') > 1", (1, 12), "the duration '8d' is out of range: above 0 and at most 7 days"),
        ("[1.0].all(x, x > 0.0)", (1, 10), "a macro over a list is not part of the guard language"),
        ("tariff.matches('(a+)+')", (1, 15), "there is no signal or function 'matches'"),
        ("{'a': alert}.a", (1, 13), "a field of a value is not part of the guard language"),
        ("(" * 600 + "alert" + ")" * 600, (1, 1), "the expression is nested too deeply: at most 32 levels"),
        (" + ".join(["error"] * 60) + " > 1.0", (1, 1), "the expression is nested too deeply: at most 32 levels"),
        (" && ".join(["alert"] * 600), (1, 1), "the expression has 1,199 parts, more than 1,000"),
        ("alert" + " " * 10_000, (1, 1), "the expression has 10,005 characters, more than 10,000"),
        ("\ud800", (1, 1), r"the character '\ud800' is not one of a text"),
    ],
)
def test_a_fault_in_a_guard_is_named_with_line_and_column(text: str, place: tuple[int, int], message: str) -> None:
    with pytest.raises(GuardError) as raised:
        LANGUAGE.condition(text)
    assert ((raised.value.line, raised.value.column), str(raised.value)) == (place, message)


@pytest.mark.parametrize("name", ["in", "a-b", "a.for", "", "1a", "a b"])
def test_signals_have_names_of_cel(name: str) -> None:
    with pytest.raises(GuardError, match="cannot be called"):
        Language([Signal(name)])


def test_numbers_need_no_decimal_point_to_meet_a_signal() -> None:
    tree = LANGUAGE.condition("2 * error + 1 > 3 && error != 4")
    assert [evaluate(tree, {"error": value}) for value in (1.0, 1.5, 4.0)] == [False, True, False]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("error > 1.0 || alert", True),
        ("error > 1.0 && !alert", False),
        ("error > 1.0 || !alert", None),
        ("error > 1.0 && alert", None),
        ("alert ? true : error > 1.0", True),
        ("error > 1.0 ? true : true", None),
        ("known(error) || !known(alert)", False),
    ],
)
def test_unknown_signal_yields_to_a_side_that_decides(text: str, known: bool | None) -> None:
    assert evaluate(LANGUAGE.condition(text), {"error": None, "alert": True}) is known


_PLAIN = cel.NewEnv(
    variables={
        signal.name: {
            SignalKind.NUMBER: cel.Type.DOUBLE,
            SignalKind.TRUTH: cel.Type.BOOL,
            SignalKind.TEXT: cel.Type.STRING,
        }[signal.kind]
        for signal in SIGNALS
    }
)
_VALUES = st.tuples(
    st.none() | st.sampled_from([-1.5, 0.0, 0.3, 1.0, 2.0]),
    st.none() | st.sampled_from([-1.5, 0.0, 0.3, 1.0, 2.0]),
    st.none() | st.booleans(),
    st.none() | st.sampled_from(["", "low", "high"]),
)


@given(texts(memory=False), _VALUES)
def test_interpreter_answers_as_googles_evaluator_does(text: str, values: tuple[float | bool | str | None, ...]) -> None:
    readings = {signal.name: value for signal, value in zip(SIGNALS, values, strict=True)}
    known = {name: value for name, value in readings.items() if value is not None}
    answer = _PLAIN.compile(text).eval(data=known).plain_value()
    expected = answer if isinstance(answer, bool) else None  # about a missing signal it answers with an error
    assert evaluate(LANGUAGE.condition(text), readings) is expected


_PIECES = st.sampled_from(
    ["error", "alert", "tariff", "(", ")", "[", "]", "{", "}", ".", ",", "'5m'", "avg", "held", "then", "age", "&&", "||",
     "!", "-", "?", ":", "1", "0.0", "1e308", "9223372036854775807", "%", "/", "*", "==", "in", "has", "__class__", "eval",
     "\n", "\\", "'", '"', "b'x'", "null", "//", "\x00", "é", "\U0001f600", "1u", "@"],
)  # fmt: skip


@given(st.text(max_size=60) | st.lists(_PIECES, max_size=15).map(" ".join), _VALUES)
def test_any_text_is_refused_in_one_sentence_or_decides_something(
    text: str, values: tuple[float | bool | str | None, ...]
) -> None:
    try:
        tree = LANGUAGE.condition(text)
    except GuardError as error:
        fault = error
    else:
        guards = Evaluator([Element("any", (Guard("one", tree),))], SIGNALS)
        guards.update(0.0, {s.name: SignalReading(value, 0.0) for s, value in zip(SIGNALS, values, strict=True)})
        assert guards.standings["any"].allowed in ((), ("one",))
        return
    assert str(fault)
    assert "\n" not in str(fault)
    assert 1 <= fault.line <= text.count("\n") + 1
