"""The thesis's Linear Road dataflow, simulated: eight operators (chapter 4, Figure 4.5, section 4.9).

Figure and text give the alternates of P2 and P7 and some edges; the rest is assumed. `examples/linear_road.py` is the
same on Spark. The unit of cost is fitted to one printed number, the profit 0.67 of BR at 50 reports/s in Table 4.2, which
leaves 15.12 $ for hosts: 21 cores of speed 1. Units of 0.15 to 0.155 give that; the larger one leaves no core idle.
Operators downstream of P2 weigh most, so that the cheapest alternates cost about half.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from elastream.dataflow.endpoints import ArrivalPattern, Simulated
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.loads import constant
from elastream_papers.harness.assumptions import assumed

# P0 to P7 of Figure 4.5
OPERATORS = ("weather", "parse", "congestion", "accidents", "tolls", "assessments", "balances", "travel_times")
# P2, Congestion Estimation: value, cost in units, selectivity (Figure 4.5)
CONGESTION: Mapping[str, tuple[float, float, float]] = {
    "neighbours": (1.0, 1.2, 1.0),
    "trend": (0.8, 0.8, 1.0),
    "sparse": (0.5, 0.8, 0.5),
}
# P7, Travel Time Estimator: value, cost in units, selectivity (Figure 4.5)
TRAVEL_TIMES: Mapping[str, tuple[float, float, float]] = {"recent": (0.6, 0.3, 1.0), "historical": (1.0, 0.5, 1.0)}

# the text (p. 89) has accidents to tolls and travel times, tolls to assessments and balances; the rest is assumed
EDGES = (
    ("updates", "weather"),
    ("positions", "parse"),
    ("weather", "congestion"),
    ("parse", "congestion"),
    ("parse", "accidents"),
    ("congestion", "tolls"),
    ("accidents", "tolls"),
    ("congestion", "travel_times"),
    ("accidents", "travel_times"),
    ("tolls", "assessments"),
    ("tolls", "balances"),
    ("assessments", "notices"),
    ("balances", "accounts"),
    ("travel_times", "answers"),
)

# break-even money an hour at lowest and highest value, for every PER reports/s (p. 90)
LOWEST, HIGHEST, PER = 0.5, 1.0, 10.0


@dataclass(frozen=True)
class LinearRoadAssumptions:
    """Values missing in the thesis. A unit is Figure 4.5's of cost."""

    unit: float = assumed(
        0.155, "core-seconds of speed 1", "fitted to the profit of BR at 50 reports/s, 0.67 (Table 4.2): see above"
    )
    weather: float = assumed(0.1, "units an update", "an update is stored, not calculated with")
    parse: float = assumed(0.1, "units a report", "fifteen numbers are read; the cheapest alternate costs 0.3")
    accidents: float = assumed(0.1, "units a report", "a report is compared with the vehicle's last four")
    tolls: float = assumed(0.3, "units an estimate", "a formula and one lookup, as cheap as the cheapest alternate")
    assessments: float = assumed(0.3, "units a toll", "as the calculation of the toll")
    balances: float = assumed(0.3, "units a toll", "as the calculation of the toll")
    updates: float = assumed(0.01, "updates a report", "the text: low frequency, beside an extremely high one")
    notices: float = assumed(0.1, "notices a report", "accidents are rare, but concern all vehicles near them", most=1.0)
    record: float = assumed(50.0, "bytes", "a line of fifteen numbers: 45 in recorded reports, and its end")

    def alternates(self, rows: Mapping[str, tuple[float, float, float]]) -> tuple[Alternate, ...]:
        """Return alternates by name, from value, units and selectivity."""
        return tuple(
            Alternate(name, value=value, cost=units * self.unit, selectivity=selectivity)
            for name, (value, units, selectivity) in rows.items()
        )


def break_even(rate: float) -> tuple[float, float]:
    """Return hourly break-even costs at the lowest and highest value for a mean of `rate` reports/s (p. 90)."""
    return LOWEST * rate / PER, HIGHEST * rate / PER


def linear_road(assumptions: LinearRoadAssumptions, reports: ArrivalPattern, rate: float) -> Graph:
    """Return Figure 4.5's dataflow.

    reports: load of position reports; rate: its mean (reports/s), which scales the weather updates.
    """
    loads = {"updates": constant(assumptions.updates * rate, reports.seconds), "positions": reports}
    dynamic = {"congestion": CONGESTION, "travel_times": TRAVEL_TIMES}
    fixed = {
        name: {name: (1.0, getattr(assumptions, name), assumptions.notices if name == "accidents" else 1.0)}
        for name in OPERATORS
        if name not in dynamic
    }
    table = {**fixed, **dynamic}
    return Graph(
        "linear_road",
        (
            *(
                Operator(name, Kind.SOURCE, reads=Simulated(load), cores=0.0, record_bytes=assumptions.record)
                for name, load in loads.items()
            ),
            *(
                Operator(name, alternates=assumptions.alternates(table[name]), record_bytes=assumptions.record)
                for name in OPERATORS
            ),
            *(Operator(name, Kind.SINK, cores=0.0) for name in ("notices", "accounts", "answers")),
        ),
        tuple(Edge(source, target) for source, target in EDGES),
    )
