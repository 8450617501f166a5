"""The simulated plant: runs a dataflow in simulated time. `make_plant` builds one; `Settings` holds the constants."""

from elastream.simulator.arrivals import Emissions, emissions
from elastream.simulator.calibrate import Calibration, Constant, calibrate
from elastream.simulator.plant import SimulatedPlant, make_plant
from elastream.simulator.replay import Drift, drift_of, figures_of, recorded_plant, replay
from elastream.simulator.settings import Distribution, HostFailure, Messaging, NetworkLink, Service, Settings, Travel
from elastream.simulator.staffing import Result

__all__ = [
    "Calibration", "Constant", "Distribution", "Drift", "Emissions", "HostFailure", "Messaging", "NetworkLink",
    "Result", "Service", "Settings", "SimulatedPlant", "Travel", "calibrate", "drift_of", "emissions", "figures_of",
    "make_plant", "recorded_plant", "replay",
]  # fmt: skip
