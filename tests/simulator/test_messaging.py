"""Time in the messaging system: part of an item's duration, of nobody's work."""

import pytest

from elastream.core.hosts import HostType
from elastream.dataflow.operators import Alternate, Kind, Operator
from elastream.errors import InputError
from elastream.loads import constant
from elastream.simulator import Messaging, Settings, make_plant
from support.simulated_plants import chain

WORK = Operator("work", Kind.TRANSFORM, (Alternate("work", cost=0.1),), max_duration=0.6, cores=1.0, memory=100)


def result_with(messaging):
    plant = make_plant(
        chain(WORK),
        host_types=[HostType("h", cores=4)],
        loads={"source": constant(2, "1000s")},
        settings=Settings(messaging=messaging),
        seed=3,
    )
    plant.advance(1000)
    return plant.result()


def test_messaging_lengthens_durations_by_its_mean_only():
    without, with_it = result_with({}), result_with({"work": Messaging(0.5, 0.2)})
    assert with_it.committed == without.committed
    before, after = without.operators["work"], with_it.operators["work"]
    # 2,000 lognormal draws of deviation 0.1 s: their mean is within 0.01 s of 0.5 s but for one case in 100,000.
    assert after.mean_duration == pytest.approx(before.mean_duration + 0.5, abs=0.01)
    # Work and messaging make the service level on average, so about half of the items keep it; twice of it all do.
    assert 0.4 < with_it.compliance(1.0) < 0.65
    assert with_it.compliance(2.0) > 0.999


def test_messaging_cannot_be_negative():
    with pytest.raises(InputError, match="negative"):
        Messaging(-0.1)
