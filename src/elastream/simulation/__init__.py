"""The simulated plant: executes a dataflow in simulated time, with the actions and observations of a real engine.

`make_plant` builds one; `Settings` holds every constant with its source. Policies are in `planning`, the control loop in
`control`.
"""

from elastream.simulation.arrivals import Emissions, emissions
from elastream.simulation.calibrate import Calibration, Constant, calibrate
from elastream.simulation.plant import SimulatedPlant, make_plant
from elastream.simulation.replay import Drift, drift_of, figures_of, recorded_plant, replay
from elastream.simulation.result import Result
from elastream.simulation.settings import (
    Background,
    Distribution,
    HostFailure,
    Messaging,
    NetworkLink,
    Service,
    Settings,
    Travel,
)

__all__ = [
    "Background",
    "Calibration",
    "Constant",
    "Distribution",
    "Drift",
    "Emissions",
    "HostFailure",
    "Messaging",
    "NetworkLink",
    "Result",
    "Service",
    "Settings",
    "SimulatedPlant",
    "Travel",
    "calibrate",
    "drift_of",
    "emissions",
    "figures_of",
    "make_plant",
    "recorded_plant",
    "replay",
]
