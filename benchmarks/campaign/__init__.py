"""A campaign of faults: schedules as data, simulated and real worlds for them, and rules for the history of each run."""
