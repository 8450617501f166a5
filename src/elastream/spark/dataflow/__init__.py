"""How a dataflow becomes Spark: fused walks, channels, keyed operators, sources and sinks."""
