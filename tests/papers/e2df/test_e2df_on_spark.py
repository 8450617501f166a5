"""The E2DF experiment on Spark: what is made of its runs. The runs themselves take minutes; one of them is marked slow."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pandas as pd
import pytest

from elastream.core.action import SetParallelism
from elastream.core.observation import Observation
from elastream.spark.dataflow.sinks import KEY_FILE
from elastream_papers.e2df import on_spark

STATIC = on_spark.SparkScenario(
    "static", 2.0, 10.0, 5.0, 0.4, 1e6, 0, 0, True, 120.0, "hosts as they are",
    tuple((float(second), 100.0 * second, 2.0, 10.0, 5.0, 0.4) for second in range(5)),
)  # fmt: skip


def three(**both: object) -> list[dict[str, on_spark.SparkScenario]]:
    """Three rounds, which differ a little."""
    elastic = replace(STATIC, name="both levels", replicas=5.0, hosts=3.0)
    return [
        {
            "static": replace(STATIC, latency=2.0 + number / 100),
            "application": replace(STATIC, name="application", replicas=4.0 + number / 100),
            "both levels": replace(elastic, **both),
        }
        for number in range(3)
    ]


def test_elastic_scenarios_begin_with_one_instance_of_the_source() -> None:
    policy, graph = on_spark.policy_of("application"), SimpleNamespace(operators=())
    nothing = cast(Observation, SimpleNamespace(time=0.0, context=SimpleNamespace(graph=graph)))
    first = policy.plan(nothing)
    assert first.actions == (SetParallelism("source", 1),)
    assert policy.plan(nothing, first.memory).actions == ()


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({"hosts": 4.0}, "both levels: host time below static"),
        ({"replicas": 8.0}, "both levels: replicas below static, on average"),
        ({"latency": 4.0}, "both levels: mean latency over static's"),
        ({"restarts": 1}, "both levels: query restarts"),
        ({"exact": False}, "both levels: counts, against a plain count"),
    ],
)
def test_each_bar_is_missed_by_what_it_is_about_alone(changed: dict[str, object], missed: str) -> None:
    assert all(check.holds for check in on_spark.bars(three()))
    assert [check.name for check in on_spark.bars(three(**changed)) if check.missed] == [missed]


def test_figures_from_spark_and_the_papers_never_share_a_row() -> None:
    page = on_spark.outcome(three(), 1.0).page
    ratios = next(table for table in page.tables if "ratios" in table.caption)
    assert [("paper" in row[0]) for row in ratios.rows] == [False, True] * 3
    assert not any("simulated" in table.caption for table in page.tables)


def test_one_count_that_is_off_by_one_shows(tmp_path: Path) -> None:
    def counted(b: int) -> bool:
        folder = tmp_path / str(b)
        (folder / "out" / "batch=0").mkdir(parents=True)
        pd.DataFrame({"word": ["a", "b"], "count": [2, b]}).to_parquet(folder / "out" / "batch=0" / "part-0.parquet")
        (folder / "out" / KEY_FILE).write_text('{"key": ["word"]}')
        return on_spark.counts_are_exact(folder, {"source": iter(["a b", "a"])})

    assert counted(1)
    assert not counted(2)


@pytest.mark.spark
@pytest.mark.slow
def test_both_levels_follow_a_load_on_spark_and_count_exactly() -> None:
    run = on_spark.run_scenario("both levels", rise=30.0)
    assert run.exact
    assert run.restarts == 0
    assert max(row[4] for row in run.series) > 1
