"""Compositions on their way to the workers. Each batch runs under exactly one, also in a replay.

A composition is encoded as one integer, its code, in the offsets of Elastream's sources or, for foreign sources, in a log
beside the checkpoint.
"""

import functools
import gc
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from elastream.core.observation import Composition
from elastream.dataflow.code import code_of
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Kind
from elastream.errors import DataflowError, EnvironmentProblem, InputError
from elastream.recording.formats import marked, unmarked
from elastream.recording.paths import AnyPath, names_in, write_whole

# Threads of a waiting operator in one task: the radix of its digit in the code.
MAX_POOL_THREADS = 64

# Versions of a key table that a code distinguishes. Replays reach back about the hundred batches of Spark's logs.
MAX_LIVE_TABLES = 255

LARGEST_CODE = 2**63 - 1

# Versions of the operators' code in one run. Their digit stands above those of the start, and below those of the
# alternates of a later version: the codes of runs without updates need no version.
MAX_CODE_VERSIONS = 2**15

# Batches between the newest planned one and a switch of a foreign source: one more may be planned meanwhile.
SWITCH_MARGIN_BATCHES = 2

# Batches that a replay may reach back, generously: Spark keeps the logs of the last hundred.
REPLAY_WINDOW_BATCHES = 200


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of the mixed-radix code, from 0 to `radix` - 1, times `weight`."""

    weight: int
    radix: int

    def of(self, code: int) -> int:
        return code // self.weight % self.radix


@dataclass(frozen=True, slots=True)
class _Version:
    """A version of the code: version by operator, names and digits of alternates."""

    code: Mapping[str, int]
    names: Mapping[str, Sequence[str]]
    digits: Mapping[str, Digit]

    def encode(self, alternates: Mapping[str, str]) -> int:
        code = 0
        for name, digit in self.digits.items():
            names = self.names[name]
            if (alternate := alternates.get(name, names[0])) not in names:
                raise DataflowError(f"operator {name!r} has no alternate {alternate!r} (it has: {', '.join(names)})")
            code += names.index(alternate) * digit.weight
        return code

    def decode(self, code: int) -> dict[str, str]:
        none = Digit(1, 1)
        return {name: each[self.digits.get(name, none).of(code)] for name, each in self.names.items()}


NO_VERSION = _Version({}, {}, {})


class CompositionCodec:
    """Encodes the switchable settings of `graph` as an integer and decodes it.

    Versions of the operators' code are added by `learn`. Raises DataflowError above 2^63 - 1 combinations.

    Attributes:
        size: Number of combinations with the code of the start.
        version: Digit of the version of the code; None if the code stays.
    """

    def __init__(self, graph: Graph, *, updates: bool = False) -> None:
        self.graph = graph
        self.alternates: dict[str, Digit] = {}
        self.choices: dict[str, Digit] = {}
        self.widths: dict[str, Digit] = {}
        self.tables: dict[str, Digit] = {}
        self._learned: dict[int, _Version] = {}
        self.size = 1
        for operator in graph.operators:
            if len(operator.alternates) > 1:
                self.alternates[operator.name] = self._digit(len(operator.alternates))
            if operator.waits and operator.kind is Kind.TRANSFORM:
                self.widths[operator.name] = self._digit(MAX_POOL_THREADS)
        for choice, targets in graph.choices.items():
            if len(targets) > 1:
                self.choices[choice] = self._digit(len(targets))
        for operator in graph.operators:
            if operator.selects:
                self.tables[operator.name] = self._digit(MAX_LIVE_TABLES + 1)
        if self.size > LARGEST_CODE:
            raise DataflowError(
                f"dataflow {graph.name!r}: its alternates, choices, key tables and waiting operators combine in "
                f"{self.size:.1e} ways, more than the {LARGEST_CODE:.1e} that one batch can carry; drop some"
            )
        versions = updates and bool(code_of(graph)) and self.size * MAX_CODE_VERSIONS <= LARGEST_CODE
        self.version = Digit(self.size, MAX_CODE_VERSIONS) if versions else None

    @property
    def varies(self) -> bool:
        """True if batches may run under different compositions."""
        return self.size > 1 or self.version is not None

    def learn(self, version: int, code: Mapping[str, int], names: Mapping[str, Sequence[str]]) -> None:
        """Add a version of the code with its alternates' names by operator. Raises DataflowError."""
        size, digits = self.size * MAX_CODE_VERSIONS, dict[str, Digit]()
        for name, alternates in names.items():
            if len(alternates) > 1:
                digits[name] = Digit(size, len(alternates))
                size *= len(alternates)
        if size > LARGEST_CODE or version >= MAX_CODE_VERSIONS or self.version is None:
            raise DataflowError(
                f"dataflow {self.graph.name!r}: version {version} of the code combines in {size:.1e} ways, more than the "
                f"{LARGEST_CODE:.1e} that one batch can carry; it may have {MAX_CODE_VERSIONS - 1} versions"
            )
        self._learned[version] = _Version(code, names, digits)

    def digits_of(self, version: int) -> Mapping[str, Digit]:
        """Return the digits of a version by operator."""
        return self._learned[version].digits

    def encode(self, composition: Composition) -> int:
        """Return the code of `composition`, missing settings at their first value. Raises DataflowError."""
        learned = self._learned[composition.code_version] if composition.code_version else NO_VERSION
        code = composition.code_version * self.size + learned.encode(composition.alternates)
        for name, digit in self.alternates.items():
            operator = self.graph.operator(name)
            if name not in learned.names and (alternate := composition.alternates.get(name)) is not None:
                code += operator.alternates.index(operator.alternate(alternate)) * digit.weight
        for name, digit in self.choices.items():
            targets = self.graph.choices[name]
            target = composition.choices.get(name, targets[0])
            if target not in targets:
                raise DataflowError(f"choice {name!r} has no target {target!r} (it has: {', '.join(targets)})")
            code += targets.index(target) * digit.weight
        for name, digit in self.widths.items():
            width = composition.parallelism.get(name, 1)
            if not 1 <= width <= MAX_POOL_THREADS:
                raise DataflowError(
                    f"operator {name!r} has a pool of {width} threads; it must have 1 to {MAX_POOL_THREADS}"
                )
            code += (width - 1) * digit.weight
        return code + sum(
            table_digit(composition.tables.get(name, 0)) * digit.weight for name, digit in self.tables.items()
        )

    def decode(self, code: int, version: int = 0, parallelism: Mapping[str, int] | None = None) -> Composition:
        """Return the composition of `code`, with stage widths from `parallelism` and tables by their digit."""
        alternates = {o.name: o.alternates[0].name for o in self.graph.operators if o.alternates}
        for name, digit in self.alternates.items():
            alternates[name] = self.graph.operator(name).alternates[digit.of(code)].name
        learned = self._learned.get(self.version.of(code), NO_VERSION) if self.version else NO_VERSION
        alternates |= learned.decode(code)
        choices = {name: targets[0] for name, targets in self.graph.choices.items()}
        for name, digit in self.choices.items():
            choices[name] = self.graph.choices[name][digit.of(code)]
        widths = {name: digit.of(code) + 1 for name, digit in self.widths.items()}
        tables = {name: version_digit for name, digit in self.tables.items() if (version_digit := digit.of(code))}
        return Composition(version, alternates, choices, {**(parallelism or {}), **widths}, tables, dict(learned.code))

    def _digit(self, radix: int) -> Digit:
        digit = Digit(self.size, radix)
        self.size *= radix
        return digit


def table_digit(version: int) -> int:
    """Return the digit of a table's version, 0 for none. Digits repeat after 255 versions."""
    return 0 if version == 0 else (version - 1) % MAX_LIVE_TABLES + 1


def table_version(digit: int, newest: int) -> int:
    return newest - (newest - digit) % MAX_LIVE_TABLES


class BatchComposition(NamedTuple):
    """Version and code of a batch's composition, by default the initial one."""

    version: int = 0
    code: int = 0


@dataclass(frozen=True, slots=True)
class CompositionRequest:
    """The request for the next batches of all queries.

    Attributes:
        partitions: Tasks by source or edge.
        paused: True if sources take no further records.
    """

    version: int = 0
    code: int = 0
    partitions: Mapping[str, int] = field(default_factory=dict)
    paused: bool = False

    @property
    def composition(self) -> BatchComposition:
        return BatchComposition(self.version, self.code)


def write_request(path: AnyPath, request: CompositionRequest) -> None:
    """Replace the request that sources and edges read before each batch, atomically."""
    content = asdict(request)
    content["held"] = content.pop("paused")
    write_whole(path, json.dumps(marked(content)).encode())


def read_request(path: AnyPath) -> CompositionRequest:
    """Return the last request, or the default. Raises InputError for a damaged file."""
    try:
        content = unmarked(json.loads(path.read_text()), path)
        return CompositionRequest(paused=content.pop("held", False), **content)
    except FileNotFoundError:
        return CompositionRequest()
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}): restore it, or start the run anew") from None


class CompositionLog:
    """Log of the first batch of each composition, for foreign sources.

    Entries are written before that batch is planned, so that all tasks and replays agree.
    """

    def __init__(self, directory: AnyPath) -> None:
        self.directory = directory

    def append(self, batch: int, version: int, code: int) -> None:
        """Set the code from `batch` on, which must not be planned yet."""
        entry = {"batch": batch, "version": version, "code": code}
        # Versions increase: of two entries for one batch the newer one applies. Both precede the batch.
        write_whole(self.directory / f"{batch:012d}-{version:012d}.json", json.dumps(entry).encode())

    def at(self, batch: int) -> BatchComposition:
        reached = [name for name in self._names() if int(name[:12]) <= batch]
        if not reached:
            return BatchComposition()
        entry = json.loads((self.directory / max(reached)).read_text())
        return BatchComposition(int(entry["version"]), int(entry["code"]))

    def newest(self) -> BatchComposition:
        return self.at(10**12)

    def switch(self, checkpoint: AnyPath, version: int, code: int) -> int:
        """Switch a running query to `code` and return the first batch under it.

        Raises EnvironmentProblem if that batch may have run under two compositions.
        """
        newest = latest_batch(checkpoint)
        first = newest + SWITCH_MARGIN_BATCHES
        self.append(first, version, code)
        if (planned := latest_batch(checkpoint)) >= first:
            raise EnvironmentProblem(
                f"batch {planned} of {checkpoint} was planned while its composition was being written: this process was "
                "suspended for more than a batch, and batches since then may have run under two compositions"
            )
        self._forget(newest - REPLAY_WINDOW_BATCHES)
        return first

    def _forget(self, batch: int) -> None:
        for name in sorted(name for name in self._names() if int(name[:12]) <= batch)[:-1]:
            (self.directory / name).unlink(missing_ok=True)

    def _names(self) -> list[str]:
        try:
            return [name for name in names_in(self.directory) if name.endswith(".json")]
        except FileNotFoundError:
            return []


def latest_batch(checkpoint: AnyPath, log: str = "offsets") -> int:
    """Return the newest batch in a checkpoint's `log` (`offsets` or `commits`), or -1."""
    try:
        return max((int(name) for name in names_in(checkpoint / log) if name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1


def offsets_of(checkpoint: AnyPath, batch: int) -> list[Mapping[str, Any]]:
    """Return the end offset of each source in `batch`, empty for foreign ones. Raises FileNotFoundError."""
    return [_offset(line) for line in (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2:]]


def _offset(line: str) -> Mapping[str, Any]:
    try:
        offset = json.loads(line)
    except ValueError:
        return {}
    return offset if isinstance(offset, dict) else {}


def newest_composition(offsets: Iterable[Mapping[str, Any]]) -> BatchComposition | None:
    """Return the composition in `offsets`; None without a source of Elastream."""
    # A source without new records keeps its old offset.
    return max(
        (BatchComposition(int(o["version"]), int(o["code"])) for o in offsets if "version" in o and "code" in o),
        default=None,
    )


def composition_in_offsets(checkpoint: AnyPath, batch: int) -> BatchComposition | None:
    """Return the composition in the offsets of `batch`; None without Elastream's sources."""
    return newest_composition(offsets_of(checkpoint, batch))


def code_in_offsets(checkpoint: AnyPath, batch: int) -> int | None:
    """Return the code in the offsets of `batch`; None without Elastream's sources."""
    composition = composition_in_offsets(checkpoint, batch)
    return None if composition is None else composition.code


@functools.cache
def freeze_imports() -> None:
    """Exclude all objects loaded so far from garbage collection, once a process."""
    # PySpark's workers run a full collection after every task. With pandas and Arrow loaded it visits 10^5 permanent
    # objects: 30 ms of CPU, twice for each partition and batch.
    gc.collect()
    gc.freeze()
