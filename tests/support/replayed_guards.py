"""Guards of a recorded run, evaluated again from its signals."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from elastream.core.guarding import GuardDecision
from elastream.errors import ElastreamError
from elastream.guards.document import parse_guards
from elastream.guards.evaluator import Evaluator
from elastream.guards.subject import Subject
from elastream.recording.guard_log import GuardVersion
from elastream.recording.recorder import Recording


def standings_again(
    recording: Recording, versions: Sequence[GuardVersion], about: Subject
) -> Iterator[tuple[float, Mapping[str, GuardDecision]]]:
    """Yield time and decisions of each recorded observation, evaluated anew."""
    by_number = {version.number: version for version in versions}
    evaluator: Evaluator | None = None
    last = 0
    for time, number, signals in recording.signal_rounds():
        for each in range(last + 1, number + 1):  # those between two rounds were in force, too, and hand their memory on
            try:
                version = by_number[each]
                document = parse_guards(version.text, Path(version.file), about)
                evaluator = Evaluator(document.elements, document.signals, evaluator)
            except (KeyError, ElastreamError):
                if each == number:
                    raise
        last = number
        if evaluator is not None:
            evaluator.update(time, signals)
        yield time, {} if evaluator is None else dict(evaluator.standings)
