"""Functions that do more than one call: loops, switches, and receivers of messages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from elastream.errors import DataflowError

# Column with the name of each record's port, between a switch and its ports.
PORT = "_port"

# A value of JSON.
Message: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Loop:
    """Step that repeats on its own results, as long as a task has unfinished ones.

    In `map_arrow` and `map_pandas` both functions take a batch; `until` returns a boolean for each record.

    Attributes:
        step: Function of the operator. It takes what it returns.
        until: Function that is true of a finished result.
        at_most: Number of rounds. A record that needs more fails, as `on_error` says.
    """

    step: Callable[..., Any]
    until: Callable[..., Any]
    at_most: int

    def __post_init__(self) -> None:
        for what, function in (("repeats", self.step), ("ends when", self.until)):
            if not callable(function) or isinstance(function, Loop):
                raise DataflowError(
                    f"a loop {what} {function!r}, which is {'a loop' if callable(function) else 'not a function'}"
                )
        if isinstance(self.until, Receiver):
            raise DataflowError("a loop ends when a receiver of messages says so: only its step can be a receiver")
        if isinstance(self.at_most, bool) or not isinstance(self.at_most, int) or self.at_most < 1:
            raise DataflowError(f"a loop has at most {self.at_most!r} rounds: write a whole number from 1")

    def __call__(self, *arguments: Any) -> Any:
        return self.step(*arguments)


@dataclass(frozen=True, slots=True)
class Receiver:
    """Function whose last argument is the newest message from `elastream send RUN OPERATOR MESSAGE`.

    All tasks of a batch, and of its replay, have the same.

    Attributes:
        message: The first message, a value of JSON. Later ones are of its kind; None: of any kind.
        sent: The newest one from outside, if any has come.
    """

    function: Callable[..., Any]
    message: Message = None
    sent: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise DataflowError(f"a receiver of messages has {self.function!r}, which is not a function")
        if isinstance(self.function, Loop | Switch | Receiver):
            inner = type(self.function).__name__
            raise DataflowError(f"a receiver of messages has a {inner}: write {inner}(Receiver(function, message), ...)")

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments, self.sent[0] if self.sent else self.message)


@dataclass(frozen=True, slots=True)
class Switch:
    """Function of a record that returns one of the names `ports`."""

    function: Callable[..., Any]
    ports: tuple[str, ...]

    def __call__(self, record: Any) -> Any:
        """Return the port of a record. Raises ValueError for an unknown one."""
        port = self.function(record)
        if port not in self.ports:
            raise ValueError(f"it names the port {port!r} (there are: {', '.join(self.ports)})")
        return port


@dataclass(frozen=True, slots=True)
class Port:
    """Records of a switch that are of port `name`."""

    name: str


def port_name(switch: str, port: str) -> str:
    return f"{switch}_{port}"


def shares_of(switch: str, ports: Sequence[str] | Mapping[str, float]) -> dict[str, float]:
    """Return fractions by port. Raises DataflowError."""
    names = list(ports) if isinstance(ports, Sequence | Mapping) and not isinstance(ports, str) else []
    if not names:
        raise DataflowError(f"switch {switch!r} has the ports {ports!r}: list their names, such as ['high', 'low']")
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise DataflowError(
                f"switch {switch!r} cannot have a port {name!r}: write letters, digits and _, such as 'high'"
            )
        if names.count(name) > 1:
            raise DataflowError(f"switch {switch!r} has two ports {name!r}")
    if not isinstance(ports, Mapping):
        return dict.fromkeys(names, 1.0 / len(names))
    shares = {}
    for name, share in ports.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 <= share <= 1.0:
            raise DataflowError(f"switch {switch!r} sends {share!r} of its records to {name!r}: write a fraction in [0, 1]")
        shares[name] = float(share)
    if abs((total := sum(shares.values())) - 1.0) > 1e-6:
        raise DataflowError(f"the fractions of the ports of switch {switch!r} add up to {total:g}, not to 1")
    return shares


def plain(function: Any) -> Any:
    """Return the user's function in a loop, receiver or switch."""
    match function:
        case Loop(step=inner) | Switch(function=inner) | Receiver(function=inner):
            return plain(inner)
    return function


def receiver_of(function: object) -> Receiver | None:
    """Return the receiver in `function`, or None."""
    match function:
        case Receiver():
            return function
        case Loop(step=inner) | Switch(function=inner):
            return receiver_of(inner)
    return None


def with_message(function: Any, message: Message) -> Any:
    """Return `function` with `message` for its receiver."""
    match function:
        case Receiver():
            return replace(function, sent=(message,))
        case Loop(step=inner):
            return replace(function, step=with_message(inner, message))
        case Switch(function=inner):
            return replace(function, function=with_message(inner, message))
    return function


def misfit(message: Message, first: Message) -> str:
    """Return why `message` cannot follow `first`; empty if it can."""
    if first is None or (_kind(message) == _kind(first) and not isinstance(first, Mapping)):
        return ""
    if not isinstance(message, Mapping) or not isinstance(first, Mapping):
        return f"it is {_kind(message)}, and the operator takes {_kind(first)}, such as {first!r}"
    if other := [name for name in message if name not in first]:
        return f"it has a field {other[0]!r}, and the operator takes {', '.join(first) or 'none'}"
    if missing := [name for name in first if name not in message]:
        return f"its field {missing[0]!r} is missing"
    return next((f"of field {name!r}, {why}" for name in first if (why := misfit(message[name], first[name]))), "")


def _kind(value: Message) -> str:
    kinds = (
        (bool, "a truth"),
        (int | float, "a number"),
        (str, "a text"),
        (list | tuple, "a list"),
        (Mapping, "an object"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")
