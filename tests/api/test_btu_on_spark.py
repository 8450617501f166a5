"""VISP's policy on a real cluster: a lease is renewed or given back at the end of what is paid, and at no other time."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from elastream.core.action import DrainHost, ReleaseHost, RenewHost
from elastream.recording.recorder import Recording

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COMMAND = Path(sys.executable).with_name("elastream")
UNIT, WINDOW = 12.0, 0.4

PROGRAM = f"""
from elastream import Dataflow, HostType, Local, run
from elastream.io import parquet, records
from elastream.loads import constant
from elastream.policies import Btu
from elastream.core.hosts import Billing

flow = Dataflow("leases")
lines = flow.source(records([{{"value": "a b"}}] * 30, "value string"), load=constant("20/s", lasts="30s"))
lines.map(len, returns="length int", max_duration="5s").sink(parquet())
tiny = HostType("tiny", cores=1.0, slots=1, memory=1000.0, billing=Billing({UNIT}), start=5.0, stop=1.0)
run(flow, policy=Btu(period=1.0, window={WINDOW}), cloud=Local(tiny, max_hosts=2), target_latency="5s", period="1s")
"""


def test_a_lease_is_renewed_or_given_back_at_the_end_of_its_billing_time_unit(tmp_path):
    program = tmp_path / "leases.py"
    program.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [COMMAND, "run", str(program), "--no-live", "--runs", str(tmp_path / "runs")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    recording = Recording.read(folder)
    since = {lease.host: lease.since for lease in recording.hosts}
    ends = [
        (decision.time, outcome.action)
        for decision in recording.decisions
        for outcome in decision.done
        if isinstance(outcome.action, RenewHost | ReleaseHost | DrainHost)
    ]
    assert any(isinstance(action, RenewHost) for _, action in ends), "the only host is still needed"
    for time, action in ends:
        into = (time - since[action.host]) % UNIT
        assert into >= (1 - WINDOW) * UNIT - 1, f"{action} came {into:.1f} s into a unit of {UNIT:g} s"
