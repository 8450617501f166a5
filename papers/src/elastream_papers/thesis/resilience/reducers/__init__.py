from elastream_papers.thesis.resilience.reducers.keys import KeySpace, hashed, two_regimes
from elastream_papers.thesis.resilience.reducers.making import make_reducers
from elastream_papers.thesis.resilience.reducers.plant import ReducersPlant
from elastream_papers.thesis.resilience.reducers.settings import LinkFailure, Protection, ReducerSettings, ZoneFailure

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
