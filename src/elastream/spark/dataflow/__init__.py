"""Compiles a dataflow to Spark: fused walks, durable edges, keyed operators, sources and sinks."""
