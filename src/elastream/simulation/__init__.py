"""The simulated plant: the same dataflow, actions and observations as on an engine, in simulated time.

`make_plant` builds one; `Settings` holds every constant with its source. What a policy should do is left to `planning`,
and driving the loop to `control`.
"""

from elastream.simulation.arrivals import Emissions, emissions
from elastream.simulation.calibrate import Calibration, Drift, calibrate, drift_of, replay
from elastream.simulation.plant import SimulatedPlant, make_plant
from elastream.simulation.result import Result, drive
from elastream.simulation.settings import Assumption, Distribution, Fault, Link, Messaging, Service, Settings, Travel

__all__ = [
    "Assumption",
    "Calibration",
    "Distribution",
    "Drift",
    "Emissions",
    "Fault",
    "Link",
    "Messaging",
    "Result",
    "Service",
    "Settings",
    "SimulatedPlant",
    "Travel",
    "calibrate",
    "drift_of",
    "drive",
    "emissions",
    "make_plant",
    "replay",
]
