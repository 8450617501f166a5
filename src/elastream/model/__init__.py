"""Former place of `elastream.core`; it goes with 0.3."""
