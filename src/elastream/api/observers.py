"""Observers that `Autopilot` and `run` add to the user's own: Autopilot's log, and events for the cluster manager."""

import logging
from collections.abc import Hashable

from pyspark.sql import SparkSession

from elastream.core.action import Action, HostAction, MoveTask, Outcome, Status
from elastream.core.decision import Decision
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.wording import gist, quantities
from elastream.dataflow.operators import Kind
from elastream.observability.events import EventLog
from elastream.recording.observer import Ending, Header, Observer
from elastream.spark.attach import AttachedPlant
from elastream.spark.jvm.cluster_manager import event_sink
from elastream.units import format_duration

log = logging.getLogger("elastream.autopilot")


def cluster_observers(spark: SparkSession) -> list[Observer]:
    """Return the observer that sends events to the cluster manager of `spark`; none if it takes no events."""
    sink = event_sink(spark)
    return [] if sink is None else [EventLog(sinks=[sink], logged=False)]


class AutopilotLog:
    """An observer that logs observations, actions and refusals, each once while it lasts."""

    def __init__(self, plant: AttachedPlant, period: float, observe_only: bool) -> None:
        self._plant, self._period, self._observe_only = plant, period, observe_only
        self._watched: tuple[str, ...] | None = None
        self._last: dict[str, str] = {}
        self._lacked: set[Hashable] = set()
        self._logged: set[tuple[Action, Status]] = set()

    def started(self, header: Header) -> None:
        log.info("autopilot started: one observation every %s", format_duration(self._period))

    def observed(self, observation: Observation) -> None:
        graph = observation.context.graph
        if graph.operators and graph.order != self._watched:
            self._watched = graph.order
            queries, stages = ([o.name for o in graph.operators if o.kind is kind] for kind in (Kind.SOURCE, Kind.KEYED))
            log.info("autopilot watches %s; stages with state: %s", ", ".join(queries), ", ".join(stages) or "none yet")
        for host, lease in observation.leases.items():
            tasks = observation.hosts.value(host, Metric.TASKS)
            does = "would move" if self._observe_only else "moves"
            leaves = f"autopilot {does} {tasks:.0f} partitions off {self._plant.describe(host)}, which is leaving"
            self._once(host, leaves if lease.state is HostState.DRAINING and tasks > 0 else "", again=False)
        busy = self._plant.look_seconds > self._period
        slow = f"the driver took {self._plant.look_seconds:.1f} s to answer: autopilot observes less often"
        self._once("busy", slow if busy else "")

    def decided(self, decision: Decision) -> None:
        if decision.actual:
            return
        for outcome in decision.outcomes:
            self._log(outcome)
        self._logged = {(outcome.action, outcome.status) for outcome in decision.outcomes}
        would = [p.action for p in decision.proposals if p.refused == "observe only"]
        self._once("would", "; ".join(f"would {action.describe()} ({action.why})" for action in would))
        self._once("note", decision.note)
        for each in decision.lasting:
            if each.key not in self._lacked:
                log.warning("autopilot %s", each)
        self._lacked = {each.key for each in decision.lasting}
        log.debug("round %d: observed %s", decision.round, quantities(decision.seen))

    def ended(self, ending: Ending) -> None:
        if ending.status == "failed":
            log.error("autopilot stopped: %s", ending.reason)
        else:
            log.info("autopilot stopped: %s", ending.reason or "all watched queries ended")

    def _log(self, outcome: Outcome) -> None:
        if (outcome.action, outcome.status) in self._logged:
            return
        action = outcome.action
        text = action.describe()
        if isinstance(action, HostAction | MoveTask) and (host := self._plant.describe(action.host)) != action.host:
            text = f"{text}, which is {host}"
        if outcome.succeeded:
            log.info("%s (%s)", text, outcome.action.why)
        else:
            log.warning("%s: %s, %s", text, outcome.status, outcome.reason)

    def _once(self, subject: str, text: str, *, again: bool = True) -> None:
        """Log `text` unless the last text about `subject` said the same; without `again`, unless there was one."""
        last = self._last.get(subject, "")
        if text and (gist(last) != gist(text) if again else not last):
            log.log(logging.WARNING if subject == "busy" else logging.INFO, "%s", text)
        self._last[subject] = text
