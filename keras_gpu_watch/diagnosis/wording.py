# SPDX-License-Identifier: Apache-2.0
"""Numbers and lists in sentences."""

from __future__ import annotations

import math

from keras_gpu_watch.findings import Stage


def duration(seconds: float) -> str:
    """Two digits or more, in the unit that fits.

    Args:
        seconds: A duration in seconds.
    """
    value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1e3, "ms")
    if value >= 10:
        return f"{value:.0f} {unit}"
    return f"{value:.1f} {unit}" if value >= 1 else f"{value:.2g} {unit}"


def percent(share: float) -> str:
    """A share of 0..1 in percent."""
    return f"{100 * share:.0f} %"


def times(speedup: float) -> str:
    """How many times faster, rounded down: the words around it are "at most"."""
    if speedup >= 10:
        return f"{math.floor(speedup)}x" if math.isfinite(speedup) else "many times"
    digits = 1 if speedup >= 1.1 else 2
    # Half of a rounding error, so that 1.8 stays 1.8.
    return f"{math.floor(speedup * 10**digits + 1e-9) / 10**digits:.{digits}f}x"


def place(stage: Stage) -> str:
    """A stage and where its function is written."""
    return f"{stage.label} ({stage.source})" if stage.source else stage.label
