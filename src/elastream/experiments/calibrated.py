"""The simulator calibrated with a recording: which ones serve for that, and their dataflow as the simulator takes it.

How constants are estimated is `simulation.calibrate`.
"""

from elastream.model.errors import ElastreamError, InputError
from elastream.model.graph import Alternate, Delivery, Edge, Graph, Kind, Operator
from elastream.model.stages import Layout, lay_out
from elastream.recording.recorder import Recording
from elastream.simulation import Calibration, calibrate

__all__ = ["calibration_of"]


def calibration_of(recording: Recording, place: str) -> tuple[Calibration, Layout]:
    """The constants that a recorded run on Spark gives, and its dataflow as the simulator takes it.

    Raises InputError, naming `place`, for a run that the simulator cannot be calibrated with: simulated itself, without
    micro-batches, too short, or of several queries.
    """
    header = recording.header
    if header.plant != "spark":
        raise InputError(f"{place} is of a {header.plant} run: the simulator is calibrated with runs on Spark")
    if not recording.batches:
        raise InputError(f"{place} tells of no micro-batch: nothing can be calibrated with it")
    layout = lay_out(_graph(recording, place))
    seconds = header.environment.get("batch seconds")
    try:
        found = calibrate(
            recording, layout, recording.host_types, batch_seconds=None if seconds is None else float(seconds)
        )
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    return found, layout


def _graph(recording: Recording, place: str) -> Graph:
    """The dataflow as the header tells of it: what operators are and how they are joined, without their functions."""
    header = recording.header
    try:
        operators = tuple(
            Operator(
                name=each["name"],
                kind=Kind(each["kind"]),
                alternates=tuple(Alternate(name) for name in each["alternates"]),
                key=("key",) if each["kind"] == Kind.KEYED else (),
                max_duration=each["max_duration"],
                cores=each["cores"],
                memory=each["memory"],
                waits=each["waits"],
            )
            for each in header.operators
        )
        edges = tuple(
            Edge(each["source"], each["target"], Delivery(each["delivery"]), each["durable"], each["choice"])
            for each in header.edges
        )
        return Graph(header.flow, operators, edges)
    except (KeyError, TypeError, ValueError, ElastreamError) as error:
        raise InputError(f"{place} does not tell of a whole dataflow: {error}") from None
