# SPDX-License-Identifier: Apache-2.0
"""What the figures of `check_gpu.py` must be, each with its tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_gpu_watch.samples import GpuSummary


@dataclass(frozen=True)
class Check:
    """A figure and what it must lie between; `None` is what this GPU does not give."""

    name: str
    value: float | None
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`PASS`, `FAIL` or `not given`."""
        if self.value is None:
            return "not given"
        return "PASS" if self.low <= self.value <= self.high else "FAIL"


@dataclass(frozen=True)
class Phase:
    """One load, seen from both sides."""

    busy_share: float
    """As the load says."""
    samples_share: float
    """Samples that came, of those due."""
    counter_watts: float | None
    """By the energy counter."""
    summary: GpuSummary


@dataclass(frozen=True)
class Slowdown:
    """What a sampler costs the load."""

    hertz: float
    ratio: float
    """Time of a product with the sampler to that without: median of the pairs of blocks."""
    low: float
    high: float
    """Quartiles."""
    core_percent: float | None
    """Processor time of the sampling thread; `None` with too few samples to say."""


RATIO_LIMITS = {2.0: 1.01, 10.0: 1.02}
CORE_LIMITS_PERCENT = {2.0: 1.0, 10.0: 3.0}


def judge(phases: Mapping[str, Phase]) -> list[Check]:
    """Compare what was sampled with what the load did."""
    idle, full = phases["idle"], phases["full"]
    slow = phases["duty 2 s"].summary
    power = _ratio(_mean(full, "power_watts"), _mean(idle, "power_watts"))
    checks = [
        Check("idle: utilization, %", _mean(idle, "utilization_percent"), 0, 5),
        Check("full: utilization, %", _mean(full, "utilization_percent"), 95, 100),
        Check("full: power, of that when idle", power, 1.3, 100),
        Check("full: swings (1: yes)", full.summary.swings, 0, 0),
        Check("duty 2 s: swings (1: yes)", slow.swings, 1, 1),
        Check("duty 2 s: period, s", slow.swing_period_seconds, 1.7, 2.3),
    ]
    for name, phase in phases.items():
        by_counter = _ratio(phase.counter_watts, _mean(phase, "power_watts"))
        checks.append(Check(f"{name}: samples, of those due", phase.samples_share, 0.9, 1.1))
        checks.append(Check(f"{name}: power by counter, of that by readings", by_counter, 0.9, 1.1))
    for name in ("duty 2 s", "duty 0.2 s"):
        checks += _judge_duty(name, phases[name], idle, full)
    return checks


def judge_costs(slowdowns: Sequence[Slowdown]) -> list[Check]:
    """Compare what the sampler cost with what it may."""
    checks = []
    for cost in slowdowns:
        name = f"sampler at {cost.hertz:g} Hz"
        checks.append(Check(f"{name}: time of the load, of that without", cost.ratio, 0.95, RATIO_LIMITS[cost.hertz]))
        checks.append(Check(f"{name}: % of a core", cost.core_percent, 0, CORE_LIMITS_PERCENT[cost.hertz]))
    return checks


def _judge_duty(name: str, phase: Phase, idle: Phase, full: Phase) -> list[Check]:
    use = _mean(phase, "utilization_percent")
    activity = _ratio(_mean(phase, "sm_activity_percent"), _mean(full, "sm_activity_percent"))
    watts, low, high = (_mean(each, "power_watts") for each in (phase, idle, full))
    place = None if watts is None or low is None or high is None else _ratio(watts - low, high - low)
    use_error = None if use is None else use - 100 * phase.busy_share
    activity_error = None if activity is None else 100 * (activity - phase.busy_share)
    return [
        Check(f"{name}: utilization less duty, points", use_error, -15, 15),
        Check(f"{name}: SM activity of full less duty, points", activity_error, -10, 10),
        Check(f"{name}: power, from idle (0) to full (1)", place, 0.1, 0.95),
    ]


def _mean(phase: Phase, field: str) -> float | None:
    distribution = getattr(phase.summary, field)
    return None if distribution is None else float(distribution.mean)


def _ratio(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else value / whole
