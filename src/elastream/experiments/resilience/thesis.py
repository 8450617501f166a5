"""Figures that chapter 6 of the thesis prints, beside which ours are shown: what its text and its axes say.

Kumbhare, "Adaptive and resilient stream processing on cloud infrastructure", pp. 121 to 156. The plot printed as Fig.
6.10 is one of chapter 4; of that figure only the text of p. 147 counts.
"""

from collections.abc import Mapping

FIGURES: Mapping[str, Mapping[str, str]] = {
    "peak throughput (Fig. 6.10)": {
        "drop from r = 0 to r = 2": "around 15 % (p. 147)",
        "r = 1 over Storm with Cassandra": "around 2.8x (p. 147); up to 2x (p. 156)",
        "R^2 of a line through r = 1": "scales (almost) linearly",
    },
    "balance (Fig. 6.11(a))": {"seconds until balanced": "about 200: from 500 s to 700 s", "neighbours": "2"},
    "scale-out (Fig. 6.11(b))": {"reaction, s": "1.5 to 3"},
    "moved interval (Fig. 6.11(c))": {"ms": "10 to 500, growing with interval and rate"},
    "checkpoints (Fig. 6.12)": {"part of the state at 2 s": "around 7 %"},
    "recovery (Fig. 6.13(b))": {"ms": "700 to 1,500 (p. 121); 1,200 to 1,500 for 3 to 6 failures (p. 152)"},
    "failures survived (6.6)": {"at best": "n r / (r + 1)"},
}
"""By figure and value, as printed."""
