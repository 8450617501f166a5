"""An accepted action that cannot come into force any more has failed, for the reason that its lease gives."""

from dataclasses import replace

import pytest

from elastream.core.action import LeaseHost, ReleaseHost, Status
from elastream.core.frames import Frame
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.observation import Observation
from support.example_run import example_context

SMALL = HostType("small", cores=1.0, memory=1000)


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ({}, "host h2 is not leased"),
        (
            {"h2": Lease("h2", SMALL, 0.0, note="all machines are taken")},
            "never came up: all machines are",
        ),
        ({"h2": Lease("h2", SMALL, 0.0).to(HostState.STARTING, 1.0)}, "host h2 was lost"),
    ],
    ids=["unknown", "a request that a pool did not meet", "lost"],
)
def test_a_lease_that_fails_says_whether_the_host_ever_came(before, reason):
    outcome = LeaseHost("h2", "small").progress(Observation(5.0, example_context(), Frame()), before)
    assert outcome is not None
    assert outcome.status is Status.FAILED
    assert reason in outcome.reason


def test_release_that_waits_for_others_is_no_failure():
    seen = Observation(5.0, example_context(), Frame(), leases={"h2": Lease("h2", SMALL, 0.0)})
    assert not ReleaseHost("h2").is_waiting(seen)
    assert ReleaseHost("h2").is_waiting(replace(seen, occupied={"h2": "1 task of nightly"}))
    assert ReleaseHost("h2").is_waiting(replace(seen, pinned={"h2": "1 task of fast"}))
