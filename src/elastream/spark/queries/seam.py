"""The common interface of a plant's queries, compiled from a dataflow or written by the user."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from elastream.model.action import Action, Outcome
from elastream.model.observation import Composition, Frame, MicroBatch
from elastream.model.stages import Layout
from elastream.spark.queries.query import Query
from elastream.spark.telemetry.stage_load import PartitionLoads

__all__ = ["Queries"]


class Queries(Protocol):
    """What a plant runs or watches. `look` fetches what is new and changes nothing; the rest is arithmetic on it.

    `wall` is a time in epoch seconds, `now` one on the clock of the run.
    """

    @property
    def live(self) -> Sequence[Query]:
        """Those that ran when they were last looked for."""
        ...

    @property
    def layout(self) -> Layout:
        """Those as a dataflow; it changes where queries come and go."""
        ...

    @property
    def composition(self) -> Composition:
        """What holds from one of the next batches on."""
        ...

    @property
    def kinds(self) -> frozenset[str]:
        """Names of the actions that `apply` does; it refuses others."""
        ...

    @property
    def scalable(self) -> frozenset[str]:
        """Operators whose parallelism can be changed."""
        ...

    def look(self, now: float, wall: float) -> Sequence[MicroBatch]:
        """Fetch what is new; the batches that were committed since the last look."""
        ...

    def operators(self, wall: float, loads: Mapping[str, PartitionLoads], cores: float, used: float) -> Frame:
        """A row per operator. loads: of stages with state. cores: of usable hosts together; used: how many are busy."""
        ...

    def application(self, wall: float, cost: float) -> Frame:
        """One row: all of them as their users see them."""
        ...

    def apply(self, action: Action) -> Outcome:
        """Switch an alternate, a choice or a parallelism, or say why not."""
        ...

    def finished(self, now: float) -> bool:
        """Whether nothing is left to do; raises ElastreamError where a query of ours has failed."""
        ...

    def lost(self) -> None:
        """Handle the stop of the session; raises ElastreamError if only the run may stop it."""
        ...

    def facts(self) -> Mapping[str, float | str]:
        """Figures of the whole run."""
        ...
