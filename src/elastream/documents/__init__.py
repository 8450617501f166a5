"""YAML to the model: every error names file, line and field."""
