"""Former place of `elastream.loads`; it goes with 0.3."""
