"""A campaign of faults: schedules as data, worlds that they happen in, a history of each run, and what must hold of it."""
