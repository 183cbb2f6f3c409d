# SPDX-License-Identifier: Apache-2.0
"""What an epoch's statistics of a GPU mean, in sentences for the user."""

from __future__ import annotations

from keras_gpu_watch.device_accounting.swings import BUSY_PERCENT, IDLE_PERCENT
from keras_gpu_watch.samples import GpuDevice, GpuSummary

FULL_MEMORY_PERCENT, UNDERUSED_PERCENT = 90.0, 50.0
"""The thresholds of PyTorch Profiler's TensorBoard plugin."""
THROTTLING_SHARE = 0.05
BEATING_STEP_SECONDS = (0.25, 1.0)
"""Steps of this length can swing faster than the usual two samples a second can follow, and long enough for a sample to
be all busy or all idle. The period seen may then be the beat between steps and samples."""


def remarks(summary: GpuSummary, device: GpuDevice, step_seconds: float | None) -> dict[str, str]:
    """What is worth a word to the user.

    Args:
        summary: A GPU's epoch.
        device: That GPU.
        step_seconds: Mean time from one step to the next; `None` where it is not known.

    Returns:
        Sentences by their kind, which does not change with the numbers; none when there is nothing to say.
    """
    limit = "" if device.power_limit_watts is None else f" of {device.power_limit_watts:.0f} W"
    heat, hardware = summary.thermal_throttle_share, summary.hardware_slowdown_share
    # Heat raises the hardware's signal, too, and need not be said twice.
    if heat is not None and heat > THROTTLING_SHARE:
        hardware = None
    said = {
        "full but idle": _full_but_idle(summary),
        "swings": _swinging(summary, step_seconds),
        "heat": _slowed_down(heat, "by heat"),
        "power limit": _slowed_down(summary.power_cap_share, f"by its power limit{limit}"),
        "hardware": _slowed_down(hardware, "by a signal of the hardware, for heat or a weak power supply"),
    }
    return {kind: f"GPU {summary.gpu} ({device.name}): {text}" for kind, text in said.items() if text is not None}


def _full_but_idle(summary: GpuSummary) -> str | None:
    memory, use = summary.memory_used_percent, summary.utilization_percent
    if memory is None or use is None or memory.mean <= FULL_MEMORY_PERCENT or use.mean >= UNDERUSED_PERCENT:
        return None
    return (
        f"memory {memory.mean:.0f} % full, yet busy only {use.mean:.0f} % of the time: TensorFlow reserves the memory "
        "at the start, so full memory says nothing about use"
    )


def _swinging(summary: GpuSummary, step_seconds: float | None) -> str | None:
    if not summary.swings:
        return None
    use, power = summary.utilization_percent, summary.power_watts
    text = "busy and idle in turn"
    if power is not None and (use is None or use.p5 >= IDLE_PERCENT or use.p95 <= BUSY_PERCENT):
        text = f"its power goes up and down between {power.p5:.0f} and {power.p95:.0f} W"
    return text + _every(summary.swing_period_seconds, step_seconds)


def _every(period_seconds: float | None, step_seconds: float | None) -> str:
    if period_seconds is None:
        return ""
    every = f", every {period_seconds:.1f} s"
    if not step_seconds:
        return every
    steps = period_seconds / step_seconds
    shortest, longest = BEATING_STEP_SECONDS
    if shortest <= step_seconds < longest and steps > 1.5:
        return ""
    return f"{every}, which is {steps:.1f} steps" if steps < 10 else f"{every}, which is {steps:.0f} steps"


def _slowed_down(share: float | None, cause: str) -> str | None:
    if share is None or share <= THROTTLING_SHARE:
        return None
    return f"slowed down {cause} {100 * share:.0f} % of the time"
