"""Guards in the control loop: from signals to decisions, every round."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from elastream.control.extension import LoopExtension, required_switches
from elastream.core.action import Action
from elastream.core.alarm import Alarms
from elastream.core.decision import Proposal
from elastream.core.guarding import GUARDS, GuardDecision
from elastream.core.observation import Observation
from elastream.dataflow.endpoints import SignalSource
from elastream.dataflow.signals import Signals
from elastream.errors import ElastreamError, in_one_line
from elastream.guards.document import GuardDocument, parse_guards
from elastream.guards.evaluator import Evaluator
from elastream.guards.subject import Subject, system_readings
from elastream.recording.guard_log import GuardLog

# Sources of alarms.
VERSIONS_ALARM, EVALUATION_ALARM, SIGNALS_ALARM = "guards", "evaluation of guards", "external signals"


class GuardExtension(LoopExtension):
    """Guards of one run. The caller closes `source`.

    Args:
        about: Subject to check against. None: the plant's graph.
    """

    def __init__(self, versions: GuardLog, source: SignalSource | None = None, about: Subject | None = None) -> None:
        self._about = about
        self._versions = versions
        self._source = source
        self._number = 0
        self._document: GuardDocument | None = None
        self._evaluator: Evaluator | None = None
        self._planned_under: Mapping[str, GuardDecision] = {}

    def observed(self, observation: Observation, alarms: Alarms) -> Observation:
        """Return `observation` with all signals and the guards' decisions.

        An unfit version or a failed evaluation raises an alarm and changes nothing.
        """
        self._load_versions(observation, alarms)
        signals = {**observation.signals, **self._polled(alarms)}
        if self._evaluator is None or self._document is None:
            return replace(observation, signals=signals) if signals else observation
        signals = {**system_readings(observation, self._document.system), **signals}
        try:
            self._evaluator.update(observation.time, signals)
        except Exception as error:
            message = f"the guards failed, their last decisions stay in force: {in_one_line(error)}"
            alarms.sound(EVALUATION_ALARM, message, error)
        else:
            alarms.clear(EVALUATION_ALARM)
        standings = dict(self._evaluator.standings)
        return replace(observation, signals=signals, standings=standings, guards=self._number)

    def urgent(self, observation: Observation) -> bool:
        return observation.standings != self._planned_under and bool(required_switches(observation, (), GUARDS))

    def proposals(self, observation: Observation, planned: Sequence[Action], alarms: Alarms) -> Sequence[Proposal]:
        self._planned_under = observation.standings
        return [Proposal(action, GUARDS) for action in required_switches(observation, planned, GUARDS)]

    def _load_versions(self, observation: Observation, alarms: Alarms) -> None:
        try:
            versions = self._versions.newer()
        except ElastreamError as error:
            alarms.sound(VERSIONS_ALARM, f"{error}; {self._in_force}")
            return
        for version in versions:
            if isinstance(version, str):
                alarms.sound(VERSIONS_ALARM, f"{version}; {self._in_force}")
                continue
            try:
                document = parse_guards(version.text, Path(version.file), self._about or observation.context.graph)
                if self._source is not None:
                    self._source.follow(document.signals)
            except Exception as error:
                message = f"version {version.number} of the guards is refused, {self._in_force}: {in_one_line(error)}"
                alarms.sound(VERSIONS_ALARM, message, None if isinstance(error, ElastreamError) else error)
                continue
            self._evaluator = Evaluator(document.elements, document.signals, self._evaluator)
            self._document, self._number = document, version.number
            alarms.clear(VERSIONS_ALARM)

    @property
    def _in_force(self) -> str:
        return f"version {self._number} stays in force" if self._number else "no guards are in force"

    def _polled(self, alarms: Alarms) -> Signals:
        if self._source is None:
            return {}
        try:
            readings = self._source.newest()
        except Exception as error:
            alarms.sound(
                SIGNALS_ALARM, f"external signals cannot be read, their last values age: {in_one_line(error)}", error
            )
            return {}
        alarms.clear(SIGNALS_ALARM)
        return readings
