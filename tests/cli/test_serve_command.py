"""`elastream serve RUN...`: what it refuses before it serves."""

import socket

import pytest
from typer.testing import CliRunner

from elastream.cli.app import app
from support.page_runs import new_run


@pytest.fixture
def run(tmp_path):
    return new_run(tmp_path / "run").root


def invoke(*words):
    return CliRunner().invoke(app, ["serve", *map(str, words)])


def test_a_folder_that_is_no_run_is_named(tmp_path):
    answer = invoke(tmp_path)
    assert answer.exit_code == 2
    assert f"{tmp_path} is not the folder of a run" in answer.output


def test_a_run_is_named_once(run):
    answer = invoke(run, run)
    assert (answer.exit_code, answer.output) == (2, "elastream: a run is named twice\n")


def test_an_address_in_use_and_one_that_is_none_are_named(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = invoke(run, "--address", port)
        assert answer.exit_code == 2
        assert f"127.0.0.1:{port}: Address already in use" in answer.output
    assert invoke(run, "--address", "nowhere:99999").exit_code == 2


def test_who_opens_a_page_to_everyone_is_warned(run):
    with socket.create_server(("0.0.0.0", 0)) as taken:
        answer = invoke(run, "--no-token", "--address", f"0.0.0.0:{taken.getsockname()[1]}")
    assert "everyone who reaches 0.0.0.0 can see and change these runs (--no-token)" in answer.output
