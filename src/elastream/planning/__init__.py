"""Policies: pure functions of what was observed. No clock, no I/O, seeded randomness only; one policy a module."""
