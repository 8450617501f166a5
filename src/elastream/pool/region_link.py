"""HTTP client of a region manager: it reports to its arbiter, and receives the current order.

So only the arbiter needs a server, and a lost, late or duplicate message is corrected by the next one.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict
from urllib.parse import quote

from pydantic import TypeAdapter

from elastream.clouds.arbiter_link import ArbiterLink
from elastream.errors import EnvironmentProblem, InputError
from elastream.pool.region import RegionNode
from elastream.pool.state_log import steady
from elastream.recording.lines import JournalProblem
from elastream.sharing.messages import RegionOrder, RegionReport

LOG = logging.getLogger("elastream.managers")
FORM: TypeAdapter[RegionOrder] = TypeAdapter(RegionOrder)


class RegionLink(ArbiterLink):
    """A region's connection to its arbiter."""

    called = "arbiter"
    mistaken = InputError
    refusals = {409: InputError}  # noqa: RUF012 - a constant

    def report(self, report: RegionReport) -> RegionOrder:
        """Send a report; returns the current order.

        Raises EnvironmentProblem where no answer comes in time, and InputError where the arbiter refuses, with its reason.
        """
        return self.ask(FORM, "PUT", f"/regions/{quote(report.region, safe='')}", asdict(report))


def follow(
    node: RegionNode,
    link: RegionLink,
    period: float,
    *,
    stopped: Callable[[float], bool],
    clock: Callable[[], float] | None = None,
) -> None:
    """Run a region manager: report, take the order, do it, wait, until `stopped(seconds to wait)` says so.

    While the arbiter does not answer, the region continues with its last grants, and logs that once. A refusal of the
    first report ends it (InputError): the configuration is wrong. Later refusals are warnings. A journal that cannot be
    written ends it (JournalProblem).
    """
    silent, met, name, clock = "", False, node.state.region.name, clock or steady()
    while True:
        try:
            order = link.report(node.report(clock()))
            node.hear(order, clock())
            for sentence in _refusals(order):
                LOG.info("%s", sentence)
            if order.term and (strays := node.strays()):
                LOG.warning("hosts leased without an order: %s", ", ".join(strays))
            if silent:
                LOG.warning("the arbiter at %s answers again", link.url)
            silent, met = "", True
        except JournalProblem:
            raise
        except EnvironmentProblem as problem:
            if not silent:
                LOG.warning("%s; region %s goes on with its last grants", problem, name)
            silent = str(problem)
        except InputError as problem:
            if not met:
                raise
            LOG.warning("%s; region %s goes on with its last grants", problem, name)
        for sentence in node.act():
            LOG.warning("%s; it is retried", sentence)
        if stopped(period):
            return


def _refusals(order: RegionOrder) -> list[str]:
    """A sentence for each refused request of the region, with the manager that refused."""
    said = [f"no more hosts in {order.region}: infrastructure manager: {order.refused}"] if order.refused else []
    return said + [f"{host} stays: {manager}: {why}" for host, manager, why in order.kept]
