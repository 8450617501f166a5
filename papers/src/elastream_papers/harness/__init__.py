"""Shared parts of experiments: cases, assumptions, statistics, pages and verdicts."""
