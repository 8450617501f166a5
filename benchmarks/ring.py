"""Ring lookup: the host of each of 10^6 keys, over a plain modulo; rings of 4 to 1,024 hosts.

Also the CPU time of a round of policy `ring` for 1,000 state partitions on 100 hosts.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from _common import Report, Sides, main, progress

from elastream.core.ring import Ring
from elastream.policies.ring.balance import Arc, even_cut

KEYS, HOSTS = 1_000_000, (4, 12, 128, 1024)
PARTITIONS, NEIGHBOURS = 1_000, 10
BAR = 3.0


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def lookup(hosts: int, rounds: int) -> Sides:
    random = np.random.default_rng(hosts)
    ring = Ring({f"h{number}": token for number, token in enumerate(random.random(hosts).tolist())})
    points, whole = random.random(KEYS), random.integers(0, 2**62, KEYS)
    ring.owners(points)
    sides = [(seconds(lambda: ring.owners(points)), seconds(lambda: whole % hosts)) for _ in range(rounds)]
    return Sides(tuple(a for a, _ in sides), tuple(b for _, b in sides))


def cut_seconds(rounds: int) -> float:
    random = np.random.default_rng(1)
    arc = Arc(
        tuple(f"h{number}" for number in range(NEIGHBOURS)), 0, PARTITIONS, random.gamma(1.0, 0.01, PARTITIONS),
        (PARTITIONS // NEIGHBOURS,) * NEIGHBOURS, np.zeros(NEIGHBOURS), np.ones(NEIGHBOURS),
    )  # fmt: skip
    return statistics.median(seconds(lambda: even_cut(arc)) for _ in range(rounds))


def measure(arguments: argparse.Namespace) -> Report:
    report = Report()
    rounds = 7 if arguments.quick else 21
    for hosts in HOSTS:
        sides = lookup(hosts, rounds)
        report.figures[f"{hosts} hosts"] = sides.figures("ring, s", "modulo, s")
        report.median_at_most(f"{KEYS:,} keys on {hosts:,} hosts, ring over modulo", sides.ratios, BAR)
        progress(f"{hosts:,} hosts: {sides.ratio:.2f} times a modulo")
    report.figures[f"even cut of {PARTITIONS:,} partitions among {NEIGHBOURS} hosts, s"] = cut_seconds(rounds)
    return report


if __name__ == "__main__":
    main("ring", __doc__, measure)
