"""Synthetic electricity readings by minute: the thesis's campus meters (3.6) are not public.

Premise of the selection (p. 52): recent variance shows which method will forecast best. The data satisfy it by
construction, with three regimes of customers. They test whether selection uses it, not whether real customers behave so.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream_papers.harness.assumptions import assumed

INTERVAL = 15  # minutes, as the campus's meters report and utilities settle
DAY = 24 * 60 // INTERVAL  # intervals of a day
WEEK = 7 * DAY
CUSTOMERS = 24  # two cores forecast eight weeks of them in a minute; a third starts in each regime


class Regime(IntEnum):
    """Ways in which a customer works."""

    SCHEDULED = 0  # a daily timetable of machines, in steps; follows the weather
    DRIFTING = 1  # by hand: power drifts over hours
    CYCLING = 2  # machines switch by the hour


@dataclass(frozen=True, slots=True)
class Generator:
    """Parameters of the data, fixed before any result."""

    level: float = assumed(100.0, "kW", "mean of a customer; percentages do not depend on it")
    spread: float = assumed(0.5, "of its logarithm", "customers differ in size")
    daily: float = assumed(0.35, "of the level", "amplitude of the daily cycle")
    weekend: float = assumed(0.25, "of its logarithm", "how much less is used on Saturday and Sunday")
    steps: float = assumed(0.15, "of its logarithm", "deviation of the timetable's quarter hours from the daily cycle")
    weather: float = assumed(0.2, "of its logarithm", "deviation of what lasts for days: weather, occupancy")
    weather_days: float = assumed(8.0, "days", "mean period of the weather; periods are within half of it")
    drift: float = assumed(0.3, "of its logarithm", "deviation of the wandering by hand")
    drift_hours: float = assumed(12.0, "h", "mean period of the wandering; periods are within a third of it")
    cycle: float = assumed(0.3, "of the level", "amplitude of machines that switch by the hour", most=0.9)
    cycle_minutes: float = assumed(60.0, "min", "period of the switching: half of it on, half off")
    noise_scheduled: float = assumed(0.01, "of the power", "deviation of single minutes, by timetable")
    noise_drifting: float = assumed(0.04, "of the power", "deviation of single minutes, by hand")
    noise_cycling: float = assumed(0.02, "of the power", "deviation of single minutes, switching")
    home_hours: float = assumed(120.0, "h", "mean time for which a customer works in its own way")
    away_hours: float = assumed(12.0, "h", "mean time for which it then works in another")


@dataclass(frozen=True, eq=False, slots=True)
class PowerReadings:
    """Readings: kW, shape (customers, minutes), from a Monday 0:00 on. regime: for diagnosis only."""

    power: Floats
    regime: Integers

    def first(self, weeks: int) -> "PowerReadings":
        minutes = weeks * WEEK * INTERVAL
        return PowerReadings(self.power[:, :minutes], self.regime[:, :minutes])

    @property
    def loads(self) -> Floats:
        """Return mean power by interval, kW, shape (customers, intervals)."""
        found: Floats = self._by_interval.mean(axis=2)
        return found

    @property
    def deviations(self) -> Floats:
        """Return by interval the standard deviation of its minutes over their mean."""
        found: Floats = self._by_interval.std(axis=2) / self.loads
        return found

    @property
    def _by_interval(self) -> Floats:
        return self.power.reshape(self.power.shape[0], -1, INTERVAL)


def generate(generator: Generator, weeks: int, seed: int, customers: int = CUSTOMERS) -> PowerReadings:
    """Return `weeks` weeks of readings; equal for equal arguments."""
    rng = np.random.default_rng(seed)
    minutes = weeks * WEEK * INTERVAL
    regime = np.array([_regimes(rng, generator, Regime(c % len(Regime)), minutes) for c in range(customers)])
    clock = np.arange(minutes)
    interval, weekend = clock // INTERVAL % DAY, clock // INTERVAL // DAY % 7 >= 5
    cycle = generator.daily * -np.cos(2 * np.pi * (np.arange(DAY) + 0.5) / DAY)
    power = np.empty((customers, minutes))
    for customer in range(customers):
        level = generator.level * np.exp(generator.spread * rng.standard_normal())
        shape = np.stack([cycle, cycle - generator.weekend])
        timetable = shape + generator.steps * rng.standard_normal((2, DAY))
        usual = np.where(weekend, shape[1][interval], shape[0][interval])
        weather = generator.weather * _slow_variation(rng, clock, generator.weather_days * 24 * 60, 1 / 2)
        drift = generator.drift * _slow_variation(rng, clock, generator.drift_hours * 60, 1 / 3)
        phase = rng.uniform(0, generator.cycle_minutes)
        on = np.where((clock + phase) % generator.cycle_minutes < generator.cycle_minutes / 2, 1.0, -1.0)
        mean = np.choose(
            regime[customer],
            [
                np.exp(np.where(weekend, timetable[1][interval], timetable[0][interval]) + weather),
                np.exp(weather + drift),
                np.exp(usual + weather) * (1 + generator.cycle * on),
            ],
        )
        noise = np.choose(regime[customer], [generator.noise_scheduled, generator.noise_drifting, generator.noise_cycling])
        power[customer] = level * mean * np.maximum(1 + noise * rng.standard_normal(minutes), 0.01)
    return PowerReadings(power, regime)


def _regimes(rng: np.random.Generator, generator: Generator, home: Regime, minutes: int) -> Integers:
    """Return the regime of each minute: home and away in turn, memoryless."""
    others = [regime for regime in Regime if regime is not home]
    found: list[Integers] = []
    at_home = True
    while sum(map(len, found)) < minutes:
        hours = rng.exponential(generator.home_hours if at_home else generator.away_hours)
        now = home if at_home else others[rng.integers(len(others))]
        found.append(np.full(max(1, min(round(hours * 60), minutes)), now, dtype=np.int64))
        at_home = not at_home
    return np.concatenate(found)[:minutes]


def _slow_variation(rng: np.random.Generator, clock: Integers, period: float, around: float) -> Floats:
    periods = period * rng.uniform(1 - around, 1 + around, 3)
    phases = rng.uniform(0, 2 * np.pi, 3)
    found: Floats = np.sqrt(2 / 3) * np.sin(2 * np.pi * clock / periods[:, None] + phases[:, None]).sum(axis=0)
    return found
