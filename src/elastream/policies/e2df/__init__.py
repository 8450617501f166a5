"""E2DF's managers: operators and applications scale instances, regions scale hosts.

From "A multi-level elasticity framework for distributed data stream processing" (Nardelli, Russo Russo, Cardellini and
Lo Presti, 2018), sections 3 and 4. `policy` runs all managers in one process, `elastream.pool` in several.
"""
