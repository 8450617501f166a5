"""Settings of `run`, `simulate`, `Autopilot` and the command line, each declared once.

A field of a class below is the whole declaration. Keywords, options, document keys and the reference page derive from it.
"""

import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    ForwardRef,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    get_args,
    get_origin,
    overload,
)

from elastream.core.hosts import HostType, PriceList
from elastream.core.scaling import NO_RULES, ScalingRules
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

LAST_PORT = 65_535
LARGEST_SEED = 2**32 - 1
# The driver plans each of them in each batch.
MAX_STATE_PARTITIONS = 100_000


def shown(value: object) -> str:
    """Return the `repr` of `value` for an error if it is short, or else its type."""
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value. The base class checks types only.

    Attributes:
        types: Accepted types; empty for any.
        requirement: Description of an accepted value, for errors.
        unit: Unit or form, for the reference page.
    """

    types: tuple[type, ...] = ()
    requirement: str = ""
    unit: str = ""

    def accepts(self, value: object) -> bool:
        """Return True if `value` is of this kind. A bool is no number."""
        if not self.types:
            return True
        return isinstance(value, self.types) and not (isinstance(value, bool) and bool not in self.types)

    def read(self, name: str, value: Any, optional: bool = False) -> Any:
        """Return the value of the setting `name` in its base unit. Raises InputError for another kind of value."""
        if not self.accepts(value):
            raise self._refusal(name, value, optional)
        return value

    def _refusal(self, name: str, value: object, optional: bool = False) -> InputError:
        return InputError(f"{name} is {shown(value)}; it must be {self.requirement}{', or None' * optional}", (name,))


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """Text, or an object in its place."""

    metavar: str = "TEXT"


@dataclass(frozen=True, slots=True)
class PathOf(Kind):
    """A path. `metavar` names it on the command line."""

    types: tuple[type, ...] = (str, Path)
    requirement: str = "a path"
    unit: str = "path"
    metavar: str = "FILE"


@dataclass(frozen=True, slots=True)
class Flag(Kind):
    """True or False. `switch` replaces the option's name on the command line."""

    types: tuple[type, ...] = (bool,)
    requirement: str = "True or False"
    unit: str = "True or False"
    switch: str = ""


@dataclass(frozen=True, slots=True)
class Rules(Kind):
    """Rules of `ScalingRules`, on the command line as `KEY=VALUE`."""

    types: tuple[type, ...] = (ScalingRules,)
    requirement: str = "ScalingRules"
    unit: str = "`ScalingRules`"


@dataclass(frozen=True, slots=True)
class ListOf(Kind):
    """A list of `item`. With `single`, one item stands for a list of it."""

    item: type = object
    single: bool = False

    def read(self, name: str, value: Any, optional: bool = False) -> Any:
        """Return the list as a tuple."""
        several = isinstance(value, Iterable) and not isinstance(value, str)
        if not several and not self.single:
            raise self._refusal(name, value)
        items = tuple(value) if several else (value,)
        for each in items:
            if not isinstance(each, self.item):
                raise self._refusal(name, each)
        return items


@dataclass(frozen=True, slots=True)
class Whole(Kind):
    """A whole number from `least` to `most`; `why` explains `most`."""

    least: int | None = None
    most: int | None = None
    why: str = ""
    unit: str = "whole number"

    def read(self, name: str, value: Any, optional: bool = False) -> int:
        """Return `value` as an int."""
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if whole and (self.least is None or int(value) >= self.least) and (self.most is None or int(value) <= self.most):
            return int(value)
        if whole and self.why and self.most is not None and int(value) > self.most:
            raise InputError(f"{name} is {value:,}; more than {self.most:,} cannot be: {self.why}", (name,))
        text = self.requirement or "a whole number"
        if not self.requirement and self.least is not None:
            text += f", {self.least} or more" if self.most is None or self.why else f" from {self.least} to {self.most}"
        raise InputError(
            f"{name} is {shown(value)}; it must be {text}{', or None' * (optional and self.least is None)}", (name,)
        )


@dataclass(frozen=True, slots=True)
class Fraction(Kind):
    """A number from 0 to 1."""

    requirement: str = "a fraction between 0 and 1"
    unit: str = "0 to 1"

    def accepts(self, value: object) -> bool:
        """Return True for a number from 0 to 1."""
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 <= float(value) <= 1


@dataclass(frozen=True, slots=True)
class Seconds(Kind):
    """A duration: seconds, or text such as `"2s"`.

    Attributes:
        positive: True if it must be above 0 and finite.
        between: Noun of the events of an interval, such as "plan".
    """

    unit: str = 'seconds, or text such as `"2s"`'
    positive: bool = False
    between: str = ""

    def read(self, name: str, value: Any, optional: bool = False) -> float:
        """Return seconds."""
        try:
            seconds = pause(value, self.between) if self.between else duration(value)
        except ElastreamError as error:
            raise InputError(f"{name}: {error}", (name,)) from error
        if self.positive and not 0 < seconds < float("inf"):
            raise InputError(f"{name} is {value!r}; it must be more than 0", (name,))
        return seconds


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    """One of several names."""

    names: tuple[str, ...] = ()
    metavar: str = "NAME"

    def read(self, name: str, value: Any, optional: bool = False) -> str:
        """Return the name."""
        if not isinstance(value, str) or value not in self.names:
            raise InputError(f"{name} {value!r} is none of {', '.join(self.names)}", (name,))
        return str(value)


@dataclass(frozen=True, slots=True)
class ModeName(Choice):
    """A mode of consistency, which the plant checks: a simulation has one more than a run."""

    names: tuple[str, ...] = get_args(Mode)
    metavar: str = "MODE"

    def read(self, name: str, value: Any, optional: bool = False) -> Any:
        """Return `value`."""
        return value


@dataclass(frozen=True, slots=True)
class Registry(Kind):
    """A registry of prometheus_client."""

    requirement: str = "a registry of prometheus_client"

    def accepts(self, value: object) -> bool:
        """Return True for an object to which collectors can be added."""
        return callable(getattr(value, "register", None))


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of a setting, beside its name, type and default.

    Attributes:
        help: Text for the command line, the reference page and docstrings.
        kind: Kind of value, which checks it.
        key: True for a key at the top of a document.
        option: True for an option of the command line.
        lasting: True if a resumed run keeps the option.
    """

    help: str
    kind: Kind = Kind()
    key: bool = False
    option: bool = False
    lasting: bool = True


def settings_of(declaring: type) -> Mapping[str, Setting]:
    """Return the settings of `declaring`, a class of this module, by name."""
    declarations: dict[str, Setting] = {}
    for each in fields(declaring):
        (setting,) = (about for about in each.type.__metadata__ if isinstance(about, Setting))  # type: ignore[union-attr]
        declarations[each.name] = setting
    return declarations


PLAN, OBSERVATION = Seconds(between="plan"), Seconds(between="observation")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `run`, `simulate` and `Autopilot`."""

    target_latency: Annotated[
        float | str | None,
        Setting(
            "Service level: the time from a record being due until the first query that reads it commits its result.",
            Seconds(positive=True),
            key=True,
        ),
    ] = None
    replicas: Annotated[
        int,
        Setting(
            "Standby copies of each state partition on other hosts. With them a lost host costs a pause of one batch,"
            " and no loading of state.",
            Whole(least=0),
            key=True,
            option=True,
        ),
    ] = 0
    scaling: Annotated[
        ScalingRules,
        Setting(
            "Rules for the number of hosts, for any policy. On the command line KEY=VALUE, such as max_scale_up=1, "
            "replaces the file's rule. An empty value removes it. Repeatable.",
            Rules(),
            option=True,
        ),
    ] = NO_RULES

    def __post_init__(self) -> None:
        for name, setting in settings_of(type(self)).items():
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value is not None or default not in (None, MISSING):
                object.__setattr__(self, name, setting.kind.read(name, value, default is None))

    @property
    def latency(self) -> float | None:
        """The target latency in seconds; None without one."""
        return None if self.target_latency is None else float(self.target_latency)


@dataclass(frozen=True, kw_only=True)
class DataflowSettings(Settings):
    """Settings of `run` and `simulate`."""

    state_partitions: Annotated[
        int | None,
        Setting(
            "Key groups of each keyed operator, fixed for the life of a checkpoint. Default: two per slot of the "
            "largest cluster, or ten per host under policy `ring`. A simulation counts at most twice the hosts that "
            "the load's peak fills.",
            Whole(least=1, most=MAX_STATE_PARTITIONS, why="each is a task of every batch"),
            key=True,
            option=True,
        ),
    ] = None
    guards: Annotated[
        Path | str | None,
        Setting(
            "File of guards: which alternates and branches may run. `elastream guards set` replaces them during a run.",
            PathOf(),
            key=True,
            option=True,
        ),
    ] = None
    tables: Annotated[
        Sequence[KeyTable],
        Setting("Key tables: which alternate runs for which key. `elastream tables set` replaces them during a run."),
    ] = ()
    consistency: Annotated[
        Mode,
        Setting(
            "Composition that records between two queries meet while it changes: batch, wave or drain; a simulation "
            "also has rewired. See `elastream.core.composition.Consistency`.",
            ModeName(),
            key=True,
            option=True,
        ),
    ] = "batch"
    show: Annotated[
        bool,
        Setting(
            "Show progress and summary: live on a terminal or in a notebook, otherwise as lines.",
            Flag(),
        ),
    ] = True


@dataclass(frozen=True, kw_only=True)
class LiveSettings(Settings):
    """Settings of `run` and `Autopilot`."""

    policy: Annotated[
        "Policy | str | None",
        Setting('Policy, or text such as `"static:4"`: `Threshold()` by default for `run`, `ByLoad()` for `Autopilot`.'),
    ] = None
    observers: Annotated[Sequence["Observer"], Setting("Objects that receive every observation and decision.")] = ()
    retention: Annotated[
        float | str,
        Setting(
            "Time for which observations, decisions and changes of updated results stay on disk. Figures of the whole"
            " run stay.",
            Seconds(),
            key=True,
            option=True,
        ),
    ] = RETENTION


@dataclass(frozen=True, kw_only=True)
class RunSettings(DataflowSettings, LiveSettings):
    """Settings of `run`."""

    cloud: Annotated["Cloud", Setting("Where hosts come from, such as `Local()`.")]
    state_store: Annotated[
        StateStore,
        Setting('Where executors keep state: `"memory"`, or `"disk"` for more than fits there.',
                Choice(names=("memory", "disk"))),
    ] = "memory"  # fmt: skip
    batch: Annotated[
        float | str | None,
        Setting("Target duration of a micro-batch. Default: a part of the target latency.", Seconds()),
    ] = None
    monitor: Annotated[float | str, Setting("Time between observations.", OBSERVATION)] = "1s"
    period: Annotated[float | str, Setting("Time between plans.", PLAN)] = "2s"
    warm_up: Annotated[bool, Setting("Warm up new executors before they get tasks.", Flag())] = True
    ports: Annotated[
        range | None, Setting("Ports to use; the first two are those of the master and its web page. Default: free ones.")
    ] = None
    settings: Annotated[Mapping[str, str] | None, Setting("Further Spark settings, which win.")] = None
    currency: Annotated[str, Setting('Currency of all prices, such as `"EUR"`.', key=True, kind=Text())] = ""
    runs: Annotated[
        Path | str,
        Setting(
            "Folder for the run's own folder, or an address (hdfs://...) that executors read and write. With an "
            "address, the driver's files lie below `runs` here and are copied there.",
            PathOf(metavar="DIR"),
            option=True,
            lasting=False,
        ),
    ] = "runs"
    resume: Annotated[
        Path | str | None,
        Setting(
            "Resume a run that was stopped, failed or killed, by its folder or address. It keeps its state, offsets, "
            "composition, results and leases.",
            PathOf(metavar="RUN"),
            option=True,
            lasting=False,
        ),
    ] = None
    fresh: Annotated[
        bool,
        Setting(
            "Replace the results of an earlier run where the sinks write. Without it such results are an error.",
            Flag(),
            option=True,
            lasting=False,
        ),
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume is not None and self.fresh:
            raise InputError("a run that goes on (resume) keeps its results, so that it cannot begin afresh (fresh)")


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """Settings of `elastream run` and `Autopilot`."""

    metrics_port: Annotated[
        int | None,
        Setting(
            "Port of 127.0.0.1 at which Prometheus metrics are served.",
            Whole(least=0, most=LAST_PORT, requirement=f"a port, 0 to {LAST_PORT}"),
            option=True,
            lasting=False,
        ),
    ] = None
    events: Annotated[
        Path | str | None,
        Setting(
            "File for events as JSON lines, which are appended. -: standard error.", PathOf(), option=True, lasting=False
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CommandSettings(RunSettings, ExportSettings):
    """Settings of `elastream run`, beyond those of `run`."""

    input: Annotated[
        str | None,
        Setting("Read this file or folder instead of the dataflow's.", Text(metavar="PATH"), option=True),
    ] = None
    observe_only: Annotated[bool, Setting("Plan and record, but apply no action.", Flag(), option=True, lasting=False)] = (
        False
    )
    record: Annotated[
        Path | None, Setting("Write a second copy of the recording.", PathOf(), option=True, lasting=False)
    ] = None
    limit: Annotated[
        float | str | None,
        Setting(
            "End the run so long after its hosts and queries have started, such as 3min.",
            Seconds(positive=True),
            option=True,
            lasting=False,
        ),
    ] = None
    live: Annotated[
        bool, Setting("Live view, or a line every 10 s.", Flag(switch="--live/--no-live"), option=True, lasting=False)
    ] = True
    report: Annotated[
        Path | None, Setting("File of the report. Default: in the run's folder.", PathOf(), option=True, lasting=False)
    ] = None
    traces: Annotated[
        bool,
        Setting(
            "Make OpenTelemetry spans of rounds and actions, for what the program has set up.",
            Flag(),
            option=True,
            lasting=False,
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class SimulateSettings(DataflowSettings):
    """Settings of `simulate`."""

    cloud: Annotated[
        "Cloud | None", Setting("Cloud whose hosts are leased, such as `Local(...)`; stages are fused, as on Spark.")
    ] = None
    host_types: Annotated[
        Sequence[HostType] | HostType,
        Setting(
            "Hosts to lease instead of the cloud's, such as those of a price list by `read_prices`.",
            ListOf(requirement="a HostType, or several", item=HostType, single=True),
        ),
    ] = ()
    load: Annotated[
        ArrivalPattern | str | Path | None,
        Setting(
            "Load of every source instead of its own: a pattern, a CSV of counts, a YAML file, or text such as 50/s.",
            Text(metavar="LOAD"),
            option=True,
        ),
    ] = None
    limit: Annotated[
        float | str | None,
        Setting(
            "Length of the simulated part of the load, from its start. Default: until the load ends.",
            Seconds(positive=True),
            option=True,
        ),
    ] = None
    target: Annotated[float, Setting("Fraction of records that must be in time.", Fraction(), option=True)] = 0.95
    max_hosts: Annotated[
        int | None,
        Setting("Most hosts at once. Default: the cloud's, or 1000.", Whole(least=1), option=True),
    ] = None
    min_hosts: Annotated[int | None, Setting("Fewest hosts at once. Default: the cloud's.", Whole())] = None
    calibrate: Annotated[
        Path | str | None,
        Setting(
            "Folder of a run on Spark whose measured costs and hosts are used. Without FILE, the command line replays"
            " it and prints the drift.",
            PathOf(metavar="RUN"),
            option=True,
        ),
    ] = None
    fused: Annotated[
        bool | None,
        Setting(
            "Micro-batches of fused stages as on Spark, or a queue for each operator. Queues are the default with "
            "--prices or without a cloud.",
            Flag(switch="--fused/--apart"),
            option=True,
        ),
    ] = None
    period: Annotated[
        float | str | None, Setting("Time between two plans. Default: 2s if fused, else 60s.", PLAN, option=True)
    ] = None
    speeds: Annotated[
        "SpeedSource | str | Path | None",
        Setting(
            "Speeds of hosts over time, as factors on their types' speeds: walk, ec2 or spread, with :key=value,..., "
            "a CSV file, or an object such as `SpeedWalk(seed=3)`.",
            Text(metavar="WALK"),
            option=True,
        ),
    ] = None
    links: Annotated[
        "LinkSource | str | Path | None",
        Setting(
            "Latency and bandwidth between hosts over time, for operators with queues: ec2[:key=value,...], a CSV "
            "file, or an object such as `Ec2Links()`.",
            Text(metavar="WALK"),
            option=True,
        ),
    ] = None
    seed: Annotated[
        int, Setting("Seed of all random numbers except those of speeds and links.", Whole(least=0, most=LARGEST_SEED),
                     option=True)
    ] = 1  # fmt: skip

    @property
    def types(self) -> tuple[HostType, ...]:
        """The host types to lease instead of the cloud's."""
        return (self.host_types,) if isinstance(self.host_types, HostType) else tuple(self.host_types)


@dataclass(frozen=True, kw_only=True)
class AutopilotSettings(LiveSettings, ExportSettings):
    """Settings of `Autopilot`."""

    max_hosts: Annotated[
        int | None,
        Setting("Most executors requested from Spark as the load requires. Default: none is requested.", Whole()),
    ] = None
    min_hosts: Annotated[int, Setting("Fewest executors.", Whole())] = 1
    cloud: Annotated[
        "Cloud | Provider | None",
        Setting(
            "Hosts to lease instead: a cloud as for `run`, or a running provider, which the caller closes. They join "
            "the session's Standalone master."
        ),
    ] = None
    host_type: Annotated[
        HostType | None, Setting("Type to lease. Default: the cloud's.", Kind((HostType,), "a HostType"))
    ] = None
    period: Annotated[float | str, Setting("Time between observations, and between plans.", OBSERVATION)] = "5s"
    observe_only: Annotated[bool, Setting("Log actions without applying them.", Flag())] = False
    registry: Annotated[
        "CollectorRegistry | None", Setting("Registry in which Prometheus metrics are registered.", Registry())
    ] = None
    folder: Annotated[
        Path | str | None,
        Setting(
            "Folder for a recording and a journal, for `result`, `elastream explain` and `elastream report`. Lines on"
            " stderr name it.",
            PathOf(),
        ),
    ] = None
    restore: Annotated[
        Literal["leave", "original"],
        Setting(
            'Executors at the end: they stay (`"leave"`), or Autopilot restores their original number (`"original"`).',
            Choice(names=("leave", "original")),
        ),
    ] = "leave"
    prices: Annotated[
        PriceList | None,
        Setting(
            "Price of executors by core and gigabyte; hosts of a cloud have their own.", Kind((PriceList,), "a PriceList")
        ),
    ] = None
    commits: Annotated[
        Sequence[KafkaTopic],
        Setting(
            'Kafka topics with a group, `kafka("orders", "broker:9092", group="orders-app")`. Offsets that the '
            "queries have read are committed to them, for tools that watch lag.",
            ListOf(requirement="a list of Kafka topics, kafka(...)", item=KafkaTopic),
        ),
    ] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_hosts < 1 or (self.max_hosts is not None and self.max_hosts < self.min_hosts):
            raise InputError(f"min_hosts {self.min_hosts} and max_hosts {self.max_hosts}: 1 <= min_hosts <= max_hosts")
        if nameless := [topic.topic for topic in self.commits if not topic.group]:
            raise InputError(f"commits: the topic {nameless[0]!r} has no group to commit its offsets to")


P = ParamSpec("P")
S = TypeVar("S")
A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")


class _Keywords(Generic[P, S]):
    """The decorator that `keywords_of` makes."""

    def __init__(self, settings: Callable[P, S]) -> None:
        self._settings = settings

    @overload
    def __call__(self, body: Callable[[A, S], R]) -> Callable[Concatenate[A, P], R]: ...
    @overload
    def __call__(self, body: Callable[[A, B, S], R]) -> Callable[Concatenate[A, B, P], R]: ...
    def __call__(self, body: Any) -> Any:
        """Return `body` with keywords in place of its last parameter."""
        *subjects, last = inspect.signature(body).parameters.values()
        keywords = [_plain(each) for each in inspect.signature(self._settings).parameters.values()]
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


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return `parameter` without the declaration in its annotation."""
    annotation = parameter.annotation
    if get_origin(annotation) is Annotated:
        annotation = annotation.__origin__
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    return parameter.replace(annotation=annotation)
