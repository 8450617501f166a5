"""A session without Spark: what the driver says of executors, and what it is asked for."""

from dataclasses import dataclass, field
from types import SimpleNamespace

from elastream.clouds.provider import PendingReason
from elastream.spark.jvm.executor_use import read_uses


@dataclass
class FakeSession:
    """there: executors by id, each (address, slots, busy milliseconds, leaving). It is driver and allocation client in one.

    obliging: whether executors come as they are requested, up to that many in all. active: tasks under way, by executor.
    says: what its cluster manager says of those that do not come. taken, protected: executors that
    it takes away, and those that it is asked to leave. ended: why executors are gone, by id. application: its
    id. buried: earlier applications that were ended.
    """

    there: dict = field(default_factory=dict)
    totals: list = field(default_factory=list)
    killed: list = field(default_factory=list)
    fenced: list = field(default_factory=list)
    buried: list = field(default_factory=list)
    obliging: int = 0
    active: dict = field(default_factory=dict)
    taken: dict = field(default_factory=dict)
    protected: set = field(default_factory=set)
    says: PendingReason = field(default_factory=PendingReason)
    ended: dict = field(default_factory=dict)
    application: str = "app-1"
    _number: int = 100

    context = SimpleNamespace(isStopped=lambda: False)

    @property
    def registered(self):
        return {n: SimpleNamespace(host=host) for n, (host, slots, _, _) in self.there.items() if slots}

    def pending_reason(self):
        return self.says

    def notices(self):
        return self.taken

    def protect(self, executors):
        self.protected = set(executors)

    def unprotect(self):
        self.protected = set()

    def ending(self, executor):
        return self.ended.get(executor, "")

    def ask(self, method, *_):
        assert method == "executors"
        return [
            [n, f"{host}:7", str(slots), str(ms), str(int(out)), str(self.active.get(n, 0))]
            for n, (host, slots, ms, out) in self.there.items()
        ]

    def request(self, total):
        self.totals.append(total)
        self.oblige()

    def oblige(self):
        while self.totals and len(self.there) < min(self.totals[-1], self.obliging):
            self._number += 1
            self.there[str(self._number)] = (f"10.2.0.{self._number}", 2, 0, False)

    def kill(self, executor):
        self.killed.append(executor)
        if self.obliging:
            del self.there[executor]
            self.oblige()

    def release_leftovers(self, application):
        self.buried.append(application)

    def fence(self, executor):
        self.fenced.append(executor)


@dataclass
class FakeUse:
    """Uses of executors, as `ExecutorUse` reads them: lines of `ExecutorUse.java`."""

    lines: list = field(default_factory=list)
    closed: bool = False

    def look(self):
        return read_uses([line.split("\t") for line in self.lines])

    def start(self):
        self.closed = False

    def close(self):
        self.closed = True


def task_line(executor, *, query="", label="nightly", count=1, seconds=5.0, ended=1, mode=""):
    """Return the line of running tasks of one stage."""
    return f"task\t{executor}\t{query}\t{label}\t{count}\t{seconds * 1e3:.0f}\t{ended}\t{mode}"
