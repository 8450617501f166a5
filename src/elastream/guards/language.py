"""Language of guards: CEL without macros, maps, regular expressions or loops, and with functions of time."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from elastream import units
from elastream.dataflow.signals import Signal, SignalKind
from elastream.errors import ElastreamError, needed_by
from elastream.guards.tree import Call, Literal, Node, Read, Unsupported, decode, nodes

MAX_TEXT_LENGTH = 10_000
MAX_NODES = 1_000  # CEL's parser bounds the depth besides, by 32
# longest window or persistence
MAX_WINDOW_S = 7 * 86_400.0


class GuardError(ElastreamError):
    def __init__(self, sentence: str, line: int = 1, column: int = 1) -> None:
        super().__init__(sentence)
        self.line, self.column = line, column


@dataclass(frozen=True, slots=True)
class Overload:
    """Operator or function for operands of certain types. `member`: called as `text.startsWith(...)`."""

    id: str
    function: str
    result: str
    operands: tuple[str, ...]
    member: bool = False


def _table(text: str) -> dict[str, Overload]:
    table = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        id, function, result, *operands = line.split()
        name = function.removesuffix(".")
        table[id] = Overload(id, name, result, tuple(operands), member=name != function)
    return table


def _numeric(functions: Mapping[str, str], result: str) -> str:
    lines = []
    for name, function in functions.items():
        for left in ("double", "int"):
            for right in ("double", "int"):
                kinds = (left if left == right else f"{left}_{right}").replace("int", "int64")
                of = result if result == "bool" else ("int" if left == right == "int" else "double")
                lines.append(f"{name}_{kinds} {function} {of} {left} {right}")
    return "\n".join(lines)


_COMPARED = {"less": "_<_", "less_equals": "_<=_", "greater": "_>_", "greater_equals": "_>=_"}
_COMPUTED = {"add": "_+_", "subtract": "_-_", "multiply": "_*_", "divide": "_/_"}
_EQUAL = {"equals": "_==_", "not_equals": "_!=_"}

# overloads by id
OVERLOADS: Mapping[str, Overload] = _table(f"""
logical_or _||_ bool bool bool
logical_and _&&_ bool bool bool
logical_not !_ bool bool
conditional_bool _?_:_ bool bool bool bool
conditional_double _?_:_ double bool double double
conditional_string _?_:_ string bool string string
{_numeric(_COMPARED, "bool")}
{_numeric(_COMPUTED, "double")}
{_numeric(_EQUAL, "bool")}
equals_bool _==_ bool bool bool
equals_string _==_ bool string string
not_equals_bool _!=_ bool bool bool
not_equals_string _!=_ bool string string
negate_double -_ double double
negate_int64 -_ int int
modulo_int64 _%_ int int int
in_list_string @in bool string strings
in_list_double @in bool double doubles
starts_with startsWith. bool string string
ends_with endsWith. bool string string
contains contains. bool string string
avg avg double double string
min min double double string
max max double double string
sum sum double double string
stddev stddev double double string
rate rate double double string
rate_minute rate double double
count_double count double double string
count_bool count double bool string
count_string count double string string
known_double known bool double
known_bool known bool bool
known_string known bool string
age_double age double double
age_bool age double bool
age_string age double string
held held bool bool string
then then bool bool bool string
""")

# functions of signals: the first operand is a signal's name, not a value
OF_SIGNALS = frozenset({"avg", "min", "max", "sum", "stddev", "rate", "count", "known", "age"})
# functions of conditions over time; their last operand is a duration
OF_CONDITIONS = frozenset({"held", "then"})

_KINDS = {SignalKind.NUMBER: "double", SignalKind.TRUTH: "bool", SignalKind.TEXT: "string"}
_WORDS = {"double": "number", "int": "whole number", "bool": "truth value", "string": "text"}
_BARE = "stdlib:\n  disable: true\n"  # `OVERLOADS` replaces CEL's own functions

_REPORTED = re.compile(r"ERROR: <input>:(\d+):(-?\d+): (.*)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
_KEYWORDS = """
true false null in as break const continue else for function if import let loop package namespace return var void while
"""
# words of CEL that no signal's name may contain
RESERVED = frozenset(_KEYWORDS.split())


def is_name(name: str) -> bool:
    return _NAME.match(name) is not None and not RESERVED & set(name.split("."))


def check_name(name: str) -> None:
    if not is_name(name):
        raise GuardError(f"a signal cannot be called {name!r}: letters, digits and _, parts joined with '.'")


def _environment(variables: Mapping[str, str]) -> Any:
    with needed_by("a guard"):
        from cel_expr_python import cel

    types = {
        "bool": cel.Type.BOOL, "double": cel.Type.DOUBLE, "int": cel.Type.INT, "string": cel.Type.STRING,
        "strings": cel.Type.List(cel.Type.STRING), "doubles": cel.Type.List(cel.Type.DOUBLE),
    }  # fmt: skip
    overloads: dict[str, list[Any]] = {}
    for each in OVERLOADS.values():
        operands = [types[name] for name in each.operands]
        declared = cel.Overload(id=each.id, return_type=types[each.result], parameters=operands, is_member=each.member)
        overloads.setdefault(each.function, []).append(declared)
    return cel.NewEnv(
        config=cel.NewEnvConfigFromYaml(_BARE),
        variables={name: types[kind] for name, kind in variables.items()},
        functions=[cel.FunctionDecl(name, each) for name, each in overloads.items()],
    )


class Language:
    """CEL over certain signals. Names and texts that are invalid raise GuardError."""

    def __init__(self, signals: Iterable[Signal]) -> None:
        self.signals: dict[str, Signal] = {}
        for signal in signals:
            if signal.name in self.signals:
                raise GuardError(f"two signals are called {signal.name!r}")
            check_name(signal.name)
            self.signals[signal.name] = signal
        self._env = _environment({signal.name: _KINDS[signal.kind] for signal in self.signals.values()})

    def condition(self, text: str) -> Node:
        return self._checked(text, ("bool",), "a guard is a truth value")

    def number(self, text: str) -> Node:
        return self._checked(text, ("double", "int"), "a value is a number")

    def _checked(self, text: str, results: tuple[str, ...], rule: str) -> Node:
        if len(text) > MAX_TEXT_LENGTH:
            raise GuardError(f"the expression has {len(text):,} characters, more than {MAX_TEXT_LENGTH:,}")
        if not text.isprintable() and (odd := re.search(r"[\ud800-\udfff\0]", text)):
            raise GuardError(f"the character {odd[0]!r} is not one of a text", *_place(text, odd.start()))
        try:
            checked = self._env.compile(text)
            tree = decode(checked.serialize())
        except Unsupported as problem:
            raise GuardError(f"{problem} is not part of the guard language", *_place(text, problem.at)) from None
        except (RuntimeError, UnicodeError) as problem:
            raise self._explained(str(problem)) from None
        kind = checked.return_type().name().lower()
        if kind not in results:
            raise GuardError(f"it is a {_WORDS.get(kind, kind)}: {rule}", *_place(text, _start(tree)))
        if (count := sum(1 for _ in nodes(tree))) > MAX_NODES:
            raise GuardError(f"the expression has {count:,} parts, more than {MAX_NODES:,}")
        for node in nodes(tree):
            if isinstance(node, Call):
                self._check_call(node, text)
        return tree

    def _check_call(self, node: Call, text: str) -> None:
        name = OVERLOADS[node.overload].function
        if name in OF_SIGNALS and not isinstance(node.args[0], Read):
            raise GuardError(f"{name} takes a signal by name, not an expression", *_place(text, _start(node.args[0])))
        if name in OF_CONDITIONS or (name in OF_SIGNALS and len(node.args) == 2):
            last = node.args[-1]
            try:
                if not isinstance(last, Literal):
                    raise ElastreamError(f"the duration of {name} is a text such as '5m', not an expression")
                seconds_of(last)
            except ElastreamError as error:
                raise GuardError(str(error), *_place(text, last.at)) from None

    def _explained(self, answer: str) -> GuardError:
        """Return the checker's first error in the words of guards."""
        if (report := _REPORTED.search(answer)) is None:
            if "recursion" in answer:
                return GuardError("the expression is nested too deeply: at most 32 levels")
            return GuardError(f"it is not an expression of CEL: {answer.splitlines()[0]}")
        return GuardError(self._reworded(report[3]), int(report[1]), max(1, int(report[2])))

    def _reworded(self, message: str) -> str:
        if name := re.match(r"undeclared reference to '([^']*)'", message):
            return self._unknown(name[1])
        if types := re.match(r"found no matching overload for '([^']*)' applied to '(.*?)\((.*)\)'", message):
            operator = types[1].replace("_", "").replace("@", "") if not types[1].isidentifier() else types[1]
            kinds = (types[3] or types[2].strip("(")).split(", ")
            operands = ", ".join(_WORDS.get(each.strip("()"), each) for each in kinds)
            return f"{operator!r} does not take ({operands})"
        if message.startswith("Syntax error"):
            problem = message.removeprefix("Syntax error: ").partition(" expecting ")[0]
            return "syntax error: " + ("the expression ends too early" if "'<EOF>'" in problem else problem)
        return message

    def _unknown(self, name: str) -> str:
        functions = {each.function for each in OVERLOADS.values() if each.function.isidentifier()}
        if not re.match(r"[\w.]+\Z", name):
            if name.startswith("@"):
                return "a macro over a list is not part of the guard language"
            return f"the operator {name.replace('_', '')!r} is not part of the guard language"
        close = difflib.get_close_matches(name, [*self.signals, *functions], n=1)
        hint = f", did you mean {close[0]!r}?" if close else ""
        return f"there is no signal or function {name!r}{hint}"


def seconds_of(literal: Literal) -> float:
    """Return the duration of a text such as '5m', in (0, MAX_WINDOW_S]."""
    seconds = units.duration(str(literal.value))
    if not 0 < seconds <= MAX_WINDOW_S:
        raise ElastreamError(f"the duration {literal.value!r} is out of range: above 0 and at most 7 days")
    return seconds


def _start(tree: Node) -> int:
    return min(node.at for node in nodes(tree))


def _place(text: str, offset: int) -> tuple[int, int]:
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1
