"""Elastic_allocator."""
