"""`elastream guards set` and `show`, and what `explain` tells of guards: on a run that goes on, in fake time."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from elastream.control.guarding import GuardExtension
from elastream.control.loop import Loop
from elastream.core.plant import Plan
from elastream.dataflow.signals import SignalReading
from elastream.recording.directory import RunDirectory
from elastream.recording.guard_log import GuardLog
from elastream.recording.recorder import Recorder, Recording
from support.commands import invoke
from support.fake_plant import FakePlant

FIRST = "signals: {peak: truth}\nguards: {words: {split: {when: '!peak'}, split_fast: {when: peak}}}\n"
SECOND = "signals: {peak: truth}\nguards: {where: {table: {value: 0.5}, archive: {when: 'held(peak, ''1h'')', value: 1}}}\n"
BROKEN = "signals: {peak: truth}\nguards:\n  words:\n    split: {when: peek}\n"


class Idle:
    """A policy that does nothing."""

    name = "idle"

    def plan(self, observation: Any, memory: Any = None) -> Plan:
        return Plan()


class Peak:
    """A signal that is true from the third second on."""

    def __init__(self, plant: FakePlant) -> None:
        self.plant = plant

    def follow(self, signals: Any) -> None:
        pass

    def newest(self) -> dict[str, SignalReading]:
        now = self.plant.clock.now()
        return {"peak": SignalReading(now >= 3.0, now)}

    def close(self) -> None:
        pass


def elastream(*arguments: object) -> Result:
    return invoke(*arguments, columns=300)


def shown_as(result: Result) -> str:
    """What was printed, each run of blanks as one."""
    return re.sub(r"[ \n]+", " ", result.output)


def run(folder: Path, meanwhile: Callable[[float], None] = lambda now: None, guards: str = FIRST) -> Path:
    """A run of ten seconds in `folder`; `meanwhile` is called each second of it."""
    plant, directory = FakePlant(), RunDirectory(folder)
    folder.mkdir()
    plant.clock._on_sleep = meanwhile
    versions = GuardLog(directory.guards)
    if guards:
        versions.append(guards, "first.yaml", "run")
    loop = Loop(
        plant,
        Idle(),
        limit=10.0,
        observers=[Recorder(directory.recording)],
        extensions=[GuardExtension(versions, Peak(plant))],
    )
    loop.run()
    return folder


def test_guards_that_are_set_are_in_force_from_the_next_round_on(tmp_path: Path) -> None:
    file, results = tmp_path / "second.yaml", []
    file.write_text(SECOND)

    def later(now: float) -> None:
        if now == 5.0:
            results.append(elastream("guards", "set", tmp_path / "run", file))

    recording = Recording.read(run(tmp_path / "run", later))
    (result,) = results
    assert (result.exit_code, shown_as(result).strip()) == (
        0,
        f"{file}: version 2 of the guards of {tmp_path / 'run'}, in force from its next round on: 2 guards of 1 element",
    )
    assert [decision.guards for decision in recording.decisions] == [1, 1, 1, 1, 2, 2]
    assert recording.standings_at(5.0).keys() == {"where"}


@pytest.mark.parametrize(
    ("guards", "said"),
    [
        (BROKEN, "FILE:4:19: guards.words.split.when: there is no signal or function 'peek', did you mean 'peak'?"),
        ("dataflow: grid\n" + FIRST, "FILE:1:1: dataflow: these are guards of 'grid'; the dataflow is 'word_count'"),
        (
            "guards: {words: {join: {value: 1}}}",
            "FILE:1:18: guards.words.join: 'words' has no alternate or branch 'join' (there is: split, split_fast)",
        ),
        (None, "FILE cannot be read: No such file or directory"),
    ],
)
def test_guards_that_do_not_fit_are_refused_and_the_run_is_unharmed(tmp_path: Path, guards: str | None, said: str) -> None:
    file, results = tmp_path / "guards.yaml", []
    if guards is not None:
        file.write_text(guards)

    def later(now: float) -> None:
        if now == 5.0:
            results.append(elastream("guards", "set", tmp_path / "run", file))

    recording = Recording.read(run(tmp_path / "run", later))
    (result,) = results
    assert (result.exit_code, result.stderr) == (2, f"elastream: {said.replace('FILE', str(file))}\n")
    assert not recording.alarms
    assert {decision.guards for decision in recording.decisions} == {1}
    assert len(GuardLog(tmp_path / "run" / "guards.jsonl").versions) == 1


def test_a_run_that_has_ended_or_died_takes_no_guards(tmp_path: Path) -> None:
    folder, file = run(tmp_path / "run"), tmp_path / "guards.yaml"
    file.write_text(SECOND)
    ended = elastream("guards", "set", folder, file)
    why = "its limit of 10 s was reached: guards are for a run that goes on"
    assert (ended.exit_code, ended.stderr) == (2, f"elastream: {folder} has stopped at 0:10, {why}\n")
    recording = folder / "recording.jsonl"
    recording.write_text("".join(line for line in recording.open() if '"kind":"end"' not in line))
    as_recording = elastream("guards", "set", recording, file)
    assert as_recording.stderr == (
        f"elastream: {recording} is not a run's folder: guards are given to the run, not to a recording of it\n"
    )
    os.utime(recording, (1.0, 1.0))
    died = elastream("guards", "set", folder, file)
    died_so = rf"elastream: {folder} has recorded nothing for .*: it died without an end, or hangs\n"
    assert re.fullmatch(died_so, died.stderr)
    nowhere = elastream("guards", "set", tmp_path / "nowhere", file)
    assert (nowhere.exit_code, "there is no recording at" in nowhere.stderr) == (2, True)
    assert len(GuardLog(folder / "guards.jsonl").versions) == 1


def test_guards_are_shown_with_versions_values_and_ages_of_signals(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def later(now: float) -> None:
        if now in (4.0, 6.0):
            text = BROKEN if now == 4.0 else FIRST + "dataflow: word_count\n"
            GuardLog(folder / "guards.jsonl").append(text, "x.yaml", "me")

    shown = shown_as(elastream("guards", "show", run(folder, later)))
    figures = json.loads(elastream("guards", "show", folder, "--json").stdout)
    assert [each["from"] for each in figures["versions"]] == [0.0, None, 6.0]
    assert figures["running"]["words"] == "split_fast"
    assert figures["guards"]["words"]["allowed"] == ["split_fast"]
    assert figures["signals"]["peak"]["value"] is True
    assert re.search(r"1 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d run /\S*first.yaml from 0:00", shown)
    assert "refused" in shown
    assert "x.yaml from 0:06" in shown
    assert "words split_fast split 1 when !peak split_fast yes 1 when peak" in shown
    assert "peak true 0 ms" in shown
    bare = run(tmp_path / "bare", guards="")
    nothing = elastream("guards", "show", bare)
    said = f"{bare} has no guards: give it some with 'elastream guards set {bare} FILE'"
    assert (nothing.exit_code, nothing.stderr) == (2, f"elastream: {said}\n")


def test_a_round_is_explained_with_guards_values_signals_and_choice(tmp_path: Path) -> None:
    told = shown_as(elastream("explain", run(tmp_path / "run"), "--round", 3))
    assert "guards, version 1 words runs split; may run: split_fast" in told
    assert "split, value 1: when !peak split_fast, value 1: when peak" in told
    assert "signals peak: true, 0 ms old" in told
    assert "run words as split_fast, by guards - the guard of split is not active (split: when !peak)" in told
