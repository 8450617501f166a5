"""Load balancing of operators with state by tokens on a ring of hosts."""
