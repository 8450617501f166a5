"""Policies, one module each: from an observation to a plan."""
