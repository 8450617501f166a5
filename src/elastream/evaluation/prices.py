"""Price lists (CSV) as host types; errors name file and line.

`ec2.csv` is shipped: Amazon's public list prices of EC2, Linux, on demand, in the region and at the date of its lines.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from elastream.core.hosts import UNLIMITED_SLOTS, Billing, HostType
from elastream.documents.user_code import near
from elastream.errors import CloudError, InputError
from elastream.loads.tables import read_lines

# today's clouds bill by the second, at least a minute
PER_SECOND = Billing(1.0, 60.0)
# of the m1.small's core, to which speeds are relative
ECU_PER_STANDARD_CORE = 1.0

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")

SHIPPED = {"ec2": Path(__file__).with_name("ec2.csv")}


def read_prices(
    path: Path | str,
    *,
    only: Sequence[str] = (),
    region: str | None = None,
    billing: Billing = PER_SECOND,
    shapes: Path | str | None = None,
) -> tuple[HostType, ...]:
    """Return the host types of a CSV price list, dearest last, priced per unit of `billing`.

    Columns: `instance_type`, `usd_per_hour` (or `usd_per_hour_linux`), `vcpu`, `memory_gib`, and optionally `speed` of a
    core or `ecu` of all cores (m1.small = 1). The newest `snapshot_date` of a type counts.

    Args:
        path: File, or `"ec2"` for the list that is shipped.
        only: Types to return, in that order.
        shapes: Second list with the columns of cores and memory.

    Raises:
        InputError: With file and line.
    """
    path = SHIPPED.get(str(path), Path(path))
    cores = {} if shapes is None else {row.get("instance_type", ""): row for row in _rows(Path(shapes)).values()}
    if not (rows := _rows(path)):
        raise InputError(f"{path} holds no price: it needs a line per type, below a header with {', '.join(NEEDED)}")
    if region and not any(row.get("region") in (None, region) for row in rows.values()):
        hint = near(region, {row["region"] for row in rows.values() if row.get("region")})
        raise InputError(f"{path} has no region {region!r} in its column 'region'{hint}")
    types: dict[str, HostType] = {}
    newest: dict[str, tuple[str, int]] = {}
    for number, row in rows.items():
        name = row.get("instance_type", "")
        if (only and name not in only) or (region and row.get("region") not in (None, region)):
            continue
        date, place = row.get("snapshot_date", ""), f"{path}, line {number}"
        if date and not _DATE.fullmatch(date):
            raise InputError(f"{place}: the date {date!r} is not one such as 2026-03-01")
        before, line = newest.get(name, ("", 0))
        if line and date == before:
            raise InputError(f"{place}: {name!r} stands in line {line} as well: name a region, or leave one of them out")
        if date < before:
            continue
        newest[name] = date, number
        types[name] = _host_type(name, {**cores.get(name, {}), **row}, billing, place)
    if missing := [name for name in only if name not in types]:
        hint = near(missing[0], {row.get("instance_type") or "" for row in rows.values()} - {""})
        raise InputError(f"{path} has no host type {missing[0]!r} in its column 'instance_type'{hint}")
    return tuple(types[name] for name in only) if only else tuple(sorted(types.values(), key=lambda t: (t.price, t.name)))


def describe(path: Path | str) -> str:
    rows = _rows(SHIPPED.get(str(path), Path(path))).values()
    about = [", ".join(sorted({row[column] for row in rows if row.get(column)})) for column in ("region", "snapshot_date")]
    name = "Amazon EC2, Linux, on demand" if str(path) in SHIPPED else str(path)
    return "; ".join([name, *filter(None, about)])


# columns of a price list; `shapes` may hold vcpu and memory_gib
NEEDED = ("instance_type", "usd_per_hour", "vcpu", "memory_gib")


def _rows(path: Path) -> dict[int, dict[str, str]]:
    lines = read_lines(path)
    _, header = next(lines, (0, []))
    names = [name.strip() for name in header]
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise InputError(f"{path}, line 1: two columns are called {twice[0]!r}")
    rows = {}
    for number, cells in lines:
        if any(cells[len(names) :]):
            raise InputError(f"{path}, line {number}: more fields than names in the first line; a decimal has a point")
        rows[number] = dict(zip(names, map(str.strip, cells), strict=False))
    return rows


def _host_type(name: str, row: Mapping[str, str], billing: Billing, place: str) -> HostType:
    paid = "usd_per_hour" if row.get("usd_per_hour") else "usd_per_hour_linux"
    hourly = row.get(paid)
    if not name or hourly is None:
        raise InputError(f"{place}: a price list needs the columns instance_type and usd_per_hour")
    if not row.get("vcpu") or not row.get("memory_gib"):
        raise InputError(f"{place}: how many cores and how much memory {name!r} has is not said (columns vcpu, memory_gib)")

    def number(column: str) -> float:
        try:
            value = float(row[column])
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise InputError(f"{place}: {column} of {name!r} is {row[column].strip()!r}; it must be a number of 0 or more")
        return value

    cores, memory, price = number("vcpu"), number("memory_gib") * 2**30 / 1e6, number(paid)
    by_ecu = number("ecu") / cores / ECU_PER_STANDARD_CORE if row.get("ecu") and cores > 0 else 1.0
    speed = number("speed") if row.get("speed") else by_ecu
    try:
        return HostType(
            name, cores=cores, memory=memory, speed=speed, price=price * billing.unit / 3600, billing=billing,
            slots=UNLIMITED_SLOTS,
        )  # fmt: skip
    except CloudError as error:
        raise CloudError(f"{place}: {error}") from None
