"""Where state partitions are, where a plan wants them, and how they get there."""
