"""Options that the command line passes to the `run(...)` call of a user's program: input, dry run, recording, observers.

`elastream run FILE` executes the program under these options; without the command line they have their defaults.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastream.clouds.provider import Cloud
from elastream.core.plant import Policy
from elastream.core.scaling import ScalingRules
from elastream.recording.observer import Observer


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run.

    input: replaces the path of the dataflow's only file source. observe_only: plan and record, but apply no action. runs:
    folder in which run directories are created, in place of the program's. record: file of a second copy of the
    recording. limit: time limit of the run, seconds. observers: further observers. before: called with the validated
    graph, the policy, the cloud, the target latency (seconds), the file of guards, the consistency, the key tables and
    the numbers of replicas and state partitions, and the scaling rules, before they are checked and anything is started;
    an exception from it ends the run. policy, cloud, guards (a file), consistency, replicas, state_partitions, retention
    (seconds): used instead of the program's. live: a live view where there is a terminal, else lines. report: file of the
    report, in place of that in the run's folder. resume: folder of the run that goes on. fresh: whether results of an
    earlier run are replaced. program: what the run's folder keeps so that the program can be executed again
    (`recording.manifest`). scaling: rules, `KEY=VALUE` each, in place of the program's.
    """

    input: str | None = None
    observe_only: bool = False
    runs: Path | None = None
    record: Path | None = None
    limit: float | None = None
    observers: Sequence[Observer] = ()
    before: Callable[..., None] | None = None
    policy: Policy | None = None
    cloud: Cloud | None = None
    live: bool = True
    report: Path | None = None
    guards: Path | None = None
    consistency: str | None = None
    resume: Path | None = None
    fresh: bool = False
    program: Mapping[str, Any] = field(default_factory=dict)
    replicas: int | None = None
    retention: float | None = None
    state_partitions: int | None = None
    scaling: Sequence[str] = ()

    def scaled(self, rules: ScalingRules) -> ScalingRules:
        """`rules` with those of the command line; raises InputError for what is no rule."""
        return rules.given(self.scaling)


DEFAULTS = RunOptions()

_current: ContextVar[RunOptions] = ContextVar("elastream_run_options", default=DEFAULTS)


def current_options() -> RunOptions:
    return _current.get()


@contextmanager
def with_options(options: RunOptions) -> Iterator[None]:
    """Set `options` for the code inside the context."""
    token = _current.set(options)
    try:
        yield
    finally:
        _current.reset(token)
