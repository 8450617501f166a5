from dataclasses import replace

import pytest

from elastream.clouds.provider import SMALL
from elastream.core.hosts import EndedLeases, HostState, Lease
from elastream.errors import InputError
from elastream.recording.lease_log import LeaseLog


def test_leases_read_as_they_were_left(tmp_path):
    log = LeaseLog(tmp_path / "leases.jsonl")
    assert log.earlier == {}
    for number, host in enumerate(("h1", "h2", "h3")):
        log.requested(host, SMALL, float(number))
    log.ended(Lease("h1", SMALL, 0.0).to(HostState.LOST, 7.0), "its plug was pulled")
    log.ended(Lease("h3", SMALL, 2.0).to(HostState.RELEASED, 8.0))
    log.close()
    earlier = LeaseLog(tmp_path / "leases.jsonl").earlier
    assert {host: lease.state for host, lease in earlier.items()} == {
        "h1": HostState.LOST,
        "h2": HostState.REQUESTED,
        "h3": HostState.RELEASED,
    }
    assert (earlier["h1"].until, earlier["h1"].note, earlier["h2"].type, earlier["h2"].since) == (
        7.0,
        "its plug was pulled",
        SMALL,
        1.0,
    )


def test_a_name_may_be_leased_again_after_its_end(tmp_path):
    log = LeaseLog(tmp_path / "leases.jsonl")
    log.requested("h1", SMALL, 0.0)
    log.ended(Lease("h1", SMALL, 0.0).to(HostState.LOST, 7.0))
    log.requested("h1", SMALL, 9.0)
    assert LeaseLog(tmp_path / "leases.jsonl").earlier["h1"].since == 9.0


def test_damage_is_named_and_a_torn_last_line_is_none(tmp_path):
    path = tmp_path / "leases.jsonl"
    path.write_text('{"host": "h1", "state": "released", "time": 3.0}\n')
    with pytest.raises(InputError, match=r"leases.jsonl, line 1: not an entry of a lease"):
        LeaseLog(path)
    path.write_text('{"host": "h1", "sta')
    assert LeaseLog(path).earlier == {}


def test_sums_of_forgotten_leases_are_on_disk(tmp_path):
    log, past, kept = LeaseLog(tmp_path / "leases.jsonl", max_lines=10).counted_from(1000.0), EndedLeases(), []
    for number in range(20):
        log.requested(f"h{number}", SMALL, float(number))
        lease = Lease(f"h{number}", SMALL, float(number))
        if number < 18:
            lease = lease.to(HostState.LOST, number + 30.0)
            log.ended(lease, "gone")
            lease = replace(lease, note="gone")
        kept.append(lease)
        if len(kept) > 4:
            past = past.plus(kept.pop(0))
            log.forget(past, kept)
    log.close()
    assert len((tmp_path / "leases.jsonl").read_text().splitlines()) < 20
    again = LeaseLog(tmp_path / "leases.jsonl").counted_from(1000.0)
    assert again.past == past == EndedLeases(16, 0, 16, 480.0, 16.0)
    assert [each for each in again.earlier.values() if each.host in {lease.host for lease in kept}] == kept
