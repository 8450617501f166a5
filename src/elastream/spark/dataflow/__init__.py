"""Compiles a dataflow to Spark: chained operators, durable edges, keyed operators, sources and sinks."""
