"""Which query the money of a run is for, and what a price list makes of a host."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.control.loop import Loop
from elastream.core.hosts import Billing, HostType, PriceList
from elastream.core.metrics import Metric
from elastream.core.observation import MicroBatch
from elastream.errors import CloudError
from elastream.policies.threshold import Threshold
from elastream.recording.costs import CostSplit, records_from_sources, split
from elastream.recording.observer import describe_run
from elastream.recording.recorder import Collector
from elastream.report.page import costs_text
from elastream.report.summary import summarise
from elastream.report.tally import Totals, tally_of
from support.fake_plant import FakePlant

AMOUNTS = st.floats(0.0, 1e6, allow_nan=False)


def test_money_is_divided_by_the_cores_that_queries_keep_busy():
    costs, busy = np.array([8.0, 2.0]), np.array([[3.0, 0.0], [1.0, 0.0]])
    assert split(costs, busy).tolist() == [7.0, 3.0]  # the second period, in which nobody works, equally


@given(st.data(), st.integers(1, 4), st.integers(0, 5))
def test_what_queries_cost_adds_up_to_what_was_paid(data, queries, periods):
    costs = np.array(data.draw(st.lists(AMOUNTS, min_size=periods, max_size=periods)))
    cells = st.lists(st.one_of(AMOUNTS, st.just(math.nan)), min_size=periods, max_size=periods)
    busy = np.array([data.draw(cells) for _ in range(queries)]).reshape(queries, periods)
    found = split(costs, busy)
    assert (found >= 0).all()
    assert math.fsum(found) == pytest.approx(math.fsum(costs))


def test_the_split_of_a_run_as_it_goes_is_that_of_its_recording():
    going, collector = CostSplit(), Collector()

    class Splitting:
        started = decided = ended = staticmethod(lambda _: None)
        observed = staticmethod(going.observed)

    plant = FakePlant(hosts=1, arrival_rate=200.0)
    header = describe_run(
        plant.context, policy="threshold", plant="simulated", started=0.0, environment={"currency": "EUR"}
    )
    Loop(plant, Threshold(host_type="small"), limit=30.0, observers=[Splitting(), collector], header=header).run()
    tally = tally_of(collector.recording)
    assert going.by_query == pytest.approx(dict(tally.costs))
    assert math.fsum(tally.costs.values()) == pytest.approx(tally.spent)
    assert tally.spent > 0
    again = Totals.of_json(tally.to_json(), None)
    assert (again.costs, again.spent) == (tally.costs, tally.spent)
    summary = summarise(collector.recording)
    assert summary.cost_per_million == pytest.approx(1e6 * summary.cost / summary.records)
    assert costs_text(summary).endswith("a million records")
    assert " EUR, " in costs_text(summary)


def test_several_queries_are_named_with_what_they_cost():
    collector = Collector()
    Loop(FakePlant(), Threshold(host_type="small"), limit=5.0, observers=[collector]).run()
    summary = replace(summarise(collector.recording), cost=4.0, costs={"first": 3.0, "second": 1.0}, records=2e6)
    assert costs_text(summary) == "4.00, 2.00 a million records (first 3.00, second 1.00)"


def test_a_price_list_prices_cores_and_memory():
    kind = HostType("executor", cores=4.0, memory=16000.0)
    priced = PriceList(core_hour=0.05, gb_hour=0.01, currency="EUR").of(kind)
    assert priced.price / priced.billing.unit * 3600 == pytest.approx(0.36)
    assert priced.billing == Billing(1.0)
    hourly = PriceList(core_hour=0.05, billing=Billing(3600.0)).of(kind)
    assert hourly.price == pytest.approx(0.2)


@pytest.mark.parametrize("prices", [{"core_hour": -1}, {"core_hour": math.nan}, {"core_hour": 1.0, "gb_hour": "much"}])
def test_a_price_that_is_none_is_refused(prices):
    with pytest.raises(CloudError, match="it is a price, 0 or more"):
        PriceList(**prices)


def test_records_are_counted_by_batches_of_queries_with_sources():
    plant, going = FakePlant(), CostSplit()
    first = plant.observe().context.layout.segments[0].name
    plant.clock.advance(4.0)
    seen = plant.observe()
    going.observed(seen)
    assert going.records == pytest.approx(4.0 * seen.overall(Metric.THROUGHPUT))
    going.observed(replace(seen, batches=(MicroBatch(first, 0.0, 1.0, 70.0), MicroBatch("another", 0.0, 1.0, 70.0))))
    assert going.records == 70.0


def test_query_that_reads_a_source_and_an_edge_counts_no_records():
    batches = [MicroBatch("first", 0.0, 1.0, 10.0), MicroBatch("second", 0.0, 1.0, 7.0)]
    queries = {"first": ("source", "map"), "second": ("join", "sink")}
    assert records_from_sources(batches, queries, ["source"], ["join"]) == 10.0
    mixed = {**queries, "second": ("other", "join", "sink")}
    assert records_from_sources(batches, mixed, ["source", "other"], ["join"]) == 0.0
