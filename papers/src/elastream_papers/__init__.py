"""Evaluations of the papers that Elastream builds on, one folder each, on one harness."""
