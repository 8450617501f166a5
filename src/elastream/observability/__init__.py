"""Metrics, events and traces of runs for other systems."""
