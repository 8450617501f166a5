"""All access to Spark's internals, one module per mechanism."""
