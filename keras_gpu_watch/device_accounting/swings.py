# SPDX-License-Identifier: Apache-2.0
"""Finds the sawtooth of a starved GPU: busy, idle, and busy again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from keras_gpu_watch.records import Floats
from keras_gpu_watch.samples import GpuSamples

LEAST_READINGS = 20
BUSY_PERCENT, IDLE_PERCENT = 70.0, 10.0
"""Utilization is wide when its 95th percentile is above, and its 5th below these (Amazon SageMaker Debugger,
LowGPUUtilization)."""
LOW_POWER_SHARE = 0.5
"""Power is wide when its 10th percentile is below this share of the 90th.

The range seen is the measure, because a starved GPU hardly ever comes near its power limit. Idle cards draw a third
or less of what they draw when busy. Power has spikes that utilization has not, hence the inner percentiles.
"""
LEAST_POWER_RANGE_WATTS = 20.0
"""A smaller range is the ripple of an idle card."""
HYSTERESIS_SHARE = 0.2
"""High (low) is the upper (lower) fifth of the range, so that noise does not count as a turn."""
LEAST_TURNS = 4
"""A ramp has one, a dip two, a dip after a slow start three."""
LEAST_RISES = 3
LEAST_INTERVALS = 4
"""A period of fewer sample intervals is not seen well enough."""
LEAST_UTILIZATION_PERIOD_SECONDS = 1.0
"""NVML's own averaging blurs shorter ones."""
REGULAR_DEVIATION, REGULAR_SHARE = 0.3, 0.75
"""There is a period if so large a share of the times between two rises deviates no more than that from their median.

One sample early or late is a quarter of the shortest period. The rest may be gaps in the samples. Random changes hardly
ever pass, unless there are only a few.
"""


def find_swings(rows: GpuSamples) -> tuple[bool | None, float | None]:
    """Whether a GPU goes from idle to busy and back, again and again, by its utilization or else by its power.

    Utilization alone would miss swings that NVML averages away, and kernels that only wait for other GPUs.
    A swing much faster than the samples can look like a slow one; from the samples alone that can't be told.

    Args:
        rows: Samples of one GPU in the order of time.

    Returns:
        Whether it swings (`None` with too few readings), and the seconds from one rise to the next where they are
        regular and slow enough to be seen.
    """
    by_use = _swing(rows, "utilization_percent", (5, 95), _is_idle_to_busy, LEAST_UTILIZATION_PERIOD_SECONDS)
    by_power = _swing(rows, "power_watts", (10, 90), _is_low_to_high, 0.0)
    seen = [swing for swing in (by_use, by_power) if swing is not None]
    if not seen:
        return None, None
    periods = [period for _, period in seen if period is not None]
    return any(swings for swings, _ in seen), periods[0] if periods else None


def _is_idle_to_busy(low_percent: float, high_percent: float) -> bool:
    return low_percent < IDLE_PERCENT and high_percent > BUSY_PERCENT


def _is_low_to_high(low_watts: float, high_watts: float) -> bool:
    return low_watts < LOW_POWER_SHARE * high_watts and high_watts - low_watts >= LEAST_POWER_RANGE_WATTS


def _swing(
    rows: GpuSamples,
    name: str,
    percentiles: tuple[int, int],
    is_wide: Callable[[float, float], bool],
    least_period_seconds: float,
) -> tuple[bool, float | None] | None:
    known = rows[np.isfinite(rows[name])]
    if len(known) < LEAST_READINGS:
        return None
    seconds, values = known["seconds"], known[name]
    low, high = (float(value) for value in np.percentile(values, percentiles))
    if not is_wide(low, high):
        return False, None
    margin = HYSTERESIS_SHARE * (high - low)
    states = (values >= high - margin).astype(np.int8) - (values <= low + margin)
    extremes = np.flatnonzero(states)
    turns = extremes[1:][np.diff(states[extremes]) != 0]
    if len(turns) < LEAST_TURNS:
        return False, None
    rises_seconds = seconds[turns[states[turns] > 0]]
    shortest = max(least_period_seconds, LEAST_INTERVALS * float(np.median(np.diff(seconds))))
    return True, _period(rises_seconds, shortest)


def _period(rises_seconds: Floats, shortest_seconds: float) -> float | None:
    if len(rises_seconds) < LEAST_RISES:
        return None
    between = np.diff(rises_seconds)
    median = float(np.median(between))
    regular = np.abs(between - median) <= REGULAR_DEVIATION * median
    if regular.mean() < REGULAR_SHARE:
        return None
    period = float(between[regular].mean())
    return period if period >= shortest_seconds else None
