"""Evaluations of the papers, one folder each, and shared parts: cases, assumptions, outcomes, pages, comparisons."""
