"""Calibration of the simulator with a recorded run.

`simulator.calibrate` estimates the constants.
"""

from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Delivery, Edge, Kind, Operator
from elastream.dataflow.stages import Layout, lay_out
from elastream.errors import ElastreamError, InputError
from elastream.recording.recorder import Recording
from elastream.simulator import Calibration, calibrate


def calibration_of(recording: Recording, place: str) -> tuple[Calibration, Layout]:
    """Return the calibration by a run on Spark, and its dataflow.

    Raises:
        InputError: Simulated run, no micro-batches, too short, or several queries.
    """
    header = recording.header
    if header.plant != "spark":
        raise InputError(f"{place} is a {header.plant} run: calibration needs a run on Spark")
    if not recording.batches:
        raise InputError(f"{place} has no micro-batches: calibration needs them")
    layout = lay_out(_graph(recording, place))
    seconds = header.environment.get("batch seconds")
    try:
        calibration = calibrate(
            recording, layout, recording.host_types, batch_seconds=None if seconds is None else float(seconds)
        )
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    return calibration, layout


def _graph(recording: Recording, place: str) -> Graph:
    header = recording.header
    try:
        operators = tuple(
            Operator(
                **{
                    **{name: value for name, value in each.items() if name != "values"},
                    "kind": Kind(each["kind"]),
                    "alternates": tuple(Alternate(name) for name in each["alternates"]),
                    "selects": (selects := tuple(each.get("selects", ()))),
                    "key": selects or ("key",) if each["kind"] == Kind.KEYED else (),
                }
            )
            for each in header.operators
        )
        edges = tuple(Edge(**{**each, "delivery": Delivery(each["delivery"])}) for each in header.edges)
        return Graph(header.flow, operators, edges)
    except (KeyError, TypeError, ValueError, ElastreamError) as error:
        raise InputError(f"{place} does not describe a valid dataflow: {error}") from None
