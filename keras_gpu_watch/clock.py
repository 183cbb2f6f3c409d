# SPDX-License-Identifier: Apache-2.0
"""The clocks, and the offset between two of them."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]

monotonic: Clock = time.perf_counter
"""Every duration is measured on this clock."""
wall: Clock = time.time
"""The clock of `tf.timestamp`, hence of the in-graph stamps."""
process_cpu: Clock = time.process_time
"""Time that all threads of this process have used the CPU, together."""


def wall_offset(mono: Clock = monotonic, wall_clock: Clock = wall) -> float:
    """What to add to a wall-clock reading to place it on the monotonic clock.

    The wall clock is read between two readings of the monotonic one, three times; the tightest pair counts, so that a
    thread switch between the readings does no harm.

    Returns:
        Offset in seconds, good to about a microsecond.
    """
    tightest = None
    offset = 0.0
    for _ in range(3):
        before = mono()
        reading = wall_clock()
        after = mono()
        if tightest is None or after - before < tightest:
            tightest = after - before
            offset = (before + after) / 2 - reading
    return offset
