"""Code that runs in Spark's Python workers: fused operator graphs, their records, and their meter."""
