"""The runs that `drift.py` records: three dataflows and a job under Autopilot, which differ in load, hosts and policy.

    python benchmarks/_drift_runs.py NAME FOLDER      # records one run in this process, into FOLDER

Runs of one `dataflow` have the same layout, so that a simulator calibrated with one can be asked for another. They are
short: the simulator's constants are about batches and hosts, of which a minute has tens.
"""

import hashlib
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from _visitors import access_log, visits

from elastream import Dataflow, HostType, Local, run
from elastream.core.hosts import Billing
from elastream.core.plant import Policy
from elastream.dataflow.endpoints import ArrivalPattern, parquet, records, text_files
from elastream.loads import constant, ramp, sine, steps
from elastream.policies import Static, Threshold
from elastream.policies.by_load import ByLoad

THIRD = HostType("third", cores=0.35, slots=1, memory=1000.0, price=1.0, billing=Billing(10.0), start=10.0, stop=3.0)
"""Four of them use 1.4 cores of two: the driver keeps its share."""
HALF = HostType("half", cores=0.5, slots=1, memory=1000.0, price=1.0, billing=Billing(10.0), start=10.0, stop=3.0)
TARGET = 3.0
"""Seconds from a record being due to its result being committed."""
STATE_PARTITIONS = 4
TEXTS = Path(__file__).parents[1] / "docs" / "explanation" / "*.md"
"""The text that words are counted of: what lies here in any checkout."""
ROUNDS = 2_000
"""Of a key derivation: about a millisecond of a core a record."""


def words(load: ArrivalPattern) -> Dataflow:
    """Words of a text, counted in a native aggregate: many cheap records, one stage with state."""
    flow = Dataflow("words")
    lines = flow.source(text_files(TEXTS), load=load)
    lines.flat_map(str.split, returns="word string", name="split").key_by("word").count().sink(parquet())
    return flow


def visitors(load: ArrivalPattern) -> Dataflow:
    """Requests of an access log by visitor: pandas in a stateless stage, an aggregate with state."""
    flow = Dataflow("visitors")
    log = flow.source(records(access_log(), "value string"), load=load, name="log")
    seen = log.map_pandas(visits, returns="visitor string, bytes bigint", name="visits")
    seen.key_by("visitor").aggregate({"requests": "count(*)", "bytes": "sum(bytes)"}).sink(parquet())
    return flow


def signed(value: str) -> str:
    """A signature of `value`, which takes about a millisecond."""
    return hashlib.pbkdf2_hmac("sha256", value.encode(), b"of this benchmark", ROUNDS).hex()


def signatures(load: ArrivalPattern) -> Dataflow:
    """A signature of each record: few expensive records, no state."""
    flow = Dataflow("signatures")
    log = flow.source(records(access_log(), "value string"), load=load, name="log")
    log.map(signed, returns="signature string", name="sign").sink(parquet())
    return flow


@dataclass(frozen=True)
class Scenario:
    """A run to record. hosts: at most."""

    dataflow: Callable[[ArrivalPattern], Dataflow]
    load: ArrivalPattern
    policy: Policy
    host: HostType
    hosts: int


def _up_and_down(low: float, high: float) -> ArrivalPattern:
    return constant(low, lasts=8).then(ramp(low, high, over=22)).then(ramp(high, low, over=15)).hold(10)


SCENARIOS: Mapping[str, Scenario] = {
    "words, up and down": Scenario(words, _up_and_down(1_000, 30_000), Threshold(), THIRD, 4),
    "words, a step": Scenario(words, steps((5_000, 20), (18_000, 20), (5_000, 15)), Threshold(), THIRD, 3),
    "words, level": Scenario(words, constant(9_000, lasts=50), Static(2), THIRD, 2),
    "words, a wave on larger hosts": Scenario(
        words, sine(2_000, 16_000, 30).lasting(55), ByLoad(hosts=Threshold()), HALF, 3
    ),
    "visitors, up and down": Scenario(visitors, _up_and_down(2_000, 40_000), Threshold(), THIRD, 4),
    "visitors, a step": Scenario(
        visitors, steps((6_000, 20), (24_000, 20), (6_000, 15)), ByLoad(hosts=Threshold()), THIRD, 4
    ),
    "visitors, level": Scenario(visitors, constant(12_000, lasts=50), Static(2), HALF, 2),
    "signatures, up and down": Scenario(signatures, _up_and_down(20, 600), Threshold(), THIRD, 4),
    "signatures, a step": Scenario(signatures, steps((60, 20), (350, 20), (60, 15)), Threshold(), HALF, 3),
    "signatures, level": Scenario(signatures, constant(250, lasts=50), Static(3), THIRD, 3),
    "signatures, a wave": Scenario(signatures, sine(30, 400, 30).lasting(55), ByLoad(hosts=Threshold()), THIRD, 4),
    "words, a wave at a constant number": Scenario(words, sine(2_000, 14_000, 25).lasting(50), Static(3), THIRD, 3),
}
"""By name; the part before the comma is the dataflow's."""
QUICK = ("words, level", "words, a step")
"""What `--quick` records: one with a constant number of hosts, one in which hosts come and go."""


def record(scenario: Scenario, folder: Path) -> None:
    """Run `scenario` on Spark; its recording is then in `folder`."""
    with TemporaryDirectory(prefix="drift-") as runs:
        run(
            scenario.dataflow(scenario.load),
            policy=scenario.policy,
            cloud=Local(scenario.host, max_hosts=scenario.hosts),
            target_latency=TARGET,
            state_partitions=STATE_PARTITIONS,
            runs=runs,
            show=False,
        )
        (made,) = Path(runs).iterdir()
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(made / "recording.jsonl", folder / "recording.jsonl")


if __name__ == "__main__":
    record(SCENARIOS[sys.argv[1]], Path(sys.argv[2]))
