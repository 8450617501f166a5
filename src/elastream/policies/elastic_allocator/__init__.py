"""Elastic Allocator, a placement policy by needs of several resources (SOSE, 2014)."""
