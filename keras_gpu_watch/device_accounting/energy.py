# SPDX-License-Identifier: Apache-2.0
"""The energy that a GPU drew between two moments."""

from __future__ import annotations

import numpy as np

from keras_gpu_watch.records import Floats
from keras_gpu_watch.samples import GpuSamples

COVERED_INTERVALS = 3
"""So many sample intervals may lie between two readings, or between an end and its next reading, without a hole."""
HOLES_SHARE = 0.1
"""With a larger share of the time in holes the energy is not known."""


def find_energy(rows: GpuSamples, begin_seconds: float, end_seconds: float) -> float | None:
    """Joules between two moments, which need not be those of samples.

    The driver's counter is taken where it is given, else the power readings. Before the first and after the last
    reading, the power is taken to be the one read there.

    Args:
        rows: Samples of one GPU in the order of time, best with one before and one after.
        begin_seconds: The first moment.
        end_seconds: The second moment.

    Returns:
        `None` with too few readings, or when the counter began anew.
    """
    by_counter = np.isfinite(rows["energy_joules"]).sum() >= 2
    known = rows[np.isfinite(rows["energy_joules" if by_counter else "power_watts"])]
    # From the last reading before the time in question to the first one after it.
    first = max(int(np.searchsorted(known["seconds"], begin_seconds, side="right")) - 1, 0)
    known = known[first : int(np.searchsorted(known["seconds"], end_seconds)) + 1]
    if len(known) < 2:
        return None
    seconds, watts = known["seconds"], known["power_watts"]
    interval = float(np.median(np.diff(rows["seconds"])))
    if _holes_share(seconds, begin_seconds, end_seconds, interval, by_counter) > HOLES_SHARE:
        return None
    gained = np.diff(known["energy_joules"]) if by_counter else np.diff(seconds) * (watts[1:] + watts[:-1]) / 2
    # The driver was loaded anew, or the GPU was reset.
    if (gained < 0).any():
        return None
    total = np.concatenate([[0.0], np.cumsum(gained)])
    at_begin, at_end = np.interp((begin_seconds, end_seconds), seconds, total)
    mean_watts = total[-1] / (seconds[-1] - seconds[0])
    before = max(seconds[0] - begin_seconds, 0.0) * (watts[0] if np.isfinite(watts[0]) else mean_watts)
    after = max(end_seconds - seconds[-1], 0.0) * (watts[-1] if np.isfinite(watts[-1]) else mean_watts)
    return float(before + at_end - at_begin + after)


def _holes_share(seconds: Floats, begin: float, end: float, interval: float, by_counter: bool) -> float:
    """Share of the time from `begin` to `end` that is too far from any reading."""
    edges = np.concatenate([[min(begin, seconds[0])], seconds, [max(end, seconds[-1])]])
    starts, stops = edges[:-1], edges[1:]
    is_hole = stops - starts > COVERED_INTERVALS * interval
    if by_counter:
        # It went on counting; only across an end it is not known how much of that was inside.
        is_hole[1:-1] &= (starts[1:-1] < begin) | (stops[1:-1] > end)
    inside = np.clip(np.minimum(stops, end) - np.maximum(starts, begin), 0.0, None)
    return float(inside[is_hole].sum() / (end - begin))
