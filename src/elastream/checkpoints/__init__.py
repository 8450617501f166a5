"""Checkpoints of stopped streaming queries, of this package and of others: the width of their state, and its change."""
