"""The thesis's own design of stateful operators (chapter 6), simulated: reducers on a ring of peers.

`make_reducers` builds the plant, `KeySpace` says which keys there are, `ReducerSettings` holds every constant with its
source.
"""

from elastream.simulator.reducers.keys import KeySpace, hashed, two_regimes
from elastream.simulator.reducers.making import make_reducers
from elastream.simulator.reducers.plant import ReducersPlant
from elastream.simulator.reducers.settings import LinkFailure, Protection, ReducerSettings, ZoneFailure

__all__ = [
    "KeySpace",
    "LinkFailure",
    "Protection",
    "ReducerSettings",
    "ReducersPlant",
    "ZoneFailure",
    "hashed",
    "make_reducers",
    "two_regimes",
]
