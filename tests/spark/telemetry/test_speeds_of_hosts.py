"""Speeds of hosts are made of what probes read, and of nothing else; the readings here are made up."""

import json
import os
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.clouds.provider import HostUsage
from elastream.core.frames import Frame
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.spark.telemetry.frames import HostCpuUsage
from elastream.spark.telemetry.speeds import READINGS, STALE_S, SpeedProbes
from elastream.spark.worker.probe import SpeedReading, file_of

MILLISECOND = 1e-3


def leased(state=HostState.RUNNING, **types):
    """A lease by host, of a type of the same name."""
    found = {}
    for name, (cores, speed) in types.items():
        lease = Lease(name, HostType(name, cores=cores, speed=speed), 0.0).to(HostState.STARTING, 0.0)
        found[name] = lease if state is HostState.STARTING else lease.to(HostState.RUNNING, 0.0)
    return found


class Readings:
    """A folder of readings, and what a watch makes of it. The executor of host `h1` is `1`."""

    def __init__(self, folder, **types):
        self.folder, self.leases, self.watch, self.written = folder, leased(**types), SpeedProbes(folder), 0

    def told(self, now=0.0, **pieces):
        """What is known at `now`, after readings in milliseconds, or (milliseconds, cores, kept), by host."""
        for host, reading in pieces.items():
            piece, cores, kept = reading if isinstance(reading, tuple) else (reading, 8.0, 1.0)
            file = file_of(self.folder, host[1:])
            file.write_text(json.dumps(asdict(SpeedReading(piece * MILLISECOND, cores, kept))))
            self.written += 1
            os.utime(file, ns=(self.written, self.written))
        return self.watch.look({host[1:]: host for host in self.leases}, self.leases, now)


def test_the_fastest_host_has_the_speed_of_its_type_and_a_slower_one_less(tmp_path):
    told = Readings(tmp_path, h1=(1.0, 1.0), h2=(1.0, 1.0)).told(h1=0.4, h2=0.5)
    assert [told[host].speed for host in ("h1", "h2")] == pytest.approx([1.0, 0.8])


def test_hosts_that_differ_by_less_than_a_tenth_are_alike(tmp_path):
    told = Readings(tmp_path, h1=(1.0, 1.0), h2=(1.0, 2.0)).told(h1=0.43, h2=(0.2, 1.0, 0.93))
    assert [told[host].speed for host in ("h1", "h2")] == [1.0, 2.0]


def test_types_of_several_speeds_are_measured_by_one_standard(tmp_path):
    told = Readings(tmp_path, h1=(1.0, 1.0), h2=(1.0, 2.0), h3=(1.0, 2.0)).told(h1=0.4, h2=0.2, h3=0.4)
    assert [told[host].speed for host in ("h1", "h2", "h3")] == pytest.approx([1.0, 2.0, 1.0])


def test_a_host_with_half_of_its_cores_has_half_its_speed_at_once(tmp_path):
    readings = Readings(tmp_path, h1=(2.0, 1.0), h2=(2.0, 1.0))
    assert readings.told(h1=(0.4, 2.0, 1.0), h2=(0.4, 2.0, 1.0))["h2"].speed == pytest.approx(1.0)
    assert readings.watch.stretch == pytest.approx(1.0)
    told = readings.told(now=5.0, h2=(0.4, 1.0, 1.0))
    assert (told["h2"].speed, told["h2"].share) == pytest.approx((0.5, 0.5))
    assert readings.watch.stretch == pytest.approx((1 + 2) / 2)


def test_cores_beyond_those_of_its_type_make_no_host_faster(tmp_path):
    assert Readings(tmp_path, h1=(0.5, 1.0)).told(h1=(0.4, 2.0, 1.0))["h1"] == (1.0, 1.0, 0.0)


def test_a_single_slow_reading_changes_no_speed(tmp_path):
    readings = Readings(tmp_path, h1=(1.0, 1.0), h2=(1.0, 1.0))
    for _ in range(READINGS):
        readings.told(h1=0.4, h2=0.4)
    assert readings.told(h2=4.0)["h2"].speed == pytest.approx(1.0)
    for _ in range(READINGS // 2):
        told = readings.told(h2=4.0)
    assert told["h2"].speed == pytest.approx(0.1)


def test_an_old_reading_is_unknown_and_a_new_one_is_not(tmp_path):
    readings = Readings(tmp_path, h1=(1.0, 1.0))
    readings.told(h1=0.4)
    assert readings.told(now=STALE_S)["h1"].age == STALE_S
    assert readings.told(now=STALE_S + 1) == {}
    assert readings.told(now=STALE_S + 2, h1=0.4)["h1"].age == 0.0


def test_idle_and_unread_hosts_have_no_speed(tmp_path):
    readings = Readings(tmp_path, h1=(1.0, 1.0), h2=(1.0, 1.0))
    readings.leases |= leased(HostState.STARTING, h3=(1.0, 1.0))
    assert set(readings.told(h1=0.4, h3=0.1)) == {"h1"}
    file_of(tmp_path, "2").write_text('{"piece": 0.0')
    assert set(readings.told()) == {"h1"}


@given(st.lists(st.tuples(st.sampled_from([0.5, 1.0, 4.0]), st.floats(0.05, 1.0)), min_size=1, max_size=6))
def test_the_work_of_a_record_does_not_depend_on_quotas(tmp_path_factory, hosts):
    """Every core does c CPU seconds a record; hosts have parts of the records in proportion to their cores."""
    names = [f"h{number}" for number in range(1, 1 + len(hosts))]
    readings = Readings(
        tmp_path_factory.mktemp("readings"), **{name: (cores, 1.0) for name, (cores, _) in zip(names, hosts, strict=True)}
    )
    told = readings.told(**{name: (0.4, cores * part, 1.0) for name, (cores, part) in zip(names, hosts, strict=True)})
    total = sum(cores for cores, _ in hosts)
    mean_speed = total / sum(cores / told[name].speed for name, (cores, _) in zip(names, hosts, strict=True))
    assert readings.watch.stretch * mean_speed == pytest.approx(1.0)


def test_a_host_that_uses_all_that_it_gets_is_full(tmp_path):
    readings = Readings(tmp_path, h1=(2.0, 1.0))
    told, watch = readings.told(h1=(0.4, 1.0, 1.0)), HostCpuUsage()
    for now, used in ((0.0, 0.0), (2.0, 2.0)):
        frame = watch.frame(readings.leases, {}, Frame(), lambda _: 0.0, {"h1": HostUsage(used)}, now, told)
    assert frame.value("h1", Metric.CPU) == pytest.approx(1.0)
    assert frame.value("h1", Metric.SPEED) == pytest.approx(0.5)
    assert frame.age(Metric.SPEED) == 0.0
