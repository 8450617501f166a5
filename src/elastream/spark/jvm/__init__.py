"""All that reaches into Spark's internals, one module a mechanism."""
