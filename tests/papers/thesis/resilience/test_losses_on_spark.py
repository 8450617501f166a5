"""A host killed at any time of a batch, when its state has copies: its state partitions go on from these."""

import random
import time

import pytest

from elastream_papers.thesis.resilience.bed import bed
from elastream_papers.thesis.resilience.job import Job

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_state_partitions_of_a_lost_host_go_on_from_their_copies():
    """It was half of them without what `Recovery.java` does before stages hear of a loss. On a machine so busy that a task
    waits longer than Spark has it wait for its place, one may run elsewhere.
    """
    chance, lost, opened = random.Random(1), 0, []
    with bed(Job(keys=50_000, rows=10_000), 4, replicas=1, steady=3) as made:
        for _ in range(4):
            normal = made.normal()
            made.more(1)
            time.sleep(chance.random() * normal)
            host = chance.choice(made.plant.hosts.usable)
            lost += sum(at == host for at in made.plant.reconciler.locations().values())
            before = len(made.opened())
            made.kill(host)
            made.more(4)
            opened += made.opened()[before:]
            made.in_place_of([host])
        assert made.wrong() == 0
    assert lost == 8
    assert len(opened) >= 6
    assert all(each.files <= each.version - each.replica_version for each in opened)
