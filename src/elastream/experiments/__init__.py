"""Each paper's evaluation, one module a paper."""
