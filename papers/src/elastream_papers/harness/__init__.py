"""Shared parts of experiments."""
