"""The MAPE loop: monitor, plan, arbitrate, journal, act - on a clock and a plant it is given."""
