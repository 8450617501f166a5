"""Nexmark's queries q0 to q22 as PySpark streaming DataFrames, one function a query.

`persons`, `auctions` and `bids` are streams with a watermark on `date_time`. Names of parameters are those of streams; the
others vary a query where implementations differ, and default to the public suite's form.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

Mode: TypeAlias = Literal["append", "update"]
EURO = Decimal("0.908")
LOW, HIGH = 10_000, 1_000_000  # prices that divide bids into three classes
LONGEST_AUCTION = "30 seconds"


@dataclass(frozen=True)
class Query:
    """A query and how its results are read.

    Attributes:
        limits: Limits of Spark's operators that shaped it; empty if none did.
        key: Columns whose latest row counts, in update mode.
        updates: Column that grows with each row of a key, if rows of one batch can have one key.
        python_state: True if it keeps state in Python by transformWithState, which needs RocksDB.
    """

    build: Callable[..., DataFrame]
    streams: tuple[str, ...]
    title: str
    state: str
    limits: str = ""
    mode: Mode = "append"
    key: tuple[str, ...] = ()
    updates: str = ""
    python_state: bool = False

    @property
    def name(self) -> str:
        return self.build.__name__


QUERIES: dict[str, Query] = {}


def _query(
    *streams: str,
    title: str,
    state: str,
    limits: str = "",
    mode: Mode = "append",
    key: Sequence[str] = (),
    updates: str = "",
) -> Callable[[Callable[..., DataFrame]], Callable[..., DataFrame]]:
    def register(build: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
        python = "transformWithState" in state
        QUERIES[build.__name__] = Query(build, streams, title, state, limits, mode, tuple(key), updates, python)
        return build

    return register


@_query("bids", title="every bid", state="none")
def q0(bids: DataFrame) -> DataFrame:
    """Pass every bid through."""
    return bids.select("auction", "bidder", "price", "date_time", "extra")


@_query("bids", title="every bid, priced in euros", state="none")
def q1(bids: DataFrame) -> DataFrame:
    """Convert each price to euros, exactly."""
    return bids.select("auction", "bidder", (F.col("price") * F.lit(EURO)).alias("price"), "date_time", "extra")


@_query("bids", title="bids on some auctions", state="none")
def q2(bids: DataFrame, auctions: Sequence[int] = ()) -> DataFrame:
    """Select bids on `auctions`; by default those with an id divisible by 123."""
    chosen = F.col("auction").isin(*auctions) if auctions else F.col("auction") % 123 == 0
    return bids.where(chosen).select("auction", "price")


@_query(
    "auctions",
    "persons",
    title="sellers of category 10 in three states",
    state="stream-stream join",
    limits="keeps both sides for ever, since the query has no time condition",
)
def q3(auctions: DataFrame, persons: DataFrame, states: Sequence[str] = ("OR", "ID", "CA")) -> DataFrame:
    """Join auctions of category 10 with their sellers who live in one of `states`."""
    sellers = persons.where(F.col("state").isin(*states)).select(F.col("id").alias("seller"), "name", "city", "state")
    of_category = auctions.where("category = 10").select("id", "seller")
    return of_category.join(sellers, "seller").select("name", "city", "state", "id")


def winning_bids(auctions: DataFrame, bids: DataFrame, longest: str, *, lowest: bool = False) -> DataFrame:
    """Return each auction that is over with its winning bid: the highest in time, on equal prices the earlier.

    Args:
        longest: Longest time an auction is open. It bounds the state of the join.
        lowest: Choose the lowest bid rather than the highest.
    """
    bid = bids.select(
        F.col("date_time").alias("bid_date_time"), F.struct("auction", "bidder", "price", "extra").alias("bid")
    )
    in_time = (
        F.expr("bid.auction = id and bid_date_time between date_time and expires")
        & F.expr(f"bid_date_time <= date_time + interval {longest}")
    )  # fmt: skip
    offers = auctions.join(bid, in_time)
    price = F.col("bid.price")
    order = F.struct(price if lowest else -price, "bid_date_time", "bid.bidder", "bid.extra")
    best = F.min_by(F.struct("bid.*", "bid_date_time"), order).alias("best")
    columns = ("id", "item_name", "description", "initial_bid", "reserve", "date_time", "expires", "seller", "category")
    # An auction's opening is event time: its group is closed once the watermark says that no bid in time can follow.
    return offers.groupBy(*columns, "extra").agg(best).select(
        *columns,
        "extra",
        *(f"best.{name}" for name in ("auction", "bidder", "price", "bid_date_time")),
        F.col("best.extra").alias("bid_extra"),
    )  # fmt: skip


class _MeanPrice(StatefulProcessor):
    """Mean price of each category, with the number of auctions in it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._sums = handle.getValueState("sums", "auctions long, total decimal(38, 0)")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        auctions, total = self._sums.get() or (0, 0)
        for part in rows:
            auctions += len(part)
            total += int(part["price"].sum())
        self._sums.update((auctions, Decimal(total)))
        yield pd.DataFrame({"category": [key[0]], "avg": [float(Decimal(total) / auctions)], "auctions": [auctions]})

    def close(self) -> None:
        pass


@_query(
    "auctions",
    "bids",
    title="mean winning price of each category",
    state="interval join, aggregate and transformWithState in a row",
    limits="no update mode behind a join: the running mean is a transformWithState",
    key=["category"],
    updates="auctions",
)
def q4(auctions: DataFrame, bids: DataFrame, longest: str = LONGEST_AUCTION) -> DataFrame:
    """Return the running mean of winning prices by category, with each auction that ends."""
    won = winning_bids(auctions, bids, longest).select("category", "price")
    return won.groupBy("category").transformWithStateInPandas(
        _MeanPrice(), "category long, avg double, auctions long", outputMode="Append", timeMode="None"
    )


@_query("bids", title="auctions with most bids in each sliding window", state="two window aggregates in a row")
def q5(bids: DataFrame) -> DataFrame:
    """Return the auctions with most bids in the last 10 seconds, every 2 seconds, ties included."""
    counts = bids.groupBy(F.window("date_time", "10 seconds", "2 seconds"), "auction").agg(F.count("*").alias("num"))
    # A list that went through a shuffle would be in another order after a retry, for which Spark ends the query.
    together = counts.repartition("window").groupBy("window")
    most = together.agg(F.max("num").alias("most"), F.collect_list(F.struct("auction", "num")).alias("all"))
    return most.select(F.inline(F.filter("all", lambda each: each["num"] == F.col("most"))))


class _LastPrices(StatefulProcessor):
    """Prices of a seller's auctions in the order of their winning bids; each row is a mean over the last eleven."""

    LAST = 11

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._sold = handle.getValueState("sold", "at array<long>, auction array<long>, price array<long>, rows long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        *earlier, number = self._sold.get() or ([], [], [], 0)
        sold = list(zip(*earlier, strict=True))
        new = [each for part in rows for each in zip(part["at"], part["id"], part["price"], strict=True)]
        sold = sorted(sold + [tuple(map(int, each)) for each in new])
        first = sold.index(min(tuple(map(int, each)) for each in new))
        means = []
        for place in range(first, len(sold)):
            last = [price for _, _, price in sold[max(0, place - self.LAST + 1) : place + 1]]
            means.append((sold[place][1], sum(last) / len(last)))
        self._sold.update((*map(list, zip(*sold, strict=True)), number + len(means)))
        yield pd.DataFrame(
            {
                "seller": key[0],
                "auction": [auction for auction, _ in means],
                "avg": [mean for _, mean in means],
                "version": range(number, number + len(means)),
            }
        )

    def close(self) -> None:
        pass


@_query(
    "auctions",
    "bids",
    title="mean of a seller's last winning prices",
    state="interval join, aggregate and transformWithState in a row",
    limits="no window over rows of a stream",
    key=["seller", "auction"],
    updates="version",
)
def q6(auctions: DataFrame, bids: DataFrame, longest: str = LONGEST_AUCTION, *, lowest: bool = False) -> DataFrame:
    """Return the mean winning price of each auction and the seller's ten before it, in the order of their winning bids.

    An auction that ends late changes the rows of those behind it. `lowest` chooses the lowest bid of an auction.
    """
    won = winning_bids(auctions, bids, longest, lowest=lowest)
    sold = won.select("seller", "id", "price", F.unix_micros("bid_date_time").alias("at"))
    return sold.groupBy("seller").transformWithStateInPandas(
        _LastPrices(), "seller long, auction long, avg double, version long", outputMode="Append", timeMode="None"
    )


@_query(
    "bids",
    title="highest bids of each window",
    state="window aggregate, then a join with the bids",
    limits="reads the bids twice: a window keeps no rows",
)
def q7(bids: DataFrame) -> DataFrame:
    """Return the bids with the highest price of a 10-second window that lie in it, both ends included."""
    highest = bids.groupBy(F.window("date_time", "10 seconds")).agg(F.max("price").alias("highest"))
    highest = highest.select(F.window_time("window").alias("last"), "highest")  # 1 us before the window's end
    within = "date_time between last + interval 1 microsecond - interval 10 seconds and last + interval 1 microsecond"
    return bids.join(highest, F.expr(f"price = highest and {within}")).select(
        "auction", "price", "bidder", "date_time", "extra"
    )


@_query(
    "persons", "auctions", title="persons who sell in the window in which they joined", state="deduplication, then a join"
)
def q8(persons: DataFrame, auctions: DataFrame) -> DataFrame:
    """Return persons who joined and opened an auction in the same 10-second window, once each."""
    joined = persons.select("id", "name", F.window("date_time", "10 seconds").alias("joined"))
    opened = auctions.select("seller", F.window("date_time", "10 seconds").alias("opened")).dropDuplicates()
    both = joined.join(opened, F.expr("id = seller and joined = opened"))
    return both.select("id", "name", F.col("joined.start").alias("starttime"))


@_query("auctions", "bids", title="each auction with its winning bid", state="interval join, then an aggregate")
def q9(auctions: DataFrame, bids: DataFrame, longest: str = LONGEST_AUCTION) -> DataFrame:
    """Return each auction that is over with its winning bid."""
    return winning_bids(auctions, bids, longest)


@_query("bids", title="every bid with its day and minute, to partition files by", state="none")
def q10(bids: DataFrame, clock: str = "HH:mm") -> DataFrame:
    """Return every bid with its day and its time in the format `clock`."""
    day, time = F.date_format("date_time", "yyyy-MM-dd"), F.date_format("date_time", clock)
    return bids.select("auction", "bidder", "price", "date_time", "extra", day.alias("date"), time.alias("time"))


@_query("bids", title="bids of each bidder's session", state="session windows", limits="no update mode for sessions")
def q11(bids: DataFrame) -> DataFrame:
    """Count the bids of each session of a bidder, which ends after 10 seconds without a bid."""
    counts = bids.groupBy("bidder", F.session_window("date_time", "10 seconds").alias("session"))
    return _counted(counts.agg(F.count("*").alias("bid_count")), "session")


@_query(
    "bids",
    title="bids of each bidder in windows of processing time",
    state="window aggregate",
    limits="no windows of processing time: the batch's clock is a column",
    mode="update",
    key=["bidder", "starttime"],
)
def q12(bids: DataFrame) -> DataFrame:
    """Count the bids of each bidder in 10-second windows of the clock of the batch that reads them."""
    counts = bids.groupBy("bidder", F.window(F.current_timestamp(), "10 seconds").alias("window"))
    return _counted(counts.agg(F.count("*").alias("bid_count")), "window")


def _counted(counts: DataFrame, window: str) -> DataFrame:
    return counts.select(
        "bidder", "bid_count", F.col(f"{window}.start").alias("starttime"), F.col(f"{window}.end").alias("endtime")
    )


@_query("bids", title="every bid with a value of a side table", state="none: a join with a static table")
def q13(bids: DataFrame, side: DataFrame) -> DataFrame:
    """Join each bid with the row of `side` (key, value) for its auction modulo 10,000."""
    looked_up = bids.join(F.broadcast(side), F.col("auction") % 10_000 == F.col("key"))
    return looked_up.select("auction", "bidder", "price", "date_time", "value")


@_query("bids", title="bids of middle prices with part of the day and a count of letters", state="none")
def q14(bids: DataFrame) -> DataFrame:
    """Return bids of 1 to 50 million in euros, with part of the day and how often `extra` has the letter c."""
    hour, price = F.hour("date_time"), F.col("price") * F.lit(EURO)
    part = F.when(hour.between(8, 18), "dayTime").when((hour <= 6) | (hour >= 20), "nightTime").otherwise("otherTime")
    letters = F.length("extra") - F.length(F.translate("extra", "c", ""))
    return bids.where((price > 1_000_000) & (price < 50_000_000)).select(
        "auction",
        "bidder",
        price.alias("price"),
        part.alias("bid_time_type"),
        "date_time",
        "extra",
        letters.cast("long").alias("c_counts"),
    )


def _day() -> Column:
    return F.date_format("date_time", "yyyy-MM-dd").alias("day")


def _by_class(name: str, measure: Callable[[Column], Column]) -> list[Column]:
    price = F.col("price")
    classes = [price < LOW, (price >= LOW) & (price < HIGH), price >= HIGH]
    numbered = [measure(of_class).alias(f"rank{n}_{name}") for n, of_class in enumerate(classes, start=1)]
    return [measure(F.lit(True)).alias(f"total_{name}"), *numbered]


def _distinct(column: str) -> Callable[[Column], Column]:
    return lambda condition: F.size(F.collect_set(F.when(condition, F.col(column)))).cast("long")


def _statistics() -> list[Column]:
    return [
        *_by_class("bids", F.count_if),
        *_by_class("bidders", _distinct("bidder")),
        *_by_class("auctions", _distinct("auction")),
    ]


@_query(
    "bids",
    title="bids, bidders and auctions of each day, by price class",
    state="aggregate with sets of ids",
    limits="no count(distinct) on streams: the size of a collected set is exact",
    mode="update",
    key=["day"],
)
def q15(bids: DataFrame) -> DataFrame:
    """Count bids, distinct bidders and distinct auctions of each day, also by price class."""
    return bids.groupBy(_day()).agg(*_statistics())


@_query(
    "bids",
    title="q15 for each channel",
    state="aggregate with sets of ids",
    limits="as q15",
    mode="update",
    key=["channel", "day"],
)
def q16(bids: DataFrame, clock: str = "HH:mm") -> DataFrame:
    """Count as q15 for each channel and day, with the latest time in the format `clock`."""
    latest = F.max(F.date_format("date_time", clock)).alias("minute")
    return bids.groupBy("channel", _day()).agg(latest, *_statistics())


@_query("bids", title="bids and prices of each auction and day", state="aggregate", mode="update", key=["auction", "day"])
def q17(bids: DataFrame) -> DataFrame:
    """Return number, lowest, highest, mean and total price of the bids on each auction and day."""
    prices = [getattr(F, what)("price").alias(f"{what}_price") for what in ("min", "max", "avg", "sum")]
    return bids.groupBy("auction", _day()).agg(*_by_class("bids", F.count_if), *prices)


BID_COLUMNS = ("auction", "bidder", "price", "channel", "url", "date_time", "extra")


@_query(
    "bids",
    title="latest bid of each bidder on each auction",
    state="aggregate with a row",
    limits="no row_number on streams: min_by keeps the row",
    mode="update",
    key=["auction", "bidder"],
)
def q18(bids: DataFrame) -> DataFrame:
    """Return the latest bid of each bidder on each auction; on equal times the one with the smaller extra."""
    order = F.struct(-F.unix_micros("date_time"), "extra", "price")
    latest = bids.groupBy("auction", "bidder").agg(F.min_by(F.struct(*BID_COLUMNS), order).alias("latest"))
    return latest.select("latest.*")


@_query(
    "bids",
    title="ten highest bids of each auction",
    state="aggregate with ten rows",
    limits="no row_number on streams: min_by(..., 10) keeps the rows, from Spark 4.2",
    mode="update",
    key=["auction", "rank_number"],
)
def q19(bids: DataFrame) -> DataFrame:
    """Return the ten highest bids of each auction with their rank; on equal prices the earlier ranks higher."""
    order = F.struct(-F.col("price"), "date_time", "bidder", "extra")
    ranked = bids.groupBy("auction").agg(F.min_by(F.struct(*BID_COLUMNS), order, 10).alias("best"))
    return ranked.select(F.posexplode("best").alias("place", "bid")).select(
        "bid.*", (F.col("place") + 1).alias("rank_number")
    )


@_query(
    "bids",
    "auctions",
    title="bids with their auctions of category 10",
    state="stream-stream join",
    limits="keeps both sides for ever, since the query has no time condition",
)
def q20(bids: DataFrame, auctions: DataFrame) -> DataFrame:
    """Join bids with their auctions of category 10."""
    renamed = {"date_time": "auction_date_time", "extra": "auction_extra", "id": "auction"}
    of_category = auctions.where("category = 10").withColumnsRenamed(renamed)
    named = bids.withColumnsRenamed({"date_time": "bid_date_time", "extra": "bid_extra"})
    return named.join(of_category, "auction")


@_query("bids", title="every bid with a channel id", state="none")
def q21(bids: DataFrame) -> DataFrame:
    """Return bids with the id of their channel: fixed for four names, otherwise of the url; without either, no row."""
    fixed = F.expr("decode(lower(channel), 'apple', '0', 'google', '1', 'facebook', '2', 'baidu', '3')")
    in_url = F.nullif(F.regexp_extract("url", "[?&]channel_id=([^&]*)", 1), F.lit(""))
    named = bids.select("auction", "bidder", "price", "channel", F.coalesce(fixed, in_url).alias("channel_id"))
    return named.where("channel_id is not null")


@_query("bids", title="every bid with the directories of its url", state="none")
def q22(bids: DataFrame) -> DataFrame:
    """Return each bid with the first three directories of its url."""
    parts = F.split("url", "/")
    return bids.select("auction", "bidder", "price", "channel", *(parts[n + 2].alias(f"dir{n}") for n in (1, 2, 3)))
