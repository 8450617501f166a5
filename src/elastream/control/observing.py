"""What the control loop sees: what the plant observes, under guards and rules, and what is shown while it cannot."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from elastream.control.guarding import Guarding
from elastream.control.scaling import Scaling
from elastream.core.alarm import Alarms
from elastream.core.frames import Frame
from elastream.core.hosts import Lease
from elastream.core.observation import Observation
from elastream.core.plant import Clock, Plant
from elastream.errors import in_one_line

BLIND_LIMIT = 10
"""Failed observations in a row that raise an alarm: the run goes on as it was planned last."""
BLIND = "observation"


class Observing:
    """Observes `plant`. fault: called with source, sentence and exception of an observation that failed."""

    def __init__(
        self,
        plant: Plant,
        clock: Clock,
        alarms: Alarms,
        guarding: Guarding | None,
        scaling: Scaling,
        fault: Callable[[str, str, BaseException], None],
    ) -> None:
        self._plant, self._clock, self._alarms = plant, clock, alarms
        self._guarding, self._scaling, self._fault = guarding, scaling, fault
        self._failed = 0

    def observe(self, leases: Mapping[str, Lease]) -> tuple[Observation | None, Observation | None]:
        """(what is to be planned on, None where it failed; what observers are shown, None where there is nothing yet).

        leases: as they were seen last, which are shown while nothing can be observed.
        """
        try:
            observation = self._plant.observe()
        except Exception as error:
            self._failed += 1
            self._fault("plant", f"observation failed: {in_one_line(error)}", error)
            if self._failed == BLIND_LIMIT:
                said = (
                    f"{BLIND_LIMIT} observations in a row failed, what runs goes on as planned last: {in_one_line(error)}"
                )
                self._alarms.sound(BLIND, said, error)
            return None, self._unseen(leases) if self._failed >= BLIND_LIMIT else None
        if self._failed:
            self._failed = 0
            self._alarms.clear(BLIND)
        observation = self._scaling.bounded(observation)
        if self._guarding is not None:
            observation = self._guarding.update(observation, self._alarms)
        if standing := self._alarms.standing:
            observation = replace(observation, alarms=(*observation.alarms, *standing))
        return observation, observation

    def _unseen(self, leases: Mapping[str, Lease]) -> Observation:
        """What is shown while nothing can be observed: the leases as they were seen last, and the alarms."""
        context = self._plant.context
        nothing = Frame(tuple(context.graph.by_name))
        return Observation(self._clock.now(), context, nothing, leases=leases, alarms=self._alarms.standing, next_host=1)
