"""Experiment `policies`: the product's policies and their rivals on loads without notice, against the project's bars."""
