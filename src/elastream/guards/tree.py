"""Checked expressions as trees, decoded from the bytes (`cel.expr.CheckedExpr`) of CEL's type checker."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Literal:
    """Constant. `kind` distinguishes 1, 1.0 and true, equal in Python."""

    kind: str
    value: float | bool | str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Read:
    signal: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    """Operator or function. `overload`: id in `language.OVERLOADS`."""

    overload: str
    args: "tuple[Node, ...]"
    at: int = field(default=0, compare=False)


# `at` is its offset in the text
Node: TypeAlias = Literal | Read | Call


class Unsupported(Exception):
    """CEL expression that guards lack; `at`: offset in the text."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__(what)
        self.at = at


def nodes(tree: Node) -> Iterator[Node]:
    pending: list[Node] = [tree]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, Call):
            pending.extend(node.args)


def signals_of(*trees: Node | float | None) -> tuple[str, ...]:
    calls = (tree for tree in trees if isinstance(tree, Literal | Read | Call))
    return tuple(dict.fromkeys(node.signal for tree in calls for node in nodes(tree) if isinstance(node, Read)))


def substitute(tree: Node, names: Mapping[Node, str]) -> Node:
    if (name := names.get(tree)) is not None:
        return Read(name, tree.at)
    return replace(tree, args=tuple(substitute(arg, names) for arg in tree.args)) if isinstance(tree, Call) else tree


# Numbers of scalar types in `FieldDescriptorProto.Type`.
_SCALARS = {"int64": 3, "int32": 5, "bool": 8, "string": 9, "double": 1, "uint64": 4, "bytes": 12}
_MESSAGE = 11
# The fields in use of the specification's `syntax.proto` and `checked.proto`. A map is repeated entries in transit; the
# members of `Constant` and of `Expr` exclude each other.
_MESSAGES: dict[str, str] = {
    "Constant": "2 bool_value bool,3 int64_value int64,4 uint64_value uint64,5 double_value double,6 string_value string,"
    "7 bytes_value bytes",
    "Ident": "1 name string",
    "Select": "1 operand Expr",
    "CallExpr": "1 target Expr,2 function string,3 args *Expr",
    "CreateList": "1 elements *Expr",
    "Expr": "2 id int64,3 const_expr Constant,4 ident_expr Ident,5 select_expr Select,6 call_expr CallExpr,"
    "7 list_expr CreateList",
    "Reference": "1 name string,3 overload_id *string",
    "ReferenceEntry": "1 key int64,2 value Reference",
    "PositionEntry": "1 key int64,2 value int32",
    "SourceInfo": "4 positions *PositionEntry",
    "CheckedExpr": "2 reference_map *ReferenceEntry,4 expr Expr,5 source_info SourceInfo",
}


@cache
def _checked_expr() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # of an extra

    file = descriptor_pb2.FileDescriptorProto(name="elastream/guards.proto", package="guards", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        exclusive = name in ("Constant", "Expr")
        if exclusive:
            message.oneof_decl.add(name="kind")
        for each in fields.split(","):
            number, title, kind = each.split()
            repeated, kind = kind.startswith("*"), kind.lstrip("*")
            one = message.field.add(name=title, number=int(number), label=3 if repeated else 1)
            one.type = _SCALARS.get(kind, _MESSAGE)
            if kind in _MESSAGES:
                one.type_name = f".guards.{kind}"
            if exclusive and title != "id":
                one.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("guards.CheckedExpr"))


_KINDS = {"bool_value": "bool", "int64_value": "int", "double_value": "double", "string_value": "string"}
_UNSUPPORTED = {"list_expr": "a list outside 'in'", "select_expr": "a field of a value"}


def decode(serialized: bytes) -> Node:
    """Return the tree of a checked expression. Raises Unsupported for maps, macros, bytes or fields."""
    from google.protobuf import any_pb2

    checked = _checked_expr().FromString(any_pb2.Any.FromString(serialized).value)
    references = {each.key: each.value for each in checked.reference_map}
    positions = {each.key: each.value for each in checked.source_info.positions}

    def node_of(expr: Any) -> Node:
        at, kind = positions.get(expr.id, 0), expr.WhichOneof("kind")
        match kind:
            case "const_expr":
                name = expr.const_expr.WhichOneof("kind") or "null_value"
                if name not in _KINDS:
                    raise Unsupported(f"a constant of type {name.removesuffix('_value')}", at)
                return Literal(_KINDS[name], getattr(expr.const_expr, name), at)
            case "ident_expr":
                return Read(references[expr.id].name if expr.id in references else expr.ident_expr.name, at)
            case "select_expr" if expr.id in references:
                return Read(references[expr.id].name, at)
            case "call_expr":
                call, overloads = expr.call_expr, references[expr.id].overload_id
                parts = [call.target] if call.HasField("target") else []
                args: list[Node] = []
                for part in (*parts, *call.args):
                    elements = part.list_expr.elements if part.WhichOneof("kind") == "list_expr" else [part]
                    args += map(node_of, elements)
                if len(overloads) != 1:
                    raise Unsupported(f"{call.function!r} with operands of several types", at)
                return Call(overloads[0], tuple(args), at)
        raise Unsupported(_UNSUPPORTED.get(str(kind), "a map, a macro or a message"), at)

    return node_of(checked.expr)
