"""What `clouds/provider.py` promises, as tests that every provider takes.

A provider's tests say `TestFake = provider_suite(ProviderCase("fake", make))` in a test module of their own.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from elastream.clouds.provider import EDGES, HostStatus, Phase, Provider, RunState, lacks_as_provider
from elastream.core.hosts import HostType
from elastream.errors import CloudError
from support.waiting import Patience, wait_until

WHILE = 5
"""Looks at what is to stay as it is."""


@dataclass(frozen=True)
class Made:
    """A provider under test. kind: a type of which it has two hosts at a time. tick: lets time pass for what is behind it.

    kill: ends a host unasked, None where nothing can. fill: takes all room away (True) or gives it back (False); None where
    there always is some. running: how many hosts there really are, by what is behind the provider; needed with `fill`.
    reopen: the provider that comes after one whose controller was killed, which closed nothing; None where hosts end with
    their controller.
    """

    provider: Provider
    kind: HostType
    tick: Callable[[], None] = lambda: time.sleep(0.05)
    kill: Callable[[str], None] | None = None
    fill: Callable[[bool], None] | None = None
    running: Callable[[], int] | None = None
    reopen: Callable[[], Provider] | None = None


@dataclass(frozen=True)
class ProviderCase:
    """A provider to be held to the contract. make: a fresh one, with nothing leased, closed by the context's end; all tests
    use it in turn.

    patience: seconds after which what was to come about did not. wrong: names that no host of it can have.
    ends_when_closed: its hosts do; else the next controller adopts them, and `Made` says how that one begins. killed: for
    hosts that end with a controller that is killed, too: kills one that has h1 in the folder, and gives what comes next.
    """

    name: str
    make: Callable[..., AbstractContextManager[Made]]
    patience: float = 60.0
    wrong: tuple[str, ...] = ()
    ends_when_closed: bool = False
    killed: Callable[[Path], AbstractContextManager[Made]] | None = None


def reachable(phase: Phase) -> set[Phase]:
    """Phases that may be seen after `phase`, itself included."""
    found = {phase}
    while further := {after for each in found for after in EDGES[each]} - found:
        found |= further
    return found


def await_phase(
    made: Made, host: str, *phases: Phase | None, patience: float, before: Phase | None = None
) -> HostStatus | None:
    """The status of `host` once it is in one of `phases` (None: not listed); checks every step, from `before` on."""
    waiting = Patience(patience)
    while True:
        status = made.provider.hosts().get(host)
        phase = None if status is None else status.phase
        assert before is None or phase is None or phase in reachable(before), (before, phase)
        if phase in phases:
            return status
        assert not waiting.over(phase), f"{host} is {phase}, not one of {phases}"
        before = phase if phase is not None else before
        made.tick()


def provider_suite(case: ProviderCase) -> type:  # noqa: C901
    """A class of tests for one provider."""

    class Suite:
        @pytest.fixture(scope="class")
        @classmethod
        def opened(cls, tmp_path_factory) -> Iterator[Made]:
            with case.make(tmp_path_factory.mktemp("provider")) as made:
                yield made

        @pytest.fixture
        def made(self, opened) -> Iterator[Made]:
            yield opened
            if opened.fill is not None:
                opened.fill(False)
            hosts = tuple(opened.provider.hosts())
            opened.provider.release(hosts)
            for host in hosts:
                await_phase(opened, host, None, patience=case.patience)

        def up(self, made: Made, *hosts: str) -> None:
            made.provider.lease(dict.fromkeys(hosts, made.kind))
            for host in hosts:
                await_phase(made, host, Phase.UP, patience=case.patience)
                made.provider.report(RunState(ready=frozenset(made.provider.hosts())))

        def wait_without_room(self, made: Made) -> Phase:
            """Lease h1 where there is no room, and see it wait with a reason; the phase that it was last seen in."""
            assert made.fill is not None
            made.fill(True)
            made.provider.lease({"h1": made.kind})
            phase = Phase.REQUESTED
            for _ in range(WHILE):
                status = made.provider.hosts()["h1"]
                assert status.phase in reachable(phase) & {Phase.REQUESTED, Phase.STARTING}
                assert status.reason
                phase = status.phase
                made.tick()
            return phase

        def test_it_has_everything_that_a_provider_has(self, made):
            assert lacks_as_provider(made.provider) == ""
            terms = made.provider.terms
            assert terms.max_hosts >= terms.min_hosts >= 1
            assert terms.patience > 0

        def test_it_lists_what_was_leased_and_nothing_else(self, made):
            assert not made.provider.hosts()
            self.up(made, "h1", "h2")
            before = made.provider.hosts()
            assert set(before) == {"h1", "h2"}
            made.provider.lease({"h1": made.kind})
            made.provider.release(["h3", "", "no/such"])
            assert made.provider.hosts() == before, "what is leased already, or never was, changes nothing"
            assert {status.type for status in made.provider.hosts().values()} == {made.kind.name}

        def test_a_released_host_is_forgotten_once_it_is_gone_and_its_name_is_free(self, made):
            self.up(made, "h1")
            made.provider.release(["h1"])
            made.provider.release(["h1"])
            await_phase(made, "h1", None, patience=case.patience)
            self.up(made, "h1")

        def test_an_impossible_host_name_is_refused_with_nothing_of_the_call_done(self, made):
            for name in case.wrong:
                with pytest.raises(CloudError, match=r".+"):
                    made.provider.lease({"h1": made.kind, name: made.kind})
            assert not made.provider.hosts()

        def test_a_host_that_died_stays_listed_with_a_reason_until_it_is_released(self, made):
            if made.kill is None:
                pytest.skip("nothing ends a host of this provider unasked")
            self.up(made, "h1", "h2")
            made.kill("h1")
            status = await_phase(made, "h1", Phase.GONE, patience=case.patience)
            assert status.reason
            made.tick()
            made.provider.lease({"h1": made.kind})
            assert made.provider.hosts()["h1"].phase is Phase.GONE
            made.provider.release(["h1"])
            await_phase(made, "h1", None, patience=case.patience)
            assert made.provider.hosts()["h2"].phase is Phase.UP

        def test_a_host_withdrawn_while_it_waits_for_room_never_starts(self, made):
            if made.fill is None:
                pytest.skip("this provider always has room")
            before = self.wait_without_room(made)
            made.provider.release(["h1"])
            await_phase(made, "h1", None, patience=case.patience, before=before)
            made.fill(False)
            # Were it still asked for, it would come before one that is asked for later, and run beside that.
            self.up(made, "h2")
            running = made.running
            assert running is not None, "who can fill it can count what is behind it"
            wait_until(lambda: made.tick() or running() == 1, otherwise=lambda: (running(), made.provider.hosts()))
            for _ in range(2 * WHILE):
                assert (set(made.provider.hosts()), running()) == ({"h2"}, 1)
                made.tick()

        def test_a_host_waits_with_a_reason_and_comes_once_there_is_room(self, made):
            if made.fill is None:
                pytest.skip("this provider always has room")
            before = self.wait_without_room(made)
            made.fill(False)
            await_phase(made, "h1", Phase.UP, patience=case.patience, before=before)

        def test_a_draining_host_stays_until_released_and_others_are_untouched(self, made):
            """To drain is the plant's: a provider sees a host that no longer holds state, and then its release."""
            self.up(made, "h1", "h2")
            both = frozenset({"h1", "h2"})
            before = made.provider.hosts()
            for holding in (both, frozenset({"h2"})):
                made.provider.report(RunState(ready=both, settled=both, holding=holding))
                made.tick()
                assert [made.provider.hosts()[host].phase for host in ("h1", "h2")] == [Phase.UP, Phase.UP]
            was = before["h2"]

            def look_beside() -> None:
                made.tick()
                beside = made.provider.hosts()["h2"]
                assert (beside.phase, beside.address, beside.executor) == (Phase.UP, was.address, was.executor)

            made.provider.release(["h1"])
            await_phase(replace(made, tick=look_beside), "h1", None, patience=case.patience)
            for _ in range(WHILE):
                look_beside()

        def finds_nothing_and_leases_h1(self, made: Made) -> None:
            assert not made.provider.hosts()
            self.up(made, "h1")
            made.provider.release(["h1"])
            await_phase(made, "h1", None, patience=case.patience)

        if case.ends_when_closed:

            def test_after_a_close_the_next_provider_finds_no_host_and_names_are_free(self, tmp_path):
                with case.make(tmp_path) as first:
                    self.up(first, "h1")
                    first.provider.close()
                with case.make(tmp_path) as second:
                    self.finds_nothing_and_leases_h1(second)

        else:

            def test_leased_hosts_are_adopted_after_a_controller_was_killed(self, made):
                self.up(made, "h1")
                if made.fill is not None:
                    made.fill(True)
                    made.provider.lease({"h2": made.kind})
                before = made.provider.hosts()
                after = made.reopen()
                listed = {name: (status.type, status.phase, status.executor) for name, status in after.hosts().items()}
                assert listed == {name: (status.type, status.phase, status.executor) for name, status in before.items()}
                after.lease(dict.fromkeys(before, made.kind))
                assert set(after.hosts()) == set(before)
                after.release(list(before))
                for host in before:
                    await_phase(replace(made, provider=after), host, None, patience=case.patience)

        if case.killed is not None:

            def test_after_a_killed_controller_the_next_finds_no_host_and_free_names(self, tmp_path):
                with case.killed(tmp_path) as after:
                    self.finds_nothing_and_leases_h1(after)

        def test_it_measures_listed_hosts_and_takes_reports_of_any(self, made):
            self.up(made, "h1")
            measured = made.provider.measure()
            assert set(measured) <= {"h1"}
            assert all(each.cpu_seconds is None or each.cpu_seconds >= 0 for each in measured.values())
            assert all(each.memory is None or each.memory >= 0 for each in measured.values())
            some = frozenset({"h1", "h9"})
            for state in [RunState(ready=some, settled=some, kept=some, critical=True)] * 2 + [RunState()]:
                made.provider.report(state)
            assert made.provider.hosts()["h1"].phase is Phase.UP
            owed = made.provider.owed()
            assert owed is None or owed >= 0

        def test_it_may_be_closed_twice(self, opened):
            self.up(opened, "h1")
            opened.provider.close()
            opened.provider.close()

    Suite.__name__ = Suite.__qualname__ = f"TestProvider{case.name.title().replace(' ', '')}"
    return Suite
