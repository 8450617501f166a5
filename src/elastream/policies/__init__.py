"""Planning: policies, their algorithms, and managers; pure functions without clock or I/O, seeded randomness only."""
