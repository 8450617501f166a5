"""Requests of people in each round: bounds of the number of hosts, hosts to drain, and state partitions."""

import time
from collections.abc import Sequence
from dataclasses import replace

from elastream.control.extension import LoopExtension
from elastream.core.action import Action, DrainHost, ReleaseHost, Repartition
from elastream.core.alarm import Alarms
from elastream.core.decision import Proposal
from elastream.core.hosts import HostState
from elastream.core.observation import Context, Observation
from elastream.core.wording import counted
from elastream.recording.directory import RunDirectory
from elastream.recording.request_log import Request, RequestLog

# Proposer in decision records and in the journal.
BY = "page"
# Seconds for which a refused drain is proposed again.
PATIENCE_S = 60.0
# Seconds for which a repartition waits for the first batch of a driver, which tells the number of partitions.
FIRST_BATCH_S = 60.0


class RequestExtension(LoopExtension):
    """Applies requests to the run of `directory`. Requests to an earlier driver do not count."""

    def __init__(self, directory: RunDirectory) -> None:
        self._log = RequestLog(directory.requests)
        self._since = directory.lock.stat().st_mtime if directory.lock.exists() else time.time()
        self._bounds: Request | None = None
        self._drains: dict[str, float] = {}
        self._repartitions: list[Proposal] = []
        self._refuse_at = 0.0
        self._contexts: tuple[Context, Context] | None = None
        self._news = False

    def observed(self, observation: Observation, alarms: Alarms) -> Observation:
        for request in self._log.newer():
            if request.time < self._since:
                continue
            self._news = True
            if request.action == "bounds":
                self._bounds, self._contexts = request, None
            elif request.action == "drain":
                self._drains[request.host] = observation.time + PATIENCE_S
            elif request.action == "repartition":
                action = Repartition(request.partitions, f"requested by {request.by}", request.time)
                self._repartitions = [Proposal(action, request.by)]  # an earlier one was withdrawn
                self._refuse_at = observation.time + FIRST_BATCH_S
        context = observation.context
        if self._bounds is None:
            return observation
        if self._contexts is None or self._contexts[0] is not context:
            most = min(context.max_hosts, self._bounds.max_hosts or context.max_hosts)
            least = min(most, self._bounds.min_hosts or context.min_hosts)
            self._contexts = context, replace(context, min_hosts=least, max_hosts=most)
        return replace(observation, context=self._contexts[1])

    def urgent(self, observation: Observation) -> bool:
        """Return True in the round that reads a request."""
        news, self._news = self._news, False
        return news

    def proposals(self, observation: Observation, planned: Sequence[Action], alarms: Alarms) -> Sequence[Proposal]:
        """Return drains until in force, at most for `PATIENCE_S`, those of hosts above a bound, and a new repartition."""
        leases, now = observation.leases, observation.time
        running = [host for host, lease in leases.items() if lease.state is HostState.RUNNING]
        self._drains = {host: until for host, until in self._drains.items() if host in running and now < until}
        drains = [DrainHost(host, why="requested on the page") for host in self._drains]
        if self._bounds is not None:
            most = observation.context.max_hosts
            leaving = {action.host for action in (*planned, *drains) if isinstance(action, DrainHost | ReleaseHost)}
            surplus = len(running) + len(observation.coming) - len(leaving) - most
            newest = [host for host in sorted(running, key=lambda host: -leases[host].since) if host not in leaving]
            why = f"at most {counted(most, 'host')}: requested on the page"
            drains += [DrainHost(host, why=why) for host in newest[: max(0, surplus)]]
        repartitions: list[Proposal] = []
        if observation.context.partitions:  # known with the first batch
            repartitions, self._repartitions = self._repartitions, []
        elif now >= self._refuse_at:
            refused = "no batch has ended since the driver started"
            repartitions = [replace(each, refused=refused) for each in self._repartitions]
            self._repartitions = []
        return [*(Proposal(drain, BY) for drain in drains), *repartitions]
