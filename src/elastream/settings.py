"""Settings of `run`, `simulate`, `Autopilot` and the command line.

Keywords, options, document keys and the reference page derive from the fields below.
"""

import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    dataclass_transform,
    get_args,
    overload,
)

from elastream.core.hosts import HostType, PriceList
from elastream.core.scaling import NO_RULES, ScalingRules
from elastream.core.width import RepartitionRule
from elastream.dataflow.endpoints import ArrivalPattern, KafkaTopic
from elastream.dataflow.key_table import KeyTable
from elastream.errors import ElastreamError, InputError
from elastream.recording.parts import RETENTION
from elastream.units import duration, pause

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from elastream.clouds.provider import Cloud, Provider
    from elastream.core.plant import Policy
    from elastream.loads import LinkSource, SpeedSource
    from elastream.recording.observer import Observer

# Spark's default store in the heap, or RocksDB for state that the heap cannot hold. On disk a batch and a move cost more.
StateStore = Literal["memory", "disk"]
# Modes of `elastream.core.composition.Consistency`.
Mode = Literal["batch", "wave", "drain", "rewired"]

# Headings of options in help.
GOAL, HOSTS, DATAFLOW = "Goal and policy", "Hosts and Spark", "Dataflow and state"
FOLDER, WATCH, SIMULATION = "Run and its folder", "Output and monitoring", "Simulation"

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")

LAST_PORT = 65_535
LARGEST_SEED = 2**32 - 1
# The driver plans each of them in each batch.
MAX_STATE_PARTITIONS = 100_000


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


class Kind:
    """A kind of value. The base class checks types only.

    Attributes:
        requirement: Description of an accepted value, for errors.
    """

    unit = ""

    def __init__(self, types: tuple[type, ...] = (), requirement: str = "") -> None:
        self.types, self.requirement = types, requirement

    def accepts(self, value: object) -> bool:
        if not self.types:
            return True
        return isinstance(value, self.types) and not (isinstance(value, bool) and bool not in self.types)

    def read(self, name: str, value: Any, optional: bool = False) -> Any:
        """Return the value of `name` in its base unit. Raises InputError."""
        if not self.accepts(value):
            raise self._refusal(name, value, optional)
        return value

    def _refusal(self, name: str, value: object, optional: bool = False) -> InputError:
        return InputError(f"{name} is {shown(value)}; it must be {self.requirement}{', or None' * optional}", (name,))


class Text(Kind):
    def __init__(self, metavar: str = "TEXT") -> None:
        super().__init__()
        self.metavar = metavar


class PathOf(Kind):
    unit = "path"

    def __init__(self, metavar: str = "FILE") -> None:
        super().__init__((str, Path), "a path")
        self.metavar = metavar


class Flag(Kind):
    """True or False. `switch` replaces the option's name on the command line."""

    unit = "True or False"

    def __init__(self, switch: str = "") -> None:
        super().__init__((bool,), "True or False")
        self.switch = switch


class Rules(Kind):
    unit = "`ScalingRules`"

    def __init__(self) -> None:
        super().__init__((ScalingRules,), "ScalingRules")


class Repartitions(Kind):
    unit = "mapping of `when` and `longest_pause`"

    def read(self, name: str, value: Any, optional: bool = False) -> RepartitionRule:
        return RepartitionRule.of(name, value)


class SparkSettings(Kind):
    """Settings of Spark by name, on the command line as `KEY=VALUE`."""

    unit = "mapping of Spark's names to values"

    def read(self, name: str, value: Any, optional: bool = False) -> Mapping[str, str]:
        if isinstance(value, Mapping):
            return {str(key): _spark_text(each) for key, each in value.items()}
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise InputError(f"{name} is {shown(value)}; it must be a mapping of Spark's names to values", (name,))
        pairs = [str(pair).partition("=") for pair in value]
        for key, equals, _ in pairs:
            if not equals or not key.strip():
                raise InputError(f"--setting {key}: it is not KEY=VALUE, such as spark.executor.memory=2g", (name,))
        return {key.strip(): text.strip() for key, _, text in pairs}


def _spark_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class ListOf(Kind):
    """A list of `item`. With `single`, one item stands for a list of it."""

    def __init__(self, item: type, requirement: str, single: bool = False) -> None:
        super().__init__((), requirement)
        self.item, self.single = item, single

    def read(self, name: str, value: Any, optional: bool = False) -> Any:
        several = isinstance(value, Iterable) and not isinstance(value, str)
        if not several and not self.single:
            raise self._refusal(name, value)
        items = tuple(value) if several else (value,)
        for each in items:
            if not isinstance(each, self.item):
                raise self._refusal(name, each)
        return items


class Whole(Kind):
    """A whole number from `least` to `most`; `why` explains `most`."""

    unit = "whole number"

    def __init__(self, least: int | None = None, most: int | None = None, why: str = "", requirement: str = "") -> None:
        super().__init__((), requirement)
        self.least, self.most, self.why = least, most, why

    def read(self, name: str, value: Any, optional: bool = False) -> int:
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if whole and (self.least is None or int(value) >= self.least) and (self.most is None or int(value) <= self.most):
            return int(value)
        if whole and self.why and self.most is not None and int(value) > self.most:
            raise InputError(f"{name} is {value:,}; at most {self.most:,} are possible: {self.why}", (name,))
        text = self.requirement or "a whole number"
        if not self.requirement and self.least is not None:
            text += f", {self.least} or more" if self.most is None or self.why else f" from {self.least} to {self.most}"
        text += ", or None" * (optional and self.least is None)
        raise InputError(f"{name} is {shown(value)}; it must be {text}", (name,))


class Fraction(Kind):
    unit = "0 to 1"

    def __init__(self) -> None:
        super().__init__((), "a fraction between 0 and 1")

    def accepts(self, value: object) -> bool:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 <= float(value) <= 1


class Seconds(Kind):
    """A duration: seconds, or text such as `"2s"`.

    Attributes:
        positive: True if it must be above 0 and finite.
    """

    unit = "duration"

    def __init__(self, positive: bool = False, between: str = "") -> None:
        super().__init__()
        self.positive, self.between = positive, between

    def read(self, name: str, value: Any, optional: bool = False) -> float:
        try:
            seconds = pause(value, self.between) if self.between else duration(value)
        except ElastreamError as error:
            raise InputError(f"{name}: {error}", (name,)) from error
        if self.positive and not 0 < seconds < float("inf"):
            raise InputError(f"{name} is {value!r}; it must be more than 0", (name,))
        return seconds


class Choice(Kind):
    metavar = "NAME"

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names

    def read(self, name: str, value: Any, optional: bool = False) -> str:
        if not isinstance(value, str) or value not in self.names:
            raise InputError(f"{name} {value!r} is none of {', '.join(self.names)}", (name,))
        return str(value)


class ModeName(Choice):
    """A mode of consistency, which the plant checks: a simulation has one more than a run."""

    metavar = "MODE"

    def read(self, name: str, value: Any, optional: bool = False) -> Any:
        return value


class Address(NamedTuple):
    """Host and port to listen at. The host is empty for the default one."""

    host: str
    port: int


class Listen(Kind):
    """An `Address`: a port, `host:port`, or text of these."""

    unit = "port, or `host:port`"

    def __init__(self) -> None:
        super().__init__((), f"a port from 0 to {LAST_PORT}, or host:port, such as 0.0.0.0:9400")

    def read(self, name: str, value: Any, optional: bool = False) -> Address:
        if isinstance(value, Address):
            return value
        if not isinstance(value, int | str) or isinstance(value, bool):
            raise self._refusal(name, value)
        host, colon, port = str(value).strip().rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        open_end = (colon and not bare) or (":" in host and bare == host)  # an IPv6 address stands in brackets
        if open_end or not (port.isascii() and port.isdecimal()) or int(port) > LAST_PORT:
            raise self._refusal(name, value)
        return Address(bare, int(port))


class Registry(Kind):
    def __init__(self) -> None:
        super().__init__((), "a registry of prometheus_client")

    def accepts(self, value: object) -> bool:
        return callable(getattr(value, "register", None))


class Setting(NamedTuple):
    """The declaration of a setting, beside its name, type and default.

    Attributes:
        help: Text for the command line, the reference page and docstrings.
        kind: Kind of value, which checks it.
        key: True for a key at the top of a document.
        lasting: True if a resumed run keeps the option.
        group: Heading of the option in a command's help; empty for none on the command line.
    """

    help: str
    kind: Kind
    key: bool = False
    lasting: bool = True
    group: str = ""


def setting(help: str, kind: Kind | None = None, *, default: Any = MISSING, group: str = "", **about: bool) -> Any:
    """Return the field of a setting. `about`: further fields of its `Setting`."""
    return field(default=default, metadata={"setting": Setting(help, kind or Kind(), group=group, **about)})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
def declares(cls: type[T]) -> type[T]:
    return dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)


def settings_of(declaring: type) -> Mapping[str, Setting]:
    return {each.name: each.metadata["setting"] for each in fields(declaring)}


PLAN, OBSERVATION = Seconds(between="plan"), Seconds(between="observation")


@declares
class Settings:
    """Settings of `run`, `simulate` and `Autopilot`."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    target_latency: float | str | None = setting(
        "Service level: time from a record's due time until the first query that reads it commits its result.",
        Seconds(positive=True),
        default=None,
        key=True,
        group=GOAL,
    )
    replicas: int = setting(
        "Standby replicas of each state partition on other hosts. A lost host then costs a pause of one batch,"
        " without loading state.",
        Whole(least=0),
        default=0,
        key=True,
        group=DATAFLOW,
    )
    scaling: ScalingRules = setting(
        "Rules for the number of hosts, for any policy. On the command line KEY=VALUE, such as max_scale_up=1, "
        "replaces the file's rule. An empty value removes it. Repeatable.",
        Rules(),
        default=NO_RULES,
        group=HOSTS,
    )

    def __post_init__(self) -> None:
        for name, setting in settings_of(type(self)).items():
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value is not None or default not in (None, MISSING):
                object.__setattr__(self, name, setting.kind.read(name, value, default is None))

    @property
    def latency(self) -> float | None:
        """The target latency in seconds; None without one."""
        return None if self.target_latency is None else float(self.target_latency)


@declares
class DataflowSettings(Settings):
    state_partitions: int | None = setting(
        "State partitions of each keyed operator, fixed for the life of a checkpoint. Default: two per slot of the "
        "largest cluster, or ten per host under policy `ring`. A simulation counts at most twice the hosts that "
        "the load's peak fills.",
        Whole(least=1, most=MAX_STATE_PARTITIONS, why="each is a task of every batch"),
        default=None,
        key=True,
        group=DATAFLOW,
    )
    guards: Path | str | None = setting(
        "File of guards: which alternates and branches may run. `elastream guards set` replaces them during a run.",
        PathOf(),
        default=None,
        key=True,
        group=DATAFLOW,
    )
    tables: Sequence[KeyTable] = setting(
        "Key tables: which alternate runs for which key. `elastream tables set` replaces them during a run.",
        ListOf(KeyTable, "key tables, KeyTable(...)", single=True),
        default=(),
    )
    consistency: Mode = setting(
        "Composition that records between two queries meet during a change: batch, wave or drain; simulations "
        "also have rewired. See `elastream.core.composition.Consistency`.",
        ModeName(get_args(Mode)),
        default="batch",
        key=True,
        group=DATAFLOW,
    )
    show: bool = setting(
        "Show progress and summary: live on a terminal or in a notebook, otherwise as lines.", Flag(), default=True
    )


@declares
class LiveSettings(Settings):
    policy: "Policy | str | None" = setting(
        'Policy, or text such as `"static:4"`: `Horizon()` by default for `run`, `ByLoad()` for `Autopilot`.',
        default=None,
    )
    observers: Sequence["Observer"] = setting("Objects that receive every observation and decision.", default=())
    page: bool = setting(
        "Serve a live page of the run on this machine, at an address that is printed.",
        Flag(),
        default=False,
        group=WATCH,
        lasting=False,
    )
    retention: float | str = setting(
        "Time for which observations, decisions and changes of updated results stay on disk. Figures of the whole"
        " run stay.",
        Seconds(),
        default=RETENTION,
        key=True,
        group=FOLDER,
    )


@declares
class RunSettings(DataflowSettings, LiveSettings):
    cloud: "Cloud | None" = setting(
        "Where hosts come from, such as `Local()`. Default: `InProcess()`, which runs in this process.", default=None
    )
    state_store: StateStore = setting(
        'Where executors keep state: `"memory"`, or `"disk"` for more than fits there.',
        Choice(names=("memory", "disk")),
        default="memory",
        key=True,
    )
    repartition: RepartitionRule | Mapping[str, Any] | None = setting(
        "Lets a run repartition its state once too few partitions have kept records late for a day: in minutes that the "
        "cron expression `when` matches, with a pause of at most `longest_pause`.",
        Repartitions(),
        default=None,
        key=True,
    )
    freshness: float | str | None = setting(
        "Longest time from the arrival of a record until it is committed. Between bounded runs no host is leased. It "
        "replaces `target_latency` and the policy.",
        Seconds(positive=True),
        default=None,
        key=True,
        group=GOAL,
    )
    batch: float | str | None = setting(
        "Target duration of a micro-batch. Default: a part of the target latency.", Seconds(), default=None
    )
    monitor: float | str = setting("Time between observations.", OBSERVATION, default="1s")
    period: float | str = setting("Time between plans.", PLAN, default="2s")
    warm_up: bool = setting("Warm up new executors before they get tasks.", Flag(), default=True)
    ports: range | None = setting(
        "Ports to use; the first two are those of the master and its web page. Default: free ones.", default=None
    )
    settings: Mapping[str, str] | None = setting(
        "Further Spark settings, which override all others. On the command line KEY=VALUE, added to FILE's. Repeatable.",
        SparkSettings(),
        default=None,
        key=True,
        group=HOSTS,
    )
    currency: str = setting('Currency of all prices, such as `"EUR"`.', Text(), default="", key=True)
    runs: Path | str = setting(
        "Folder for the run's own folder, or an address (hdfs://...) that executors read and write. With an "
        "address, the driver's files lie below `runs` here and are copied there.",
        PathOf(metavar="DIR"),
        default="runs",
        group=FOLDER,
        lasting=False,
    )
    limit: float | str | None = setting(
        "End the run this long after its hosts and queries have started, such as 3min.",
        Seconds(positive=True),
        default=None,
        group=FOLDER,
        lasting=False,
    )
    resume: Path | str | None = setting(
        "Resume a run that was stopped, failed or killed, by its folder or address. It keeps its state, offsets, "
        "composition, results and leases.",
        PathOf(metavar="RUN"),
        default=None,
        group=FOLDER,
        lasting=False,
    )
    fresh: bool = setting(
        "Replace an earlier run's results in the sinks. Without it, such results are an error.",
        Flag(),
        default=False,
        group=FOLDER,
        lasting=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume is not None and self.fresh:
            raise InputError("a resumed run keeps its results: leave out either resume or fresh")
        if self.freshness is not None and self.target_latency is not None:
            raise InputError(
                "freshness and target_latency are two service levels of one run: leave one out", ("freshness",)
            )


@declares
class ExportSettings:
    metrics: Address | int | str | None = setting(
        "Port, or host:port, at which Prometheus metrics are served. The host of a bare port is 127.0.0.1, in a "
        "container 0.0.0.0.",
        Listen(),
        default=None,
        group=WATCH,
        lasting=False,
    )
    metrics_port: int | None = setting(
        "Older name of `metrics` with a bare port, until 0.3.",
        Whole(least=0, most=LAST_PORT, requirement=f"a port, 0 to {LAST_PORT}"),
        default=None,
        group=WATCH,
        lasting=False,
    )
    events: Path | str | None = setting(
        "File to which events are appended as JSON lines. -: standard error.",
        PathOf(),
        default=None,
        group=WATCH,
        lasting=False,
    )


@declares
class CommandSettings(RunSettings, ExportSettings):
    """Settings of `elastream run`, beyond those of `run`."""

    input: str | None = setting(
        "Read this file or folder instead of the dataflow's.",
        Text(metavar="PATH"),
        default=None,
        group=DATAFLOW,
    )
    observe_only: bool = setting("Plan and record, but apply no action.", Flag(), default=False, group=GOAL, lasting=False)
    record: Path | None = setting(
        "Write a second copy of the recording.", PathOf(), default=None, group=FOLDER, lasting=False
    )
    live: bool = setting(
        "Live view, or a line every 10 s.",
        Flag(switch="--live/--no-live"),
        default=True,
        group=WATCH,
        lasting=False,
    )
    report: Path | None = setting(
        "File of the report. Default: in the run's folder.", PathOf(), default=None, group=WATCH, lasting=False
    )
    traces: bool = setting(
        "Create OpenTelemetry spans of rounds and actions, for the SDK that the program sets up.",
        Flag(),
        default=False,
        group=WATCH,
        lasting=False,
    )


@declares
class SimulateSettings(DataflowSettings):
    cloud: "Cloud | None" = setting(
        "Cloud whose hosts are leased, such as `Local(...)`; operators are chained, as on Spark.", default=None
    )
    host_types: Sequence[HostType] | HostType = setting(
        "Hosts to lease instead of the cloud's, such as those of a price list by `read_prices`.",
        ListOf(HostType, "a HostType, or several", single=True),
        default=(),
    )
    load: ArrivalPattern | str | Path | None = setting(
        "Load of every source instead of its own: a pattern, a recorded load (FILE.csv[:rate=COLUMN,...]), a YAML file, "
        "or text such as 50/s.",
        Text(metavar="LOAD"),
        default=None,
        group=SIMULATION,
    )
    limit: float | str | None = setting(
        "Length of the simulated part of the load, from its start. Default: until the load ends.",
        Seconds(positive=True),
        default=None,
        group=SIMULATION,
    )
    target: float = setting("Fraction of records that must be in time.", Fraction(), default=0.95, group=GOAL)
    bound: bool = setting(
        "Also compute the least cost that any policy could have on this load, and the best constant fleet in hindsight.",
        Flag(),
        default=False,
        group=SIMULATION,
    )
    max_hosts: int | None = setting(
        "Most hosts at once. Default: the cloud's, or 1000.", Whole(least=1), default=None, group=HOSTS
    )
    min_hosts: int | None = setting("Fewest hosts at once. Default: the cloud's.", Whole(), default=None)
    calibrate: Path | str | None = setting(
        "Folder of a run on Spark that supplies measured costs and hosts. Without FILE, the command line replays"
        " it and prints the drift.",
        PathOf(metavar="RUN"),
        default=None,
        group=SIMULATION,
    )
    fused: bool | None = setting(
        "Chain operators into micro-batches as on Spark, or give each a queue. Queues are the default with "
        "--prices or without a cloud.",
        Flag(switch="--fused/--apart"),
        default=None,
        group=SIMULATION,
    )
    period: float | str | None = setting(
        "Time between two plans. Default: 2s if chained, else 60s.", PLAN, default=None, group=SIMULATION
    )
    speeds: "SpeedSource | str | Path | None" = setting(
        "Speeds of hosts over time, as factors on their types' speeds: walk, ec2 or spread, with :key=value,..., "
        "a CSV file, or an object such as `SpeedWalk(seed=3)`.",
        Text(metavar="WALK"),
        default=None,
        group=HOSTS,
    )
    links: "LinkSource | str | Path | None" = setting(
        "Latency and bandwidth between hosts over time, for operators with queues: ec2[:key=value,...], a CSV "
        "file, or an object such as `Ec2Links()`.",
        Text(metavar="WALK"),
        default=None,
        group=HOSTS,
    )
    seed: int = setting(
        "Seed of all random numbers except those of speeds and links.",
        Whole(least=0, most=LARGEST_SEED),
        default=1,
        group=SIMULATION,
    )

    @property
    def types(self) -> tuple[HostType, ...]:
        return (self.host_types,) if isinstance(self.host_types, HostType) else tuple(self.host_types)


@declares
class AutopilotSettings(LiveSettings, ExportSettings):
    max_hosts: int | None = setting(
        "Most executors requested from Spark as the load requires. Default: none is requested.",
        Whole(),
        default=None,
        group=HOSTS,
    )
    min_hosts: int = setting("Fewest executors.", Whole(), default=1, group=HOSTS)
    cloud: "Cloud | Provider | None" = setting(
        "Hosts to lease instead of executors: a cloud as for `run`, or a running provider, which the caller closes. "
        "They join the session's Standalone master.",
        default=None,
    )
    host_type: HostType | None = setting(
        "Host type to lease. Default: the cloud's.", Kind((HostType,), "a HostType"), default=None
    )
    period: float | str = setting("Time between observations, and between plans.", OBSERVATION, default="5s", group=GOAL)
    observe_only: bool = setting("Log actions without applying them.", Flag(), default=False, group=GOAL)
    show: bool = setting(
        "Write decisions and a summary as lines on stderr, unless the program configures logging.", Flag(), default=True
    )
    registry: "CollectorRegistry | None" = setting(
        "Registry in which Prometheus metrics are registered.", Registry(), default=None
    )
    folder: Path | str | None = setting(
        "Folder for a recording and a journal, for `result`, `elastream explain` and `elastream report`. Lines on"
        " stderr name it.",
        PathOf(metavar="DIR"),
        default=None,
        group=FOLDER,
    )
    restore: Literal["leave", "original"] = setting(
        'Executors at the end: they stay (`"leave"`), or Autopilot restores their original number (`"original"`).',
        Choice(names=("leave", "original")),
        default="leave",
        group=HOSTS,
    )
    drain_timeout: float | str = setting(
        "Longest wait for other jobs' work on a leaving executor. Then it is cut off, and a line names it. Work without a"
        " known end is never cut off.",
        Seconds(),
        default="1h",
        group=HOSTS,
    )
    until: Literal["queries", "session"] = setting(
        'When Autopilot ends: with the last watched query, or with the `"session"`, as for a loop of `availableNow`'
        " queries.",
        Choice(names=("queries", "session")),
        default="queries",
        group=HOSTS,
    )
    prices: PriceList | None = setting(
        "Price of executors by core and gigabyte; hosts of a cloud have their own.",
        Kind((PriceList,), "a PriceList"),
        default=None,
    )
    commits: Sequence[KafkaTopic] = setting(
        'Kafka topics with a group, `kafka("orders", "broker:9092", group="orders-app")`. Offsets that the '
        "queries have read are committed to them, for tools that watch lag.",
        ListOf(KafkaTopic, "a list of Kafka topics, kafka(...)"),
        default=(),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_hosts < 1 or (self.max_hosts is not None and self.max_hosts < self.min_hosts):
            raise InputError(f"min_hosts {self.min_hosts} and max_hosts {self.max_hosts}: 1 <= min_hosts <= max_hosts")
        if nameless := [topic.topic for topic in self.commits if not topic.group]:
            raise InputError(f"commits: the topic {nameless[0]!r} has no group to commit its offsets to")


@declares
class AutopilotCommandSettings(AutopilotSettings):
    """Settings of `elastream autopilot`, beyond those of `Autopilot`."""

    freshness: float | str | None = setting(
        "Execute the job repeatedly, so that each record is committed within this time of its arrival. Its queries use "
        "trigger(availableNow=True). Between two executions only a small process runs.",
        Seconds(positive=True),
        default=None,
        group=GOAL,
    )


class _Keywords(Generic[P, S]):
    """The decorator that `keywords_of` makes."""

    def __init__(self, settings: Callable[P, S]) -> None:
        self._settings = settings

    @overload
    def __call__(self, body: Callable[[A, S], R]) -> Callable[Concatenate[A, P], R]: ...
    @overload
    def __call__(self, body: Callable[[A, B, S], R]) -> Callable[Concatenate[A, B, P], R]: ...
    def __call__(self, body: Any) -> Any:
        """Return `body` with the settings as keywords, not as its last parameter."""
        *subjects, last = inspect.signature(body).parameters.values()
        keywords = list(inspect.signature(self._settings).parameters.values())
        keywords.sort(key=lambda each: each.default is not each.empty)
        signature = inspect.signature(body).replace(parameters=[*subjects, *keywords])
        name = body.__qualname__.removesuffix(".__init__")

        @wraps(body)
        def call(*arguments: Any, **options: Any) -> Any:
            try:
                bound = signature.bind(*arguments, **options).arguments
            except TypeError as error:
                raise TypeError(f"{name}(): {error}") from None
            own = {each.name: bound.pop(each.name) for each in subjects}
            return body(*own.values(), **{last.name: self._settings(**bound)})  # type: ignore[call-arg]

        vars(call)["__signature__"] = signature
        about = "\n".join(f"    {each}: {setting.help}" for each, setting in settings_of(self._settings).items())  # type: ignore[arg-type]
        call.__doc__ = f"{inspect.getdoc(body) or ''}\n\nArgs:\n{about}"
        return call


def keywords_of(settings: Callable[P, S]) -> _Keywords[P, S]:
    """Return a decorator that replaces a function's last parameter, a settings object, by keywords.

    Type checkers, `inspect.signature` and `help` show the keywords of the settings class.
    """
    return _Keywords(settings)
