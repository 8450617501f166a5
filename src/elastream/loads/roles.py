"""Choice of a table's columns: times, counts or rates, names of series. Ambiguous ones are refused."""

from collections.abc import Sequence
from dataclasses import dataclass

from elastream.errors import InputError
from elastream.loads import columns, moments, numerals
from elastream.loads.columns import Kind, Meaning
from elastream.loads.tables import Table

SUM = "*"  # choice of all series, to be added


@dataclass(frozen=True, slots=True)
class Request:
    """Columns, series, zone of times and interval of lines (seconds) that the caller names."""

    counts: tuple[str, ...] = ()
    rates: tuple[str, ...] = ()
    time: str | None = None
    series: tuple[str, ...] = ()
    time_zone: str = ""
    interval: float | None = None


@dataclass(frozen=True, slots=True)
class Roles:
    """Columns of a table by role.

    Attributes:
        times: None, one, or one of dates and one of times of day.
        per: Time that a rate counts in (seconds); None for counts.
    """

    times: tuple[int, ...]
    values: tuple[int, ...]
    per: float | None = None
    labels: tuple[int, ...] = ()


def choose(table: Table, request: Request) -> Roles:
    """Return the columns to read.

    Raises:
        InputError: A column is missing, or the names leave the choice or the meaning open.
    """
    if table.names is None:
        return _without_names(table, request)
    if request.counts and request.rates:
        raise InputError(f"{table.file}: name columns of counts or of rates, not both")
    times = _times(table, request)
    if chosen := tuple(dict.fromkeys(table.named(name) for name in request.counts or request.rates)):
        if both := {*times} & {*chosen}:
            raise InputError(f"{table.file}, line 1: {table.name(both.pop())!r} holds the times")
        per = _unit_of(table, chosen) if request.rates else None
        return Roles(times, chosen, per, _labels(table, request, (*times, *chosen)))
    at, what = _value_column(table, times)
    labels = _labels(table, request, (*times, at))
    if what.kind is Kind.VALUE:
        what = _by_labels(table, request, at, labels)
    if table.queried and what.kind is not Kind.RATE:
        raise _open_meaning(table, at)
    return Roles(times, (at,), what.per if what.kind is Kind.RATE else None, labels)


def _without_names(table: Table, request: Request) -> Roles:
    first = table.rows[0]
    place, cells = f"{table.file}, line {first.number}", [cell.strip() for cell in first.cells]
    if request.counts or request.rates or request.time or request.series:
        raise InputError(f"{table.file}: its first line has no names of columns")
    if len(cells) == 1:
        return Roles((), (0,))
    if len(cells) > 2:
        raise InputError(f"{place}: which of {len(cells)} columns holds the counts is not said: write names above them")
    whole = table.mark == "," and all(cell.isdecimal() for cell in cells)
    if whole and float(cells[0]) < moments.MIN_EPOCH_S:
        raise InputError(
            f"{place}: {','.join(cells)} can be a time and a count, or a number with a decimal comma: write the names "
            "of the columns above them, such as 'seconds,count'"
        )
    if all(cell.isdecimal() and moments.epoch_unit(float(cell)) is not None for cell in map(str.strip, table.column(1))):
        raise InputError(f"{place}: {cells[1]} looks like a time behind a count: write names of the columns above them")
    return Roles((0,), (1,))


def _times(table: Table, request: Request) -> tuple[int, ...]:
    names = table.names or ()
    if request.time is not None:
        return (table.named(request.time),)
    if len(names) == 1:
        return ()
    named = [at for at, name in enumerate(names) if columns.is_time(name)]
    moment = [at for at in named if {*columns.words_in(names[at])} & columns.MOMENTS]
    best = moment or named
    if len(best) > 1:
        best = [at for at in best if "end" not in columns.words_in(names[at])]
    if len(best) == 2 and (pair := _day_and_clock(table, best)):
        return pair
    if len(best) > 1:
        listed = " or ".join(repr(names[at]) for at in best)
        way = f"write {table.file.name}:time={names[best[0]]}"
        raise InputError(f"{table.file}, line 1: that {listed} holds the times is not said: {way}")
    if best:
        return (best[0],)
    first = table.rows[0]
    dated = [at for at, cell in enumerate(first.cells) if moments.is_date(cell)]
    dated += [at for at, cell in enumerate(first.cells) if _is_epoch(names[at], cell)]
    if dated or request.interval is not None:
        return tuple(dated[:1])
    if numerals.is_number(first.cells[0]):
        moments.seconds_of(first.cells[0], None, f"{table.file}, line {first.number}")
    return (0,)


def _is_epoch(name: str, cell: str) -> bool:
    named = {*columns.words_in(name)} & columns.MOMENTS
    return bool(named) and cell.strip().isdecimal() and moments.epoch_unit(float(cell)) is not None


def _day_and_clock(table: Table, pair: Sequence[int]) -> tuple[int, ...]:
    cells = table.rows[0].cells
    for day, clock in (tuple(pair), tuple(pair)[::-1]):
        if moments.is_date(cells[day]) and ":" not in cells[day] and moments.is_clock(cells[clock]):
            return day, clock
    return ()


def _value_column(table: Table, times: tuple[int, ...]) -> tuple[int, Meaning]:
    names = table.names or ()
    numeric = [at for at in range(len(names)) if at not in times and not table.is_text(at)]
    what = {at: columns.meaning(names[at]) for at in numeric if len(numeric) == 1 or not columns.is_label(names[at])}
    unclear = [at for at, each in what.items() if each.kind is Kind.UNCLEAR]
    for kinds in ((Kind.COUNT, Kind.RATE), (Kind.VALUE,), (Kind.NEUTRAL,)):
        fitting = [at for at, each in what.items() if each.kind in kinds]
        if fitting and Kind.COUNT not in kinds:
            fitting += unclear
        if len(fitting) > 1:
            listed = ", ".join(repr(names[at]) for at in fitting)
            ways = _remedies(table, names[fitting[0]])
            raise InputError(f"{table.file}, line 1: which of the columns {listed} holds the counts is not said: {ways}")
        if fitting:
            return fitting[0], what[fitting[0]]
    if not what:
        raise InputError(f"{table.file}, line 1: no column has numbers beside the times")
    raise _open_meaning(table, *what)


def _open_meaning(table: Table, *at: int) -> InputError:
    listed = " or ".join(repr((table.names or ())[each]) for each in at)
    ways = _remedies(table, (table.names or ())[at[0]])
    return InputError(f"{table.file}, line 1: that {listed} holds counts, or records per second, is not said: {ways}")


def _remedies(table: Table, name: str) -> str:
    return f"call it 'count' or 'rate', or write {table.file.name}:count={name} or {table.file.name}:rate={name}"


def _unit_of(table: Table, chosen: Sequence[int]) -> float:
    units = {columns.rate_unit(table.name(at)) for at in chosen}
    if len(units) > 1:
        raise InputError(f"{table.file}: rates of several units cannot be added")
    return units.pop()


def _labels(table: Table, request: Request, others: Sequence[int]) -> tuple[int, ...]:
    """Return the columns that name the series: those called so, or else all recurring texts."""
    names = table.names or ()
    left = [at for at in range(table.width) if at not in others]
    if not request.series:
        left = [at for at in left if len({*table.column(at)}) <= max(1, len(table.rows) / 2)]
    named = tuple(at for at in left if columns.is_label(names[at]))
    return named or tuple(at for at in left if table.is_text(at))


def _by_labels(table: Table, request: Request, value: int, labels: Sequence[int]) -> Meaning:
    """Return the meaning of a column of values by its series' names, which may be those of rates."""
    meanings = set()
    for cells in {tuple(row.cells[at].strip() for at in labels) for row in table.rows}:
        if not request.series or SUM in request.series or {*cells} & {*request.series}:
            meanings |= {columns.meaning(text) for text in cells if columns.says_unit(text)} or {Meaning(Kind.VALUE)}
    if len(meanings) > 1 or any(each.kind in (Kind.UNCLEAR, Kind.OTHER) for each in meanings):
        raise _open_meaning(table, value)
    return meanings.pop() if meanings else Meaning(Kind.VALUE)
