"""Arrival patterns, recorded traces and infrastructure-variability traces: what a run is exposed to."""
