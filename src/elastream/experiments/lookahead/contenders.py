"""Policies of chapter 5 by name, with who tells them what will be: the oracle of a run, perfect or not, or a real
forecaster."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from elastream.core.plant import Policy
from elastream.core.prospect import prepared
from elastream.experiments.deployed import Site
from elastream.experiments.ec2 import RUN
from elastream.experiments.prospects import prospect_of
from elastream.experiments.reactive.algorithms import policy_of
from elastream.simulator import SimulatedPlant

FORECASTERS: Mapping[str, Mapping[str, Any]] = {"method chosen by back-test": {"forecast": "real"}}
"""Real forecasters, by what tables call them, and the parameters that choose them."""
IN_TURNS, INTERVAL = "caf, stages in turns", "plasticc, interval"
"""Readings shown beside: CAF whose alternates and hosts are not planned in the same round (p. 84, which gives no numbers:
every other round each), and PLAStiCC that holds the mean of the interval instead of each step."""
READINGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    IN_TURNS: ("caf", {"alternates": 2, "resources": 2}),
    INTERVAL: ("plasticc", {"hold": "interval"}),
}
"""Name of the policy, and parameters, of each reading."""
UNDONE = re.compile(r"so far ([\d,]+) planned changes? retracted, ([\d,]+) enacted")
"""How a policy says how many planned changes it took back, and how many enacted ones it undid."""


def contender(policy: str, site: Site, plant: SimulatedPlant, horizon: float, by: str, error: float, bias: float) -> Policy:
    """The policy called so, looking `horizon` seconds ahead; what only an oracle knows is given to it."""
    name, more = READINGS.get(policy, (policy, {}))
    own: dict[str, Any] = {"horizon": horizon, **more}
    own |= {"forecast": "oracle", "error": error, "bias": bias, "seed": site.seed} if by == "oracle" else FORECASTERS[by]
    return prepared(
        policy_of(name, site.goal, **own),
        prospect_of(plant.context.layout, site.types, site.loads, site.settings, seconds=RUN),
    )


def undone(remarks: Iterable[str]) -> tuple[float, float]:
    """(planned changes retracted, enacted ones reversed) by the end of a run, by what the policy remarked; 0 if nothing."""
    said = [found for each in remarks if (found := UNDONE.search(each))]
    if not said:
        return 0.0, 0.0
    retracted, undid = (float(number.replace(",", "")) for number in said[-1].groups())
    return retracted, undid
