"""Nexmark's queries once more as plain batches in pandas, written from their description rather than from the streams.

A column has the name and meaning that it has in `queries`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

import pandas as pd

Frame: TypeAlias = pd.DataFrame
WINDOW = pd.Timedelta(seconds=10)
SLIDE = pd.Timedelta(seconds=2)
CLASSES = ((0, 10_000), (10_000, 1_000_000), (1_000_000, 2**63 - 1))  # lowest price, and the one above the highest
CHANNEL_IDS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}


def q0(bids: Frame) -> Frame:
    return bids[["auction", "bidder", "price", "date_time", "extra"]]


def q1(bids: Frame) -> Frame:
    euros = [Decimal(price * 908).scaleb(-3) for price in bids["price"].tolist()]
    return q0(bids).assign(price=pd.Series(euros, index=bids.index, dtype=object))


def q2(bids: Frame, auctions: Collection[int] = ()) -> Frame:
    rows = bids["auction"].isin(list(auctions)) if auctions else bids["auction"].mod(123).eq(0)
    return bids.loc[rows, ["auction", "price"]]


def q3(auctions: Frame, persons: Frame, states: Collection[str] = ("OR", "ID", "CA")) -> Frame:
    of_category = auctions.loc[auctions["category"] == 10, ["id", "seller"]]
    sellers = persons[["id", "name", "city", "state"]].rename(columns={"id": "seller"})
    both = of_category.merge(sellers[sellers["state"].isin(list(states))], on="seller")
    return both[["name", "city", "state", "id"]]


def winners(auctions: Frame, bids: Frame, *, lowest: bool = False) -> Frame:
    """Return each auction with its winning bid: the highest in time, on equal prices the earlier."""
    offers = auctions.rename(columns={"extra": "auction_extra"}).merge(
        bids.rename(columns={"date_time": "bid_date_time", "extra": "bid_extra"}), left_on="id", right_on="auction"
    )
    offers = offers[(offers["bid_date_time"] >= offers["date_time"]) & (offers["bid_date_time"] <= offers["expires"])]
    chosen = offers.groupby("id")["price"].transform("min" if lowest else "max")
    offers = offers[offers["price"] == chosen].sort_values(["id", "bid_date_time", "bidder", "bid_extra"])
    best = offers.drop_duplicates("id").rename(columns={"auction_extra": "extra"})
    return best.drop(columns=["channel", "url"])


def q4(auctions: Frame, bids: Frame) -> Frame:
    prices = winners(auctions, bids).groupby("category")["price"]
    means = prices.sum() / prices.count()
    return pd.DataFrame({"category": means.index, "avg": means.to_numpy(), "auctions": prices.count().to_numpy()})


def q5(bids: Frame) -> Frame:
    newest = bids["date_time"].dt.floor(SLIDE)
    windows = [pd.DataFrame({"window": newest - n * SLIDE, "auction": bids["auction"]}) for n in range(WINDOW // SLIDE)]
    counts = pd.concat(windows).value_counts().rename("num").reset_index()
    return counts.loc[counts["num"] == counts.groupby("window")["num"].transform("max"), ["auction", "num"]]


def q6(auctions: Frame, bids: Frame, *, lowest: bool = False) -> Frame:
    rows: list[tuple[int, int, float]] = []
    sold = winners(auctions, bids, lowest=lowest).sort_values(["bid_date_time", "id"])
    for seller, group in sold.groupby("seller"):
        prices = group["price"].tolist()
        for place, auction in enumerate(group["id"].tolist(), start=1):
            last = prices[max(0, place - 11) : place]
            rows.append((int(str(seller)), auction, sum(last) / len(last)))
    return pd.DataFrame(rows, columns=["seller", "auction", "avg"])


def q7(bids: Frame) -> Frame:
    highest = bids.groupby(bids["date_time"].dt.floor(WINDOW))["price"].max()
    rows = bids[["auction", "price", "bidder", "date_time", "extra"]]
    parts = []
    for start, price in highest.items():
        time = bids["date_time"]
        within = (time >= start) & (time <= pd.Timestamp(str(start)) + WINDOW)
        parts.append(rows[within & (bids["price"] == price)])
    return pd.concat(parts) if parts else rows


def q8(persons: Frame, auctions: Frame) -> Frame:
    joined = persons[["id", "name"]].assign(starttime=persons["date_time"].dt.floor(WINDOW))
    opened = pd.DataFrame({"id": auctions["seller"], "starttime": auctions["date_time"].dt.floor(WINDOW)})
    return joined.merge(opened.drop_duplicates(), on=["id", "starttime"])


def q9(auctions: Frame, bids: Frame) -> Frame:
    return winners(auctions, bids)


def q10(bids: Frame, clock: str = "%H:%M") -> Frame:
    return q0(bids).assign(date=_days(bids), time=_texts(bids, clock))


def q11(bids: Frame) -> Frame:
    rows = bids[["bidder", "date_time"]].sort_values(["bidder", "date_time"])
    starts = (rows["bidder"] != rows["bidder"].shift()) | (rows["date_time"].diff() >= WINDOW)
    sessions = rows.groupby([rows["bidder"], starts.cumsum()])["date_time"].agg(["size", "min", "max"])
    return pd.DataFrame(
        {
            "bidder": sessions.index.get_level_values(0),
            "bid_count": sessions["size"].to_numpy(),
            "starttime": sessions["min"].array,
            "endtime": (sessions["max"] + WINDOW).array,
        }
    )


def q12(bids: Frame) -> Frame:
    """Return the bids of each bidder in all windows: which window a bid is in depends on when it was read."""
    return bids.groupby("bidder").size().rename("bid_count").reset_index()


def q13(bids: Frame, side: Frame) -> Frame:
    values = dict(zip(side["key"], side["value"], strict=True))
    looked_up = bids[["auction", "bidder", "price", "date_time"]].assign(value=bids["auction"].mod(10_000).map(values))
    return looked_up.dropna(subset="value")


def q14(bids: Frame) -> Frame:
    def part_of_day(hour: int) -> str:
        return "dayTime" if 8 <= hour <= 18 else "otherTime" if 6 < hour < 20 else "nightTime"

    priced = q1(bids)
    chosen = priced[priced["price"].map(lambda price: 1_000_000 < price < 50_000_000).astype(bool)]
    return chosen.assign(
        bid_time_type=chosen["date_time"].dt.hour.map(part_of_day).astype(object), c_counts=chosen["extra"].str.count("c")
    )


def _texts(bids: Frame, form: str) -> "pd.Series[str]":
    places, minutes = pd.factorize(bids["date_time"].dt.floor("min"))
    return pd.Series(minutes.strftime(form).to_numpy()[places], index=bids.index, dtype=object)


def _days(bids: Frame) -> "pd.Series[str]":
    return _texts(bids, "%Y-%m-%d").rename("day")


def _counts(bids: Frame, by: "Sequence[pd.Series[Any]]") -> Frame:
    parts = []
    for name, (lowest, above) in zip(("total", "rank1", "rank2", "rank3"), ((0, 2**63 - 1), *CLASSES), strict=True):
        within = (bids["price"] >= lowest) & (bids["price"] < above)
        groups = bids[within].groupby([key[within] for key in by], observed=True)
        counts = {"bids": groups.size(), "bidders": groups["bidder"].nunique(), "auctions": groups["auction"].nunique()}
        parts.append(pd.DataFrame(counts).add_prefix(f"{name}_"))
    return pd.concat(parts, axis=1).fillna(0).astype("int64")


def q15(bids: Frame) -> Frame:
    return _counts(bids, [_days(bids)]).reset_index()


def q16(bids: Frame, clock: str = "%H:%M") -> Frame:
    by = [bids["channel"].astype("category"), _days(bids).astype("category")]
    latest = _texts(bids, clock).groupby(by, observed=True).max().rename("minute")
    return _counts(bids, by).join(latest).reset_index()


def q17(bids: Frame) -> Frame:
    prices = bids.groupby(["auction", _days(bids)])["price"]
    figures = pd.DataFrame({f"{what}_price": prices.agg(what) for what in ("min", "max", "sum")})
    figures["avg_price"] = figures["sum_price"] / prices.count()
    figures["total_bids"] = prices.count()
    for number, (lowest, above) in enumerate(CLASSES, start=1):
        figures[f"rank{number}_bids"] = prices.agg(lambda group, a=lowest, b=above: ((group >= a) & (group < b)).sum())
    return figures.reset_index()


def q18(bids: Frame) -> Frame:
    order = bids.sort_values(["date_time", "extra", "price"], ascending=[False, True, True])
    return order.drop_duplicates(["auction", "bidder"])


def q19(bids: Frame) -> Frame:
    order = bids.sort_values(["price", "date_time", "bidder", "extra"], ascending=[False, True, True, True])
    ranks = order.groupby("auction").cumcount() + 1
    return order.assign(rank_number=ranks)[ranks <= 10]


def q20(bids: Frame, auctions: Frame) -> Frame:
    of_category = auctions[auctions["category"] == 10].add_prefix("auction_").rename(columns={"auction_id": "auction"})
    unchanged = ("item_name", "description", "initial_bid", "reserve", "expires", "seller", "category")
    of_category = of_category.rename(columns={f"auction_{name}": name for name in unchanged})
    return bids.rename(columns={"date_time": "bid_date_time", "extra": "bid_extra"}).merge(of_category, on="auction")


def q21(bids: Frame) -> Frame:
    def channel_id(channel: str, url: str) -> str | None:
        return CHANNEL_IDS.get(channel.lower()) or parse_qs(urlsplit(url).query).get("channel_id", [None])[0]

    ids = [channel_id(channel, url) for channel, url in zip(bids["channel"], bids["url"], strict=True)]
    columns = ["auction", "bidder", "price", "channel"]
    return bids[columns].assign(channel_id=pd.Series(ids, index=bids.index, dtype=object)).dropna(subset="channel_id")


def q22(bids: Frame) -> Frame:
    paths = [urlsplit(url).path.split("/") for url in bids["url"]]
    directories = {f"dir{n}": pd.Series([path[n] for path in paths], index=bids.index, dtype=object) for n in (1, 2, 3)}
    return bids[["auction", "bidder", "price", "channel"]].assign(**directories)


ANSWERS: Mapping[str, Callable[..., Frame]] = {
    each.__name__: each
    for each in (
        *(q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q10, q11),
        *(q12, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22),
    )
}
