"""Value against cost: what a plan of alternates, hosts and instances is worth, and how to find a good one.

`problem` is what is asked and what a plan comes to, `reading` makes it from an observation, and `enacting` makes actions
from a plan; the others search. Nothing here knows an engine.
"""
