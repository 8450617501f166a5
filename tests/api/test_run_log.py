"""What a run logs is in its folder, with tracebacks, and nowhere else."""

import logging

from elastream.api.run import _interrupts_unlogged, _logged
from elastream.recording.directory import RunDirectory


def test_faults_of_a_run_are_in_its_log_and_not_on_the_terminal(tmp_path, capfd):
    path = RunDirectory(tmp_path).log
    log = logging.getLogger("elastream.control.loop")
    with _logged(path):
        try:
            raise KeyError("lost")
        except KeyError as error:
            log.error("policy mine failed", exc_info=error)
    log.info("after the run")
    text = path.read_text()
    assert "ERROR elastream.control.loop: policy mine failed" in text
    assert "Traceback (most recent call last)" in text
    assert "KeyError: 'lost'" in text
    assert "after the run" not in text
    assert "Traceback" not in capfd.readouterr().err


def test_a_run_without_faults_has_no_log(tmp_path):
    with _logged(RunDirectory(tmp_path).log):
        logging.getLogger("elastream").debug("all is well")
    assert not (tmp_path / "run.log").exists()


def test_signal_while_spark_answers_leaves_no_traceback_of_py4j(caplog):
    with _interrupts_unlogged():
        for error in (KeyboardInterrupt(), OSError("gone")):
            try:
                raise error
            except BaseException:
                logging.exception("while sending command")
    (told,) = caplog.records
    assert "gone" in str(told.exc_info)
    assert not logging.getLogger().filters
