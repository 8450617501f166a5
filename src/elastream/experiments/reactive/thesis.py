"""Figures that chapter 4 of the thesis prints, beside which ours are shown: Table 4.2, and what the text says of its
figures.

Kumbhare, "Adaptive and resilient stream processing on cloud infrastructure", pp. 90 to 95.
"""

from collections.abc import Mapping

NAMES: Mapping[str, str] = {"exact": "BR", "genetic": "GA", "sh": "SH", "ce": "CE"}
"""The thesis's names. Its brute force is the exact model here, which proves what it finds or says how far off it may be."""
TABLE: Mapping[str, tuple[float, float, float, float, float]] = {
    "exact": (0.67, 0.80, 0.68, 0.59, 0.44),
    "genetic": (0.65, 0.79, 0.67, 0.48, 0.37),
    "sh": (0.45, 0.81, 0.60, 0.40, 0.29),
    "ce": (0.58, 0.81, 0.66, 0.42, 0.31),
}
"""Table 4.2, static at 50 messages/s: profit, and relative throughput without variability, with that of the hosts, of the
rates, and of both."""
ADAPTED: Mapping[str, float] = {"genetic": 0.34, "ce": 0.29}
"""p. 93: profit at 50 messages/s, adapted, with both."""
PLANNING_SECONDS: Mapping[tuple[str, int], float] = {("exact", 50): 10_000, ("genetic", 8000): 1_000, ("ce", 8000): 2.5,
    ("sh", 8000): 2.5}  # fmt: skip
"""p. 93, from Fig. 4.7(a): the first two are exceeded."""
