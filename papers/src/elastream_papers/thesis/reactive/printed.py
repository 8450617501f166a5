"""Algorithm 4 of the thesis as printed: nothing that the product's `ce` adds.

The printed errors that would stop it are mended as on the page: a removal below the goal is undone, and the running
alternate does not compete, as in the author's program (usc-cloud/IaaSSimulator).
"""

from dataclasses import dataclass
from typing import ClassVar

from elastream.policies.value_cost.greedy import deployed, ranked, with_successors
from elastream.policies.value_cost.policy import Centralised, SearchRequest, SearchResult, search_result
from elastream.policies.value_cost.steps import Assembly, allocate, needs_of, repacked, shed, shut_down, vacated
from elastream.units import ROUNDING


@dataclass(frozen=True)
class PrintedCentralised(Centralised):
    """CE with Algorithm 4's lines alone."""

    name: ClassVar[str] = "ce as printed"

    def search(self, request: SearchRequest) -> SearchResult:
        """Return the plan of the stages that are due."""
        problem, conditions, now = request.situation.problem, request.situation.conditions, request.situation.deployment
        if not request.round:
            return search_result(request, deployed(problem, conditions, now))
        goal, assembly = problem.goal, Assembly(problem, now, conditions)
        if request.alternates:
            _redeploy_alternates(assembly)
        if request.resources:
            reached = assembly.reached(assembly.limits())
            if reached <= goal.lowest + ROUNDING:
                allocate(assembly, goal.throughput)
                assembly = repacked(assembly, goal.throughput)
            elif reached >= goal.throughput + goal.tolerance - ROUNDING:
                assembly = shed(assembly, goal.throughput)
                ending = [row for row, host in enumerate(assembly.hosts) if host.name in request.due]
                assembly = vacated(assembly, goal.throughput, ending)
            assembly = shut_down(assembly)
        return search_result(request, assembly.deployment())


def _redeploy_alternates(assembly: Assembly) -> None:
    """Switch each operator to its first feasible alternate by value per cost that its cores carry (lines 2 to 24)."""
    problem, goal = assembly.problem, assembly.problem.goal
    flows = assembly.flows(assembly.limits())
    reached = float(flows.application.mean())
    lacks, spares = reached <= goal.lowest + ROUNDING, reached >= goal.throughput + goal.tolerance - ROUNDING
    needs, cores = needs_of(assembly, flows), assembly.capacity.mean(axis=0)
    for row, options in enumerate(problem.options):
        active = assembly.active[row]
        own = options[active].cost
        for option in ranked(problem, row, with_successors(problem, assembly.active)[row]):
            cost = options[option].cost
            feasible = (lacks and cost <= own) or (spares and cost >= own)
            if option != active and feasible and own > 0 and needs[row] * cost / own < cores[row]:
                assembly.switch(row, option)
                break
