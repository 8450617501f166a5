"""Fewer points of long curves: a run of weeks is drawn with as many as a screen can show, its peaks kept."""

import numpy as np

from elastream.core.frames import Floats


def thinned(times: Floats, values: Floats, most: int) -> tuple[Floats, Floats]:
    """At most `most` points (>= 4) of a curve: of each section its lowest and its highest, in the order in which they come.

    times, values: shape (points,), the first and the last of which are kept. A section of which nothing is known is one
    unknown point; one of which a part is unknown shows what is known.
    """
    if len(values) <= most:
        return times, values
    sections = np.array_split(np.arange(1, len(values) - 1), (most - 2) // 2)
    chosen = [0]
    for section in sections:
        here = values[section]
        if np.isnan(here).all():
            chosen.append(int(section[0]))
        else:
            chosen += sorted({int(section[np.nanargmin(here)]), int(section[np.nanargmax(here)])})
    kept = [*chosen, len(values) - 1]
    return times[kept], values[kept]
