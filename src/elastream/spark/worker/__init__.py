"""Code that runs in Spark's Python workers: chained operators, their records and their meter."""
