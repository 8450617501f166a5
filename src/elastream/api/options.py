"""How a run is told what its program did not say: input, dry run, where to record, who looks on.

`elastream run FILE` executes the user's program, and the `run(...)` inside it reads these. Without the command line they
have their defaults, and the program alone decides.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from elastream.clouds.provider import Cloud
from elastream.model.plant import Policy
from elastream.recording.observer import Observer

__all__ = ["RunOptions", "current_options", "with_options"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """input: replaces the path of the dataflow's one file source. observe_only: decide and record, do nothing. runs: the
    folder that run directories are made in. record: a further copy of the recording. limit: seconds after which the run is
    ended although its load is not. observers: who is told of every observation and decision. before: called with the
    checked graph, the policy, the cloud and the target latency (seconds) just before anything is started; what it raises
    ends the run there. policy, cloud: replace the program's.
    """

    input: str | None = None
    observe_only: bool = False
    runs: Path = Path("runs")
    record: Path | None = None
    limit: float | None = None
    observers: Sequence[Observer] = ()
    before: Callable[..., None] | None = None
    policy: Policy | None = None
    cloud: Cloud | None = None


DEFAULTS = RunOptions()

_current: ContextVar[RunOptions] = ContextVar("elastream_run_options", default=DEFAULTS)


def current_options() -> RunOptions:
    """Options in force here."""
    return _current.get()


@contextmanager
def with_options(options: RunOptions) -> Iterator[None]:
    """Run what is inside under `options`."""
    token = _current.set(options)
    try:
        yield
    finally:
        _current.reset(token)
