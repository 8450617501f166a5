"""Hosts that are processes of this machine: the default provider, and what tests use."""
