"""Seam for features in every round of the loop, such as guards and key tables."""

from collections.abc import Iterable, Iterator, Sequence

from elastream.core.action import Action, SetKeyTable, SwitchAlternate, SwitchEdge, UpdateCode
from elastream.core.alarm import Alarms
from elastream.core.decision import Proposal
from elastream.core.guarding import GUARDS, GuardDecision
from elastream.core.observation import Observation
from elastream.dataflow.key_table import KeyTables
from elastream.errors import ElastreamError
from elastream.recording.code_log import CodeLog


class LoopExtension:
    """Feature in every round; does nothing by default.

    A round calls `observed`, `urgent`, and `proposals` if it plans. Faults go to `alarms` and are never raised.
    """

    def observed(self, observation: Observation, alarms: Alarms) -> Observation:
        return observation

    def urgent(self, observation: Observation) -> bool:
        """Return True if planning cannot wait until due."""
        return False

    def proposals(self, observation: Observation, planned: Sequence[Action], alarms: Alarms) -> Sequence[Proposal]:
        return ()


def required_switches(observation: Observation, planned: Iterable[Action], by: str) -> list[Action]:
    """Return switches away from variants that decisions of `by` forbid and `planned` keeps.

    The allowed target of highest known value wins.
    """
    chosen = {
        action.element
        for action in planned
        if isinstance(action, SwitchAlternate | SwitchEdge) and not action.forbidden(observation.standings)
    }
    switches: list[Action] = []
    for element, decision in observation.standings.items():
        active = observation.composition.running(element)
        if decision.by != by or not decision.allowed or active is None or active in decision.allowed or element in chosen:
            continue
        target = decision.best(active)
        text = decision.texts[target]
        why = f"{decision.refusal(active)}; {target} may run: {text}" if by == GUARDS else text
        kind = SwitchEdge if element in observation.context.graph.choices else SwitchAlternate
        switches.append(kind(element, target, why=why))
    return switches


# Proposer in decision records, and source of alarms.
BY = "key tables"


class KeyTableExtension(LoopExtension):
    def __init__(self, tables: KeyTables) -> None:
        self._tables = tables
        self._named: dict[tuple[str, int], frozenset[str]] = {}

    def proposals(self, observation: Observation, planned: Sequence[Action], alarms: Alarms) -> tuple[Proposal, ...]:
        """Return switches to each operator's newest table.

        A table with a forbidden alternate is refused, and replaced by the operator's alternate if in force.
        """
        try:
            proposals = tuple(
                proposal
                for operator, version in self._tables.newest().items()
                for proposal in self._of(operator, version, observation)
            )
        except ElastreamError as error:
            alarms.sound(BY, f"no new key table is found: {error}", error)
            return ()
        alarms.clear(BY)
        return proposals

    def _of(self, operator: str, newest: int, observation: Observation) -> Iterator[Proposal]:
        decision, in_force = observation.standings.get(operator), observation.composition.tables.get(operator, 0)
        refusal = self._refusal(operator, newest, decision)
        if in_force != newest:
            yield Proposal(SetKeyTable(operator, newest, f"version {newest} of its key table was appended"), BY, refusal)
        if refusal and in_force and (reason := self._refusal(operator, in_force, decision)):
            yield Proposal(SetKeyTable(operator, 0, reason), BY)

    def _refusal(self, operator: str, version: int, decision: GuardDecision | None) -> str:
        if decision is None or not decision.allowed:
            return ""  # without guards all may run; where they allow none, arbitration says so
        if (operator, version) not in self._named:
            self._named[operator, version] = frozenset(self._tables.find(operator, version).rows.values())
        outside = sorted(self._named[operator, version] - set(decision.allowed))
        return f"its guards do not allow {', '.join(outside)}, which the table names" if outside else ""


# Proposer in decision records, and source of alarms.
CODE = "elastream update"


class CodeExtension(LoopExtension):
    """Proposes the newest version of the operators' code in `log` until requested."""

    def __init__(self, log: CodeLog) -> None:
        self._log = log
        self._newest = self._proposed = 0

    def observed(self, observation: Observation, alarms: Alarms) -> Observation:
        try:
            versions = self._log.versions
        except ElastreamError as error:
            alarms.sound(CODE, f"no new code is found: {error}", error)
        else:
            alarms.clear(CODE)
            self._newest = len(versions) - 1
        return observation

    def urgent(self, observation: Observation) -> bool:
        return self._newest > max(self._proposed, observation.composition.code_version)

    def proposals(self, observation: Observation, planned: Sequence[Action], alarms: Alarms) -> tuple[Proposal, ...]:
        now = observation.composition.code_version
        if self._newest <= now:
            return ()
        self._proposed = self._newest  # code that is refused makes no further round urgent
        why = f"version {self._newest} of the code was given"
        return (Proposal(UpdateCode(self._newest, self._log.since(now), why), CODE),)
