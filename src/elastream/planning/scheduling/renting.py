"""When an alternate of less value has cost as much as the hosts that a better one needs: to rent, or to buy.

An alternate that needs less is there at once and saves hosts for as long as it runs; a host is paid for a whole unit.
Which is cheaper hangs on how long a load lasts, which nobody knows. As one who does not know how often he will ski, a
policy rents until that has cost as much as buying: then it has paid no more than twice the least (Karlin et al.,
"Competitive snoopy caching", 1988).
"""

from collections.abc import Mapping

from elastream.planning.scheduling.assembly import Assembly
from elastream.planning.scheduling.greedy import better, money_of, with_option
from elastream.planning.scheduling.packing import HOUR
from elastream.planning.scheduling.problem import Conditions, Deployment, Problem, value_of

__all__ = ["overdue"]


def overdue(
    problem: Problem, deployment: Deployment, conditions: Conditions, lost: Mapping[str, float], pace: float
) -> tuple[frozenset[int], Mapping[str, float]]:
    """Rows of the operators that are to run their next better option, on hosts leased for it; and what the others have
    lost.

    lost: by operator, value that its option has cost since it runs, in parts of the mean value of the period. pace:
    seconds since that was said. An option is better where its value is worth the cores that it needs in the long run; it
    is bought for an hour.
    """
    assembly, due, after = Assembly(problem, deployment, conditions), set[int](), dict[str, float]()
    for row, name in enumerate(problem.operators):
        option = better(assembly, row) if len(problem.options[row]) > 1 else None
        if option is None:
            continue
        gain = value_of(problem, with_option(assembly.active, row, option)) - value_of(problem, assembly.active)
        hourly = problem.line.sigma * max(0.0, -money_of(assembly, row, option))
        if gain <= hourly * problem.goal.period / HOUR:
            continue
        after[name] = lost.get(name, 0.0) + gain * pace / problem.goal.period
        if after[name] >= hourly:
            due.add(row)
            del after[name]
    return frozenset(due), after
