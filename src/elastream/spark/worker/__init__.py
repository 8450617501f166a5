"""What runs in Python workers: the fused walk over a little graph of operators, its records, its meter."""
