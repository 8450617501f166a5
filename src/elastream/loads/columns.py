"""Meaning of columns' names: times, counts of records, records per second, neither, or unclear, which callers refuse."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from elastream.errors import ElastreamError
from elastream.units import duration


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Word in the name of a column of times -> seconds of its numbers.
TIME_UNITS: Mapping[str, float] = {
    **dict.fromkeys(_words("time timestamp datetime date t ts epoch unix s sec secs second seconds"), 1.0),
    **dict.fromkeys(_words("ns nanos nanosecond nanoseconds"), 1e-9),
    **dict.fromkeys(_words("micros microsecond microseconds"), 1e-6),  # `us` is more often a country
    **dict.fromkeys(_words("ms millis millisecond milliseconds"), 1e-3),
    **dict.fromkeys(_words("m min mins minute minutes"), 60.0),
    **dict.fromkeys(_words("h hr hour hours"), 3600.0),
    **dict.fromkeys(_words("d day days"), 86400.0),
}
MOMENTS = _words("time timestamp datetime date ts epoch unix")  # words for a moment, not for a unit
_UNITS = {word: seconds for word, seconds in TIME_UNITS.items() if word not in {*MOMENTS, "t"}}
_ABOUT_TIMES = _words("utc gmt local start begin end event window interval bucket since elapsed of at us")

COUNT_WORDS = _words(
    "count counts record records request requests req reqs event events message messages msg msgs arrival arrivals "
    "hit hits row rows"
)
VALUE_WORDS = _words("value values n")
# A rate has one of these nouns, or none: a hit rate or an error rate is a fraction.
_RATE_NOUNS = (COUNT_WORDS - _words("hit hits count counts")) | _words("input arrival ingest num incoming")
_PER_SECOND = _words("qps rps tps eps mps cps reqps")
_PER_MINUTE = _words("qpm rpm tpm epm mpm")
_UNCLEAR = _words(
    "total totals cumulative cum cumsum counter avg average mean median max maximum minimum percentile quantile std stddev "
    "rolling moving ewma derivative deriv delta diff growth change hourly daily minutely weekly monthly rates hz iops "
    "limit quota target capacity k b bn g mn mio tsd thousand thousands million millions krps kqps "
    "pro par por sek sekunde seconde segundo secondo"
)
_UNCLEAR_WITHOUT_UNIT = _words("throughput load traffic speed velocity frequency ops")
# Percent, quantiles, scales, seconds in Chinese and Japanese.
_UNCLEAR_TEXT = re.compile(r"%|(?<![a-zA-Z])[pP]\d\d|1000|1e\d|10\^|[×·秒]")
_UNCLEAR_WORD = re.compile(r"(?:\w?|reqs?|msgs?|recs?|evts?|rows?|txn?)p[smh]|\w+(?:rate|sec)")
_GLUED = re.compile(r"(\w*)per(sec|second|min|minute|hour|day)")  # as Hive writes inputRowsPerSecond
_OTHER = _words(
    "latency duration delay byte bytes kb mb gb tb kib mib gib bits bps kbps mbps cpu memory mem heap percent percentage "
    "pct ratio temperature cost price lag offset utilization utilisation usage size length depth level gauge flight "
    "concurrency pending waiting backlog connections errors error failures failed timeouts index id unnamed"
)
_SAYS_NOTHING = _words("col column f field y data metric result series var measure")
LABEL_WORDS = _words(
    "series host hostname instance pod node region zone partition shard topic job service metric label app queue consumer "
    "group cluster namespace source table"
)


class Kind(Enum):
    COUNT = auto()
    RATE = auto()
    VALUE = auto()  # counts, by a word that says little
    NEUTRAL = auto()  # counts, if there is no other column
    UNCLEAR = auto()  # records in a way that the name leaves open
    OTHER = auto()  # something else than records


@dataclass(frozen=True, slots=True)
class Meaning:
    """Meaning of a column's name. `per` is the time that a rate counts in (seconds)."""

    kind: Kind
    per: float = 1.0


def words_in(name: str) -> list[str]:
    """Return the words in the name of a column, in lower case; `inputRows` are two."""
    words = [each.lower() for each in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    return [part for word in words for part in _parts(word)]


def _parts(word: str) -> list[str]:
    glued = _GLUED.fullmatch(word)
    return [word] if glued is None else [*filter(None, [glued.group(1)]), "per", glued.group(2)]


def is_time(name: str) -> bool:
    words = {*words_in(name)}
    return bool(words & TIME_UNITS.keys()) and words <= TIME_UNITS.keys() | _ABOUT_TIMES and not _per(name)


def time_unit(name: str) -> float | None:
    """Return the unit in the name of a column of times (seconds); None without one."""
    words = words_in(name)
    return 1e-6 if "us" in words else min((_UNITS[word] for word in words if word in _UNITS), default=None)


def is_label(name: str) -> bool:
    return bool({*words_in(name)} & LABEL_WORDS) and meaning(name).kind is Kind.NEUTRAL


def says_unit(label: str) -> bool:
    """Return True if the name of a series tells its unit, too: `orders/s`, `sum(rate(orders[5m]))`."""
    return (
        bool({*words_in(label)} & {"rate", "per", "total", *_PER_SECOND, *_PER_MINUTE})
        or _per(label) > 0
        or any(mark in label for mark in "([{")
    )


def meaning(name: str) -> Meaning:
    selects = "{" in name  # a metric as it is, which is no count in an interval
    name = re.sub(r"\{[^{}]*\}", "", name).strip().removesuffix("(*)")
    if re.search(r"\w\s*\(.*\[|\b(rate|irate|increase|histogram_quantile)\(", name):
        return _of_query(name)
    words = {*words_in(name)}
    if words & _OTHER or not (name or selects):  # pandas gives its index no name
        return Meaning(Kind.OTHER)
    if words and {word for word in words if len(word) > 1} <= _SAYS_NOTHING and words & _SAYS_NOTHING:
        return Meaning(Kind.UNCLEAR)
    others = words - (_PER_SECOND | _PER_MINUTE | _UNCLEAR_WITHOUT_UNIT)
    if not name or words & _UNCLEAR or _UNCLEAR_TEXT.search(name) or any(map(_UNCLEAR_WORD.fullmatch, others)):
        return Meaning(Kind.UNCLEAR)
    if per := _per(name):
        return Meaning(Kind.UNCLEAR if per < 0 else Kind.RATE, per)
    if words & _UNCLEAR_WITHOUT_UNIT:
        return Meaning(Kind.UNCLEAR)
    if "rate" in words:
        # One word more than those of a rate, and it can be a fraction: an error rate, a hit rate.
        return Meaning(Kind.RATE if words - {"rate"} <= _RATE_NOUNS else Kind.UNCLEAR)
    if selects or words & _UNITS.keys():
        return Meaning(Kind.UNCLEAR)
    if words & COUNT_WORDS:
        return Meaning(Kind.COUNT)
    return Meaning(Kind.VALUE if words & VALUE_WORDS else Kind.NEUTRAL)


def rate_unit(name: str) -> float:
    """Return the time that a column of rates counts in (seconds); 1 without a unit in its name."""
    what = meaning(name)
    return what.per if what.kind is Kind.RATE else max(_per(name), 0.0) or 1.0


def _per(name: str) -> float:
    """Return the time of a rate by the unit in its name (seconds): 0 without a unit, -1 if it is no time."""
    words = words_in(name)
    split = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+(?:\.\d+)?|[/*^+]", name)
    tokens = [part for token in split for part in _parts(token.lower())]
    units = []
    for at, token in enumerate(tokens):
        following = tokens[at + 1 : at + 3]
        if token in ("/", "per"):
            number = float(following.pop(0)) if following and following[0][0].isdigit() else 1.0
            units.append(number * _UNITS[following[0]] if following and following[0] in _UNITS and number else -1.0)
        elif token in ("*", "^", "+"):
            units.append(-1.0)
        elif token[0].isdigit() and following and following[0] in _UNITS and tokens[at - 1 : at] not in (["/"], ["per"]):
            # rate5m is a rate in records per second; requests_5m are the requests of five minutes.
            units.append(1.0 if "rate" in words else float(token) * _UNITS[following[0]] or -1.0)
    units += [1.0 for word in words if word in _PER_SECOND] + [60.0 for word in words if word in _PER_MINUTE]
    return 0.0 if not units else units[0] if len(units) == 1 else -1.0


_AGGREGATE = re.compile(r"sum\s*(?:(?:by|without)\s*\([^()]*\)\s*)?\((.*?)\)\s*(?:(?:by|without)\s*\([^()]*\))?", re.DOTALL)
_RANGE = re.compile(r"(rate|irate|increase)\s*\(\s*([\w:]+)\s*\[([^\]:]+)(?::[^\]]*)?\]\s*(?:offset\s+\w+\s*)?\)")


def _of_query(query: str) -> Meaning:
    """Return the meaning of a PromQL expression; clear only for sums of `rate` or `increase`."""
    text = query
    while match := _AGGREGATE.fullmatch(text):
        text = match.group(1).strip()
    call = _RANGE.fullmatch(text)
    if call is None:
        return Meaning(Kind.UNCLEAR)
    function, metric, window = call.groups()
    if {*words_in(metric)} & (_OTHER | _UNITS.keys() | {"bucket"}):
        return Meaning(Kind.OTHER)
    if function != "increase":
        return Meaning(Kind.RATE)
    try:
        return Meaning(Kind.RATE, duration(window))
    except ElastreamError:
        return Meaning(Kind.UNCLEAR)
