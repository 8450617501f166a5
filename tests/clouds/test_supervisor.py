"""Real processes, without Spark: a stand-in for a worker starts children that leave its process group and its tree."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastream.clouds.local.cluster import SupervisorConnection
from elastream.clouds.local.confinement import TAG, CgroupV2, tagged
from elastream.clouds.local.supervisor import Supervisor
from elastream.errors import EnvironmentProblem
from support.fake_clock import FakeClock
from support.waiting import wait_until

# As an executor's pyspark daemon does: a child in a session of its own, and an orphan of that child.
FAMILY = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    os.fork()
elif "stubborn" in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""
BUSY = "while True: pass"
CHILDLESS_ON_SIGPWR = """
import os, signal, time
child = os.fork()
if child == 0:
    time.sleep(600)
def leave(*_):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
signal.signal(signal.SIGPWR, leave)
print("ready", flush=True)
while True:
    time.sleep(600)
"""


class Supervised:
    """A supervisor under test."""

    def __init__(self, folder: Path) -> None:
        self.run, self.folder = secrets.token_hex(4), folder
        self.connection = SupervisorConnection(folder / "supervisor.log")
        self.about = self.ask("open", run=self.run, number=1, link=None)

    def ask(self, method: str, /, **arguments):
        return self.connection.ask(method, **arguments)

    def spawn(self, name: str, program: str, scratch: tuple[Path, ...] = (), **environment: str) -> None:
        self.ask(
            "spawn",
            name=name,
            command=[sys.executable, "-c", program],
            environment={**os.environ, **environment},
            log=str(self.folder / f"{name}.log"),
            scratch=[str(each) for each in scratch],
            index=10,
        )

    def alive(self, name: str) -> bool:
        return self.ask("status")[name]["alive"]

    def cpu(self, name: str) -> float | None:
        return self.ask("measure")[name][0]

    def memory(self, name: str) -> float | None:
        return self.ask("measure")[name][1]

    def living(self, name: str | None = None) -> set[int]:
        """Processes of one host, or of all."""
        return {pid for pid, host in tagged(self.run).items() if (host if name is None else host == name)}

    def groups(self) -> list[Path]:
        return [*Path("/sys/fs/cgroup").glob(f"**/elastream-{self.run}*")]

    @property
    def confined(self) -> bool:
        return "CPU quota" in self.about["confinement"]


@pytest.fixture
def supervised(tmp_path) -> Iterator[Supervised]:
    supervised = Supervised(tmp_path)
    yield supervised
    supervised.connection.close(grace=0.0)
    assert tagged(supervised.run) == {}
    assert supervised.groups() == []
    assert (tmp_path / "supervisor.log").read_text() == ""


@pytest.mark.parametrize("grace", [0.0, 5.0], ids=["killed", "terminated"])
def test_ending_a_host_ends_all_its_processes_and_no_other_host(supervised, grace):
    supervised.spawn("a", FAMILY)
    supervised.spawn("b", FAMILY)
    wait_until(lambda: len(supervised.living()) == 6)
    supervised.ask("end", name="a", grace=grace)
    wait_until(lambda: not supervised.living("a"))
    assert not supervised.alive("a")
    assert supervised.alive("b")
    assert len(supervised.living("b")) == 3


def test_a_host_that_ignores_sigterm_is_killed_when_its_grace_is_over(supervised):
    supervised.spawn("a", FAMILY, stubborn="yes")
    wait_until(lambda: len(supervised.living("a")) == 3)
    supervised.ask("end", name="a", grace=0.2)
    wait_until(lambda: supervised.ask("status")["a"]["gone"])  # a process may be dead for a while before it is reaped
    assert not supervised.living("a")
    assert supervised.ask("status")["a"]["exit"] == -signal.SIGKILL


def test_when_the_first_process_dies_the_rest_of_its_host_follows(supervised):
    supervised.spawn("a", FAMILY)
    wait_until(lambda: len(supervised.living("a")) == 3)
    os.kill(supervised.ask("status")["a"]["pid"], signal.SIGKILL)
    wait_until(lambda: not supervised.living("a"))
    assert not supervised.alive("a")


def test_what_a_host_leaves_is_cleared_up_behind_it(supervised, tmp_path):
    scratch, log = tmp_path / "scratch", tmp_path / "a.log"
    scratch.mkdir()
    (scratch / "block").write_text("shuffle")
    supervised.spawn("a", "print('hello')", scratch=(scratch,))
    wait_until(lambda: supervised.ask("status")["a"]["gone"])
    assert not scratch.exists()
    assert log.read_text() == "hello\n"
    assert supervised.ask("status")["a"]["exit"] == 0
    assert not [group for group in supervised.groups() if group.name.endswith("-a")]


def test_decommissioned_host_gets_sigpwr_and_ends_once_it_has_no_child(supervised, tmp_path):
    supervised.spawn("a", CHILDLESS_ON_SIGPWR)
    wait_until(lambda: "ready" in (tmp_path / "a.log").read_text())
    assert supervised.alive("a")
    supervised.ask("decommission", name="a")
    wait_until(lambda: not supervised.alive("a"))
    assert supervised.ask("status")["a"]["exit"] == -signal.SIGTERM


def test_host_whose_command_cannot_run_is_dead_and_logs_why(supervised, tmp_path):
    supervised.ask(
        "spawn", name="a", command=["/no/such/java"], environment={}, log=str(tmp_path / "a.log"), scratch=[], index=10
    )
    assert not supervised.alive("a")
    assert "/no/such/java" in (tmp_path / "a.log").read_text()


def test_only_the_host_that_cannot_join_its_control_group_is_dead(tmp_path):
    class Broken(CgroupV2):
        def create(self, group):
            pass

        def join(self, group):
            raise PermissionError("cgroup.procs")

        def cpu_seconds(self, group):
            return None

        def members(self, group):
            return set()

        def remove(self, group):
            return True

    supervisor = Supervisor(secrets.token_hex(4))
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    told = {"command": command, "environment": dict(os.environ), "log": str(tmp_path / "log"), "scratch": []}
    supervisor.spawn("b", **told, index=None)
    supervisor.cgroups = Broken(tmp_path)
    supervisor.spawn("a", **told, index=10)
    assert {name: state["alive"] for name, state in supervisor.status().items()} == {"a": False, "b": True}
    assert "preexec_fn" in (tmp_path / "log").read_text()
    supervisor.finish(grace=0.0)
    assert not tagged(supervisor.run)


def test_a_request_that_fails_is_answered_with_its_reason_and_ends_no_host(tmp_path):
    supervised = Supervised(tmp_path)
    supervised.spawn("a", "import time; time.sleep(600)")
    with pytest.raises(EnvironmentProblem, match="could not confine: KeyError: 'nobody'"):
        supervised.ask("confine", name="nobody", cores=1.0)
    assert supervised.alive("a")
    supervised.connection.close(grace=0.0)
    assert "KeyError: 'nobody'" in (tmp_path / "supervisor.log").read_text()


def test_server_of_forks_that_ended_restarts_with_the_next_host(supervised):
    if not supervised.confined:
        pytest.skip(supervised.about["confinement"])
    supervised.spawn("a", "import time; time.sleep(600)")
    (first,) = supervised.living("")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not supervised.living(""))
    supervised.spawn("b", "import time; time.sleep(600)")
    (second,) = supervised.living("")
    assert second != first
    assert supervised.alive("a")
    supervised.spawn("c", "import time; time.sleep(600)")
    assert supervised.living("") == {second}


def test_a_child_that_is_gone_can_be_forgotten_and_one_that_lives_cannot(supervised):
    supervised.spawn("a", "pass")
    supervised.spawn("b", "import time; time.sleep(600)")
    wait_until(lambda: supervised.ask("status")["a"]["gone"])
    for name in ("a", "b"):
        supervised.ask("forget", name=name)
    assert set(supervised.ask("status")) == {"b"}


def test_cpu_seconds_grow_with_work_and_stay_known_after_the_end(supervised):
    supervised.spawn("a", BUSY)
    first = supervised.cpu("a")
    wait_until(lambda: supervised.cpu("a") > first + 0.05)
    supervised.ask("end", name="a", grace=0.0)
    wait_until(lambda: supervised.ask("status")["a"]["gone"])
    assert supervised.cpu("a") > first + 0.05
    assert supervised.memory("a") is None


def test_what_processes_hold_is_read_again_once_that_takes_next_to_nothing(monkeypatch):
    """The kernel walks all of their pages, with a lock that keeps them from mapping more."""
    supervisor, clock, spent, reads = Supervisor("0"), FakeClock(), [0.0], []

    def megabytes(pid):
        reads.append(pid)
        spent[0] += 0.03
        return 100.0 * len(reads)

    times = SimpleNamespace(monotonic=clock.now, thread_time=lambda: spent[0])
    monkeypatch.setattr("elastream.clouds.local.supervisor.megabytes", megabytes)
    monkeypatch.setattr("elastream.clouds.local.supervisor.time", times)
    assert supervisor.memory_of({1, 2}) == supervisor.memory_of({1, 2}) == {1: 100.0, 2: 200.0}
    clock.advance(2.9)
    assert supervisor.memory_of({1, 3}) == {1: 100.0, 3: 300.0}, "one is new, and one is gone"
    clock.advance(0.2)
    assert supervisor.memory_of({1, 3}) == {1: 400.0, 3: 500.0}
    assert reads == [1, 2, 3, 1, 3]


def test_memory_counts_pages_shared_by_forked_workers_once(supervised):
    program = "import os, time; block = bytearray(os.urandom(1)) * 200_000_000; os.fork(); os.fork(); time.sleep(600)"
    supervised.spawn("a", program)
    wait_until(lambda: len(supervised.living("a")) == 4)
    assert 200 < supervised.memory("a") < 400


def test_busy_host_is_held_to_its_quota_until_that_is_lifted(supervised):
    if not supervised.confined:
        pytest.skip(supervised.about["confinement"])

    def cores_used(seconds: float) -> float:
        began, before = time.monotonic(), supervised.cpu("a")
        time.sleep(seconds)
        return (supervised.cpu("a") - before) / (time.monotonic() - began)

    def times_held_back() -> int:
        """`nr_throttled`: periods in which the kernel stopped the host, its quota being used up."""
        texts = [(group / "cpu.stat") for group in supervised.groups()]
        lines = [line.split() for path in texts if path.exists() for line in path.read_text().splitlines()]
        return sum(int(value) for name, value in lines if name == "nr_throttled")

    supervised.spawn("a", BUSY)
    supervised.ask("confine", name="a", cores=0.05)  # little enough to be got on a machine that others use too
    wait_until(times_held_back)  # the first periods may have begun before the quota
    held = cores_used(2.0)
    assert 0.02 < held < 0.075
    supervised.ask("confine", name="a", cores=None)
    cores_used(0.2)
    before = times_held_back()
    cores_used(0.5)
    assert times_held_back() == before


def test_supervisor_answers_while_a_host_takes_its_time_to_end(supervised):
    supervised.spawn("a", FAMILY, stubborn="yes")
    wait_until(lambda: len(supervised.living("a")) == 3)
    supervised.ask("end", name="a", grace=600.0)
    assert supervised.alive("a")


DRIVER = """
import os, sys, time
from pathlib import Path
sys.path[:0] = {tests!r}
from test_supervisor import FAMILY, Supervised
supervised = Supervised(Path({folder!r}))
supervised.spawn("a", FAMILY)
supervised.spawn("b", FAMILY, stubborn="yes")
print(supervised.run, supervised.connection.process.pid, flush=True)
{then}
time.sleep(600)
"""


def driver(tmp_path: Path, then: str = "") -> tuple[subprocess.Popen[str], str, int]:
    """A driver in a process of its own, with two hosts of three processes each; its run and its supervisor's id."""
    program = DRIVER.format(
        tests=[str(Path(__file__).parent), str(Path(__file__).parents[1])], folder=str(tmp_path), then=then
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    run, supervisor = process.stdout.readline().split()
    return process, run, int(supervisor)


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_driver_ended_by_a_signal(tmp_path, ending):
    process, run, supervisor = driver(tmp_path)
    wait_until(lambda: sum(map(bool, tagged(run).values())) == 6)
    os.killpg(process.pid, ending)
    process.wait(20)
    wait_until(lambda: not tagged(run) and not exists(supervisor))
    assert not [*Path("/sys/fs/cgroup").glob(f"**/elastream-{run}*")]


def test_nothing_is_left_of_a_crashed_driver_whose_fork_lives_on(tmp_path):
    process, run, supervisor = driver(tmp_path, then="if os.fork(): os.abort()")
    assert process.wait(20) == -signal.SIGABRT
    wait_until(lambda: not tagged(run) and not exists(supervisor))
    os.killpg(process.pid, signal.SIGKILL)


def test_signal_to_the_supervisor_ends_all_hosts_and_is_reported(tmp_path):
    supervised = Supervised(tmp_path)
    supervised.spawn("a", FAMILY)
    wait_until(lambda: len(supervised.living()) == 3)
    supervised.connection.process.terminate()
    wait_until(lambda: not supervised.living())
    with pytest.raises(EnvironmentProblem, match="supervisor of the local cluster is gone"):
        supervised.ask("status")
    supervised.connection.close(grace=0.0)


def test_killed_supervisor_takes_each_hosts_first_process_with_it(tmp_path):
    supervised = Supervised(tmp_path)
    supervised.spawn("a", "import time; time.sleep(600)")
    wait_until(lambda: len(supervised.living()) == 1)
    supervised.connection.process.kill()
    wait_until(lambda: not supervised.living())
    supervised.connection.close(grace=0.0)
    for group in supervised.groups():
        group.rmdir()


def test_the_supervisor_imports_nothing_heavy():
    program = "import sys, elastream.clouds.local.supervisor; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyspark", "pandas", "numpy", "pyarrow", "psutil"} & set(modules)


def test_processes_of_another_run_are_not_taken_for_ones_own():
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={TAG: "abcd1234/a"})
    try:
        wait_until(lambda: tagged("abcd1234") == {other.pid: "a"})
        assert tagged("abcd") == {}
    finally:
        other.kill()
        other.wait()


def test_stopped_supervisor_hangs_no_caller_and_late_answers_are_dropped(tmp_path):
    supervised = Supervised(tmp_path)
    supervised.spawn("a", "import time; time.sleep(600)")
    process = supervised.connection.process
    supervised.connection._patience = 0.3
    process.send_signal(signal.SIGSTOP)
    for wanted in ("measure", "status"):
        with pytest.raises(EnvironmentProblem, match=rf"could not {wanted}: its supervisor has not answered for 0.3 s"):
            supervised.ask(wanted)
    process.send_signal(signal.SIGCONT)
    supervised.connection._patience = 60.0
    assert supervised.alive("a")
    assert supervised.ask("status")["a"]["exit"] is None
    process.send_signal(signal.SIGSTOP)
    supervised.connection._patience = 0.3
    supervised.connection.close(grace=0.0)  # which does not wait for it
    wait_until(lambda: not tagged(supervised.run), otherwise=lambda: tagged(supervised.run))
