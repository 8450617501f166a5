"""A cloud beside a session that is there already: what cannot be is said before anything starts."""

from types import SimpleNamespace

import pytest

from elastream import HostType, Local
from elastream.errors import CloudError
from elastream.spark.attach import join

SMALL = HostType("small", cores=0.5, slots=1, memory=1000.0)


def session(master="spark://somewhere:7077", memory=600, cores=None):
    context = SimpleNamespace(executorMemory=lambda: memory)
    conf = SimpleNamespace(get=lambda name: cores if name == "spark.executor.cores" else None)
    spark_context = SimpleNamespace(master=master, _jsc=SimpleNamespace(sc=lambda: context), getConf=lambda: conf)
    return SimpleNamespace(sparkContext=spark_context)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"memory": 1024},
            "takes 1024 MiB and 1 slots, and a host of type 'small' has 667 MiB and 1: spark",
        ),
        ({"cores": "2"}, "takes 600 MiB and 2 slots"),
        ({"master": "yarn"}, "join a Standalone master (spark://...), which 'yarn' is not"),
        ({"master": "local-cluster[2,1,700]"}, "which 'local-cluster[2,1,700]' is not"),
    ],
    ids=["memory", "slots", "another manager", "a cluster inside the driver"],
)
def test_hosts_that_could_not_join_are_refused_in_a_sentence(given, said, tmp_path):
    with pytest.raises(CloudError, match=r".+") as refused:
        join(Local(SMALL), session(**given), tmp_path)
    assert said in str(refused.value)
    assert not list(tmp_path.iterdir())
