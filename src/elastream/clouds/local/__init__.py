"""Hosts that are processes on this machine."""
