"""`elastream pause RUN`, `unpause RUN` and `monitoring FOLDER`."""

import time

from elastream.control.loop import Loop
from elastream.core.action import LeaseHost
from elastream.core.plant import Plan
from elastream.observability.monitoring import FILES
from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import Manifest, write_manifest
from elastream.recording.recorder import Collector, Recorder
from support.commands import invoke
from support.fake_plant import FakePlant


def folder(tmp_path):
    directory = RunDirectory(tmp_path)
    write_manifest(directory, Manifest("word_count", time.time()))
    return directory


class Grows:
    name = "grows"

    def plan(self, observation, memory=None):
        return Plan((LeaseHost(observation.host_name(), "small"),))


def test_a_run_is_paused_and_goes_on(tmp_path):
    directory = folder(tmp_path)
    assert "is paused; elastream unpause" in invoke("pause", tmp_path).output
    assert directory.is_paused
    assert "is paused already" in invoke("pause", tmp_path).output
    assert "continues" in invoke("unpause", tmp_path).output
    assert not directory.is_paused
    assert "was not paused" in invoke("unpause", tmp_path).output


def test_pausing_a_run_that_has_ended_says_so(tmp_path):
    directory = folder(tmp_path)
    Loop(FakePlant(), Grows(), limit=8.0, observers=[Recorder(directory.recording)]).run()
    assert f"{tmp_path} is paused" in (said := invoke("pause", tmp_path).output)
    assert said.endswith(". It has stopped at 0:08: only its resumption is paused\n")
    assert invoke("unpause", tmp_path).output.endswith(" is no longer paused. It has stopped at 0:08\n")


def test_what_is_no_run_is_one_sentence(tmp_path):
    for command in ("pause", "unpause"):
        found = invoke(command, tmp_path)
        assert (found.exit_code, found.output.count("\n")) == (2, 1)
        assert "is not the folder of a run" in found.output


def test_a_paused_controller_plans_and_applies_nothing(tmp_path):
    directory, plant, collector = folder(tmp_path), FakePlant(), Collector()

    def paused():
        if plant.clock.now() == 2.0:
            invoke("pause", tmp_path)
        if plant.clock.now() == 6.0:
            invoke("unpause", tmp_path)
        return directory.is_paused

    Loop(plant, Grows(), limit=8.0, observers=[collector], paused=paused).run()
    decided = {d.time: (d.mode, len(d.outcomes), [p.refused for p in d.proposals]) for d in collector.recording.decisions}
    assert decided[0.0] == ("", 1, [""])
    assert decided[2.0] == decided[4.0] == ("paused", 0, ["paused"])
    assert decided[6.0] == ("", 1, [""])


def test_what_watches_runs_is_written(tmp_path):
    found = invoke("monitoring", tmp_path / "here")
    assert found.exit_code == 0, found.output
    assert sorted(each.name for each in (tmp_path / "here").iterdir()) == sorted(FILES)
