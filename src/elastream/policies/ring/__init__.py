"""Ring."""
