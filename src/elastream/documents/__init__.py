"""Reads YAML documents to the model; every error names file, line and field."""
