"""Guards in the control loop: signals in, decisions out, every round; new versions come into force between rounds.

They stand between monitor and policy (thesis, 3.3 and 3.5): policies see the allowed sets, the data plane knows
compositions only. Decisions depend on observations and versions alone, so that a recording gives the same ones again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from elastream.control.extension import LoopExtension
from elastream.core.action import Action, SwitchAlternate, SwitchEdge
from elastream.core.alarm import Alarms
from elastream.core.decision import Proposal
from elastream.core.guarding import Standing
from elastream.core.observation import Observation
from elastream.dataflow.endpoints import SignalSource
from elastream.dataflow.signals import Signals
from elastream.errors import ElastreamError, in_one_line
from elastream.guards.document import GuardDocument, parse_guards
from elastream.guards.evaluator import Evaluator
from elastream.guards.subject import Subject, system_readings
from elastream.recording.guard_log import GuardLog

VERSIONS, EVALUATION, SIGNALS = "guards", "evaluation of guards", "external signals"
"""Sources of alarms."""


class Guarding(LoopExtension):
    """The guards of one run.

    Args:
        versions: log of their versions.
        source: of external signals, which follows those that a version names; the caller closes it.
        about: dataflow to check them against; None: the graph of the plant.
    """

    def __init__(self, versions: GuardLog, source: SignalSource | None = None, about: Subject | None = None) -> None:
        self._about = about
        self._versions = versions
        self._source = source
        self._number = 0
        self._document: GuardDocument | None = None
        self._evaluator: Evaluator | None = None
        self._planned_under: Mapping[str, Standing] = {}

    def observed(self, observation: Observation, alarms: Alarms) -> Observation:
        """Return `observation` with all signals and the guards' decisions; new versions come into force first.

        An invalid version changes nothing, and an alarm stands until a valid one comes. If the evaluation fails, the last
        decisions stay in force, so that nothing slips through.
        """
        self._load_versions(observation, alarms)
        signals = {**observation.signals, **self._polled(alarms)}
        if self._evaluator is None or self._document is None:
            return replace(observation, signals=signals) if signals else observation
        signals = {**system_readings(observation, self._document.system), **signals}
        try:
            self._evaluator.update(observation.time, signals)
        except Exception as error:
            problem = f"the guards failed, what they said last stays in force: {in_one_line(error)}"
            alarms.sound(EVALUATION, problem, error)
        else:
            alarms.clear(EVALUATION)
        standings = dict(self._evaluator.standings)
        return replace(observation, signals=signals, standings=standings, guards=self._number)

    def urgent(self, observation: Observation) -> bool:
        """Return True if guards came to forbid what runs since the last planning round."""
        return observation.standings != self._planned_under and bool(required_switches(observation, ()))

    def proposals(self, observation: Observation, planned: Sequence[Action], alarms: Alarms) -> Sequence[Proposal]:
        """Return the switches that the guards require."""
        self._planned_under = observation.standings
        return [Proposal(action, "guards") for action in required_switches(observation, planned)]

    def _load_versions(self, observation: Observation, alarms: Alarms) -> None:
        try:
            versions = self._versions.newer()
        except ElastreamError as error:
            alarms.sound(VERSIONS, f"{error}; {self._in_force}")
            return
        for version in versions:
            if isinstance(version, str):
                alarms.sound(VERSIONS, f"{version}; {self._in_force}")
                continue
            try:
                document = parse_guards(version.text, Path(version.file), self._about or observation.context.graph)
                if self._source is not None:
                    self._source.follow(document.signals)
            except Exception as error:
                problem = f"version {version.number} of the guards is refused, {self._in_force}: {in_one_line(error)}"
                alarms.sound(VERSIONS, problem, None if isinstance(error, ElastreamError) else error)
                continue
            self._evaluator = Evaluator(document.elements, document.signals, self._evaluator)
            self._document, self._number = document, version.number
            alarms.clear(VERSIONS)

    @property
    def _in_force(self) -> str:
        return f"version {self._number} stays in force" if self._number else "no guards are in force"

    def _polled(self, alarms: Alarms) -> Signals:
        if self._source is None:
            return {}
        try:
            readings = self._source.newest()
        except Exception as error:
            alarms.sound(SIGNALS, f"external signals cannot be read, their last values age: {in_one_line(error)}", error)
            return {}
        alarms.clear(SIGNALS)
        return readings


def required_switches(observation: Observation, planned: Iterable[Action]) -> list[Action]:
    """Switches without which what runs would go on outside its allowed set, of elements for which `planned` has none.

    Allowed sets hold whatever the policy is: one that only sizes need not know of them. Of several that are allowed, the
    one of the highest known value.
    """
    chosen = {
        action.element
        for action in planned
        if isinstance(action, SwitchAlternate | SwitchEdge) and not action.forbidden(observation.standings)
    }
    found: list[Action] = []
    for element, standing in observation.standings.items():
        active = observation.composition.running(element)
        if not standing.allowed or active is None or active in standing.allowed or element in chosen:
            continue
        target = standing.best(active)
        why = f"{standing.refusal(active)}; {target} may run: {standing.texts[target]}"
        kind = SwitchEdge if element in observation.context.graph.choices else SwitchAlternate
        found.append(kind(element, target, why=why))
    return found
