"""A session without Spark: what the driver says of executors, and what it is asked for."""

from dataclasses import dataclass, field


@dataclass
class FakeSession:
    """there: executors by id, each (address, slots, busy milliseconds, leaving). It is driver and allocation client in one.

    obliging: whether executors come as they are requested, up to that many in all. active: tasks under way, by executor.
    """

    there: dict = field(default_factory=dict)
    totals: list = field(default_factory=list)
    killed: list = field(default_factory=list)
    fenced: list = field(default_factory=list)
    obliging: int = 0
    active: dict = field(default_factory=dict)

    context = None

    def ask(self, method, *_):
        assert method == "executors"
        return [
            [n, f"{host}:7", str(slots), str(ms), str(int(out)), str(self.active.get(n, 0))]
            for n, (host, slots, ms, out) in self.there.items()
        ]

    def request(self, total):
        self.totals.append(total)
        for number in range(len(self.there), min(total, self.obliging)):
            self.there[str(100 + len(self.totals) * 10 + number)] = (f"10.2.0.{number}", 2, 0, False)

    def kill(self, executor):
        self.killed.append(executor)
        if self.obliging:
            del self.there[executor]

    def fence(self, executor):
        self.fenced.append(executor)
