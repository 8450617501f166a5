"""External signals from real files and a real HTTP server; from Kafka: tests/spark/dataflow/test_kafka.py."""

import contextlib
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.dataflow.signals import Feed, Signal, SignalKind, SignalReading
from elastream.errors import DataflowError
from elastream.guards.pollers import Pollers, value_of
from support.fake_clock import FakeClock
from support.property_examples import examples
from support.waiting import wait_until

OFTEN = 0.05


class Site:
    """What a server answers, by path; a path without an answer is missing."""

    def __init__(self):
        self.says: dict[str, bytes] = {}
        self.asked = 0


@contextlib.contextmanager
def served(site: Site):
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            site.asked += 1
            said = site.says.get(self.path)
            self.send_response(404 if said is None else 200)
            self.end_headers()
            self.wfile.write(said or b"")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def pollers(clock):
    made = Pollers(clock.now)
    yield made
    made.close()


def number(name, kind, place, **more):
    return Signal(name, feed=Feed(kind, str(place), OFTEN, **more))


def heard(pollers, name):
    wait_until(lambda: name in pollers.newest())
    return pollers.newest()[name]


def test_a_file_is_a_signal_as_old_as_its_last_reading(pollers, clock, tmp_path):
    file = tmp_path / "tariff"
    file.write_text("0.31\n")
    pollers.follow([number("tariff", "file", file)])
    assert heard(pollers, "tariff") == SignalReading(0.31, 0.0)
    clock.advance(7)
    wait_until(lambda: pollers.newest()["tariff"].time == 7)
    file.write_text("0.35")
    wait_until(lambda: pollers.newest()["tariff"].value == 0.35)


def test_what_is_read_no_more_keeps_its_value_and_ages(pollers, clock, tmp_path, caplog):
    file = tmp_path / "switch"
    file.write_text("true")
    caplog.set_level(logging.INFO)
    pollers.follow([Signal("by_hand", SignalKind.TRUTH, feed=Feed("file", str(file), OFTEN))])
    assert heard(pollers, "by_hand").value is True
    file.unlink()
    wait_until(lambda: "cannot be read" in caplog.text)
    clock.advance(60)
    assert pollers.newest()["by_hand"] == SignalReading(True, 0.0)
    file.write_text("false")
    wait_until(lambda: pollers.newest()["by_hand"] == SignalReading(False, 60.0))
    assert "answers again" in caplog.text


def test_signals_of_one_address_are_fields_of_one_answer(pollers):
    site = Site()
    site.says["/grid"] = b'{"price": {"now": 41}, "alert": true, "region": "west"}'
    with served(site) as address:
        pollers.follow(
            [
                number("price", "http", f"{address}/grid", field="price.now"),
                Signal("alert", SignalKind.TRUTH, feed=Feed("http", f"{address}/grid", OFTEN, "alert")),
                Signal("region", SignalKind.TEXT, feed=Feed("http", f"{address}/grid", OFTEN, "region")),
            ]
        )
        wait_until(lambda: len(pollers.newest()) == 3)
        assert {name: each.value for name, each in pollers.newest().items()} == {
            "price": 41.0, "alert": True, "region": "west",
        }  # fmt: skip
        assert len([each for each in threading.enumerate() if address in each.name]) == 1


def test_an_answer_of_another_type_is_unknown_and_said_once(pollers, caplog):
    site = Site()
    site.says["/"] = b'{"price": "high"}'
    with served(site) as address:
        pollers.follow([number("price", "http", f"{address}/", field="price")])
        assert heard(pollers, "price").value is None
        before = site.asked
        wait_until(lambda: site.asked > before + 2)
    assert caplog.text.count("'high' is not a number") == 1


def test_an_address_that_fails_says_so_and_goes_on(pollers, caplog):
    site = Site()
    with served(site) as address:
        pollers.follow([number("price", "http", f"{address}/later")])
        wait_until(lambda: "answers 404" in caplog.text)
        assert pollers.newest() == {}
        site.says["/later"] = b"12"
        assert heard(pollers, "price").value == 12.0


def test_another_version_of_the_guards_keeps_what_it_still_reads(pollers, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("1")
    first, second = (number(name, "file", tmp_path / name) for name in ("a", "b"))
    pollers.follow([first, second])
    wait_until(lambda: len(pollers.newest()) == 2)
    pollers.follow([Signal("a", feed=first.feed, stale=9.0)])
    assert set(pollers.newest()) == {"a"}


@pytest.mark.parametrize(
    ("feed", "said"),
    [
        (Feed("mqtt", "x"), "'mqtt' cannot be polled"),
        (Feed("file", ""), "does not say where"),
        (Feed("http", "example.org"), "is not an address"),
        (Feed("kafka", "prices"), "has no servers"),
    ],
)
def test_a_feed_that_cannot_be_polled_is_refused_and_the_others_go_on(pollers, tmp_path, feed, said):
    (tmp_path / "a").write_text("1")
    pollers.follow([number("a", "file", tmp_path / "a")])
    assert heard(pollers, "a").value == 1.0
    with pytest.raises(DataflowError, match=said):
        pollers.follow([Signal("wrong", feed=feed)])
    assert pollers.newest()["a"].value == 1.0


@settings(max_examples=examples(300))
@given(
    st.binary(max_size=60) | st.text(max_size=40).map(str.encode),
    st.sampled_from(SignalKind),
    st.sampled_from(["", "a", "a.b"]),
)
def test_whatever_is_read_is_a_value_of_the_kind_or_unknown_with_a_reason(said, kind, field):
    value, problem = value_of(said, kind, field)
    assert (value is None) == bool(problem)
    assert value is None or kind.admits(value)


@pytest.mark.parametrize("said", [b"1" + b"0" * 400, b"NaN", b"1e999", b"[1]", b"null", b"", b"\xff\xfe"])
def test_what_is_no_finite_number_is_unknown(said):
    assert value_of(b"3", SignalKind.NUMBER) == (3.0, "")
    assert value_of(said, SignalKind.NUMBER)[0] is None


def test_a_byte_order_mark_is_no_part_of_a_value():
    assert value_of(b"\xef\xbb\xbfon\r\n", SignalKind.TEXT) == ("on", "")
    assert value_of(b"\xef\xbb\xbf5", SignalKind.NUMBER) == (5.0, "")


@pytest.mark.parametrize("kind", SignalKind)
def test_bytes_that_are_no_text_are_unknown(kind):
    value, problem = value_of("on".encode("utf-16"), kind)
    assert (value, "is not UTF-8 text" in problem) == (None, True)
