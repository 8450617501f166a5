"""Checkpoints of stopped streaming queries: the width of their state, and its change."""
