"""Passes compositions to the workers, such that each batch runs under one composition, also when it is replayed.

A composition is encoded as one integer, its code. Elastream's sources copy the code from the file of what is wanted to
their offset, hence to Spark's offset log, from which tasks read it. For foreign sources, a composition log next to the
checkpoint maps batch ids to codes. The control plane chooses compositions.
"""

import functools
import gc
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from elastream.core.observation import Composition
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Kind
from elastream.errors import DataflowError, EnvironmentProblem, InputError
from elastream.recording.formats import marked, unmarked
from elastream.recording.places import Place, names_in, write_whole

WIDEST_POOL = 64
"""Most threads of a waiting operator in one task: the radix of its digit in the code."""

LIVE_TABLES = 255
"""Versions of a key table that a code tells apart. Replays reach back over a hundred batches, which Spark keeps logs of."""

LARGEST_CODE = 2**63 - 1

MARGIN = 2
"""Batches between the newest planned one and the first after a switch of a foreign source: one may be planned meanwhile."""

REPLAYED = 200
"""Batches back that a replay may reach, generously: Spark keeps the logs of the last hundred."""


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of the mixed-radix code: a value from 0 to `radix` - 1, multiplied by `weight`."""

    weight: int
    radix: int

    def of(self, code: int) -> int:
        """Value of this digit in `code`."""
        return code // self.weight % self.radix


class CompositionCodec:
    """Encodes the switchable settings of `graph` as one integer in [0, `size`), `size` <= 2^63 - 1, and decodes it.

    There is one digit per operator with several alternates, per choice with several targets, for the pool width (1 to 64)
    of each waiting operator, and for the version of each key table (`table_digit`). Raises DataflowError if they combine in
    more than 2^63 - 1 ways.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.alternates: dict[str, Digit] = {}
        self.choices: dict[str, Digit] = {}
        self.widths: dict[str, Digit] = {}
        self.tables: dict[str, Digit] = {}
        self.size = 1
        for operator in graph.operators:
            if len(operator.alternates) > 1:
                self.alternates[operator.name] = self._digit(len(operator.alternates))
            if operator.waits and operator.kind is Kind.TRANSFORM:
                self.widths[operator.name] = self._digit(WIDEST_POOL)
        for choice, targets in graph.choices.items():
            if len(targets) > 1:
                self.choices[choice] = self._digit(len(targets))
        for operator in graph.operators:
            if operator.selects:
                self.tables[operator.name] = self._digit(LIVE_TABLES + 1)
        if self.size > LARGEST_CODE:
            raise DataflowError(
                f"dataflow {graph.name!r}: its alternates, choices, key tables and waiting operators combine in "
                f"{self.size:.1e} ways, more than the {LARGEST_CODE:.1e} that one batch can carry; drop some"
            )

    def encode(self, composition: Composition) -> int:
        """The code of `composition`; missing settings are the first alternate, the first target, a pool of 1, and no table.

        Raises DataflowError for an unknown alternate or target, and for a pool width outside 1 to 64.
        """
        code = 0
        for name, digit in self.alternates.items():
            operator = self.graph.operator(name)
            if (wanted := composition.alternates.get(name)) is not None:
                code += operator.alternates.index(operator.alternate(wanted)) * digit.weight
        for name, digit in self.choices.items():
            targets = self.graph.choices[name]
            target = composition.choices.get(name, targets[0])
            if target not in targets:
                raise DataflowError(f"choice {name!r} has no target {target!r} (it has: {', '.join(targets)})")
            code += targets.index(target) * digit.weight
        for name, digit in self.widths.items():
            width = composition.parallelism.get(name, 1)
            if not 1 <= width <= WIDEST_POOL:
                raise DataflowError(f"operator {name!r} has a pool of {width} threads; it must have 1 to {WIDEST_POOL}")
            code += (width - 1) * digit.weight
        return code + sum(
            table_digit(composition.tables.get(name, 0)) * digit.weight for name, digit in self.tables.items()
        )

    def decode(self, code: int, version: int = 0, parallelism: Mapping[str, int] | None = None) -> Composition:
        """The composition of `code`; parallelism: widths of stages, which the code does not contain.

        Of key tables it has the digit, which is their version as long as there were at most 255.
        """
        alternates = {o.name: o.alternates[0].name for o in self.graph.operators if o.alternates}
        for name, digit in self.alternates.items():
            alternates[name] = self.graph.operator(name).alternates[digit.of(code)].name
        choices = {name: targets[0] for name, targets in self.graph.choices.items()}
        for name, digit in self.choices.items():
            choices[name] = self.graph.choices[name][digit.of(code)]
        widths = {name: digit.of(code) + 1 for name, digit in self.widths.items()}
        tables = {name: found for name, digit in self.tables.items() if (found := digit.of(code))}
        return Composition(version, alternates, choices, {**(parallelism or {}), **widths}, tables)

    def _digit(self, radix: int) -> Digit:
        digit = Digit(self.size, radix)
        self.size *= radix
        return digit


def table_digit(version: int) -> int:
    """The digit of a key table in a code: 0 for none, and of two versions the same only if they are 255 or more apart."""
    return 0 if version == 0 else (version - 1) % LIVE_TABLES + 1


def table_version(digit: int, newest: int) -> int:
    """The newest version, of `newest`, that has `digit`."""
    return newest - (newest - digit) % LIVE_TABLES


class Ran(NamedTuple):
    """What a batch ran under: a composition by its version and code. The default one where nothing was ever requested."""

    version: int = 0
    code: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is requested of the next batches of all queries: a composition, and the tasks by name of a source or an edge.

    held: whether sources take no further records, so that what is under way drains.
    """

    version: int = 0
    code: int = 0
    partitions: Mapping[str, int] = field(default_factory=dict)
    held: bool = False

    @property
    def ran(self) -> Ran:
        """The composition."""
        return Ran(self.version, self.code)


def write_wanted(path: Place, wanted: Wanted) -> None:
    """Replace, atomically and for all queries, the file that Elastream's sources and edges read before each batch."""
    write_whole(path, json.dumps(marked(asdict(wanted))).encode())


def read_wanted(path: Place) -> Wanted:
    """Read what `write_wanted` wrote last; the default composition if nothing was written.

    Raises InputError where it is not what was written.
    """
    try:
        return Wanted(**unmarked(json.loads(path.read_text()), path))
    except FileNotFoundError:
        return Wanted()
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}): restore it, or start the run anew") from None


class CompositionLog:
    """Log of the first batch of each composition, for foreign sources: a folder with one small file per entry.

    An entry is written before its first batch is planned, so that all tasks of a batch read the same entry, on every host
    and also when the batch is replayed. Entries that no replay can need are deleted.
    """

    def __init__(self, directory: Place) -> None:
        self.directory = directory

    def append(self, batch: int, version: int, code: int) -> None:
        """Set the code of batches from `batch` on, up to a later entry. `batch` must not be planned yet."""
        entry = {"batch": batch, "version": version, "code": code}
        # Versions increase: of two entries for one batch, both written before it began, the newer one applies.
        write_whole(self.directory / f"{batch:012d}-{version:012d}.json", json.dumps(entry).encode())

    def ran(self, batch: int) -> Ran:
        """What `batch` runs under."""
        reached = [name for name in self._names() if int(name[:12]) <= batch]
        if not reached:
            return Ran()
        entry = json.loads((self.directory / max(reached)).read_text())
        return Ran(int(entry["version"]), int(entry["code"]))

    def newest(self) -> Ran:
        """What batches run under once all entries are reached."""
        return self.ran(10**12)

    def switch(self, checkpoint: Place, version: int, code: int) -> int:
        """Switch a running query to `code`; returns the first batch under it, MARGIN after the newest planned one.

        Raises EnvironmentProblem if the query planned that batch while the entry was being written (this process was
        suspended for two batches): tasks of one batch may then have run under two compositions.
        """
        newest = latest_batch(checkpoint)
        first = newest + MARGIN
        self.append(first, version, code)
        if (planned := latest_batch(checkpoint)) >= first:
            raise EnvironmentProblem(
                f"batch {planned} of {checkpoint} was planned while its composition was being written: this process was "
                "suspended for more than a batch, and batches since then may have run under two compositions"
            )
        self._forget(newest - REPLAYED)
        return first

    def _forget(self, batch: int) -> None:
        """Delete the entries that say nothing of `batch` or a later one."""
        for name in sorted(name for name in self._names() if int(name[:12]) <= batch)[:-1]:
            (self.directory / name).unlink(missing_ok=True)

    def _names(self) -> list[str]:
        try:
            return [name for name in names_in(self.directory) if name.endswith(".json")]
        except FileNotFoundError:
            return []


def latest_batch(checkpoint: Place, log: str = "offsets") -> int:
    """Number of the newest batch planned by the query with this checkpoint; -1 before the first. log: or `commits`."""
    try:
        return max((int(name) for name in names_in(checkpoint / log) if name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1


def offsets_of(checkpoint: Place, batch: int) -> list[Mapping[str, Any]]:
    """The offsets of `batch`, one a source; of a source that writes them in another form than ours, nothing.

    Spark writes the offset log before it runs a batch, and replays a batch from it. Raises FileNotFoundError where it has
    no such entry, or no more.
    """
    return [_offset(line) for line in (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2:]]


def _offset(line: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def newest_ran(offsets: Iterable[Mapping[str, Any]]) -> Ran | None:
    """What the batch that ends at `offsets` runs under; None if no source of Elastream is among its sources.

    The newest version: a source without new records keeps its old offset.
    """
    return max((Ran(int(o["version"]), int(o["code"])) for o in offsets if "version" in o and "code" in o), default=None)


def ran_in_offsets(checkpoint: Place, batch: int) -> Ran | None:
    """What `batch` runs under, as Elastream's sources put it into its offset; None if the query has no such source."""
    return newest_ran(offsets_of(checkpoint, batch))


def code_in_offsets(checkpoint: Place, batch: int) -> int | None:
    """The code in the offset of `batch`; None if the query has no source of Elastream."""
    ran = ran_in_offsets(checkpoint, batch)
    return None if ran is None else ran.code


@functools.cache
def freeze_imports() -> None:
    """Exclude all objects loaded so far from garbage collection; only the first call in a process has an effect.

    PySpark's workers run a full collection after every task. With pandas and Arrow loaded, it visits some 10^5 permanent
    objects: 30 ms of CPU, twice per partition and batch, more than the work of a small batch.
    """
    gc.collect()
    gc.freeze()
