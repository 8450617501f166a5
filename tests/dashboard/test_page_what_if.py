"""What if: a replay that the live page's child makes."""

import asyncio

import pytest
from starlette.testclient import TestClient

from elastream.dashboard.page.server import Page
from elastream.dashboard.page.what_if import WhatIf
from elastream.errors import InputError
from support.page_runs import ended_run, text_of


def test_a_run_that_can_not_be_replayed_says_why(tmp_path):
    directory, texts = ended_run(tmp_path / "run"), []

    async def replay() -> None:
        what_if = WhatIf(lambda: texts.append(text_of(what_if.html)))
        what_if.start(directory.root, {"policy": "horizon", "max_hosts": "3"})
        assert what_if.running
        await what_if._task
        assert not what_if.running

    asyncio.run(replay())
    assert texts == [
        "Replaying the last hour under horizon with at most 3 hosts.",
        "No replay under horizon with at most 3 hosts: run is a simulated run: calibration needs a run on Spark.",
    ]


def test_the_child_ends_with_the_page(tmp_path):
    directory = ended_run(tmp_path / "run")

    async def replay() -> None:
        what_if = WhatIf(lambda: None)
        what_if.start(directory.root, {"policy": "static", "max_hosts": "3"})
        await asyncio.sleep(0)
        what_if.close()
        with pytest.raises(asyncio.CancelledError):
            await what_if._task

    asyncio.run(replay())


def test_a_child_that_cannot_start_is_an_answer(tmp_path, monkeypatch):
    async def full(*arguments, **options):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", full)

    async def replay() -> str:
        what_if = WhatIf(lambda: None)
        what_if.start(tmp_path, {"policy": "horizon", "max_hosts": "3"})
        await what_if._task
        return text_of(what_if.html)

    assert asyncio.run(replay()) == "No replay under horizon with at most 3 hosts: Cannot allocate memory."


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"policy": "magic", "max_hosts": "3"}, "'magic' is not a policy of this page: horizon, threshold"),
        ({"policy": "horizon", "max_hosts": ""}, "hosts is ''; it must be a whole number from 1 to 10,000"),
        ({"policy": "horizon", "max_hosts": "0"}, "hosts is '0'"),
        ([], "this is not a replay of a run on this page"),
    ],
)
def test_a_senseless_replay_is_refused_in_a_sentence(tmp_path, fields, why):
    client = TestClient(Page([ended_run(tmp_path / "run").root]).app(None))
    answer = client.post("/runs/0/what-if", json=fields)
    assert answer.status_code == 400
    assert why in answer.json()["error"]


def test_one_replay_goes_on_at_a_time(tmp_path):
    page = Page([ended_run(tmp_path / "run").root])
    with TestClient(page.app(None)) as client:
        fields = {"policy": "horizon", "max_hosts": "3"}
        assert client.post("/runs/0/what-if", json=fields).status_code == 200
        assert "another replay goes on" in client.post("/runs/0/what-if", json=fields).json()["error"]


def test_fields_of_a_replay_are_checked_before_anything_starts(tmp_path):
    with pytest.raises(InputError, match="whole number"):
        WhatIf(lambda: None).start(tmp_path, {"policy": "hpa", "max_hosts": "many"})
