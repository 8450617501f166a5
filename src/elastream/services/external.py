"""External signals where nothing is polled: before a run, and in a simulation, whose time outruns what is outside."""

from collections.abc import Callable, Iterable
from contextlib import closing

from elastream.documents.guards import GuardDocument
from elastream.model.errors import ElastreamError, InputError
from elastream.model.signals import Signal, SignalReading, Signals, SignalValue
from elastream.services.pollers import READERS, source_of, value_of

__all__ = ["ReadOnce", "pollable"]


def pollable(document: GuardDocument) -> GuardDocument:
    """`document`; raises ElastreamError where a signal of it comes from where nothing can be polled."""
    for signal in document.signals:
        if signal.feed is not None:
            source_of(signal.name, signal.feed)
    return document


class ReadOnce:
    """External signals that are read when they are first followed, and stay as they were then. now: time of the run."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._values: dict[str, SignalValue | None] = {}

    def follow(self, signals: Iterable[Signal]) -> None:
        """Read those that were not read yet. Raises InputError for a place that does not answer, or with another value."""
        for signal in signals:
            if (feed := signal.feed) is None or signal.name in self._values:
                continue
            source = source_of(signal.name, feed)
            try:
                with closing(READERS[source.kind](source)) as reader:
                    said = reader.poll()
            except (ElastreamError, OSError) as error:
                raise InputError(f"signal {signal.name!r}: {source} {error}") from None
            value, problem = (None, "") if said is None else value_of(said[0], signal.kind, feed.field)
            if problem:
                raise InputError(f"signal {signal.name!r}: {source}: {problem}")
            self._values[signal.name] = value

    def newest(self) -> Signals:
        """What was read, as if it were so now."""
        return {name: SignalReading(value, self._now()) for name, value in self._values.items()}

    def close(self) -> None:
        """Nothing is held."""
