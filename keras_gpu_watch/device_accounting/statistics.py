# SPDX-License-Identifier: Apache-2.0
"""An epoch's samples, put into a few numbers for each device."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keras_gpu_watch.device_accounting.energy import find_energy
from keras_gpu_watch.device_accounting.swings import find_swings
from keras_gpu_watch.records import Bools, Floats
from keras_gpu_watch.samples import Distribution, GpuSamples, GpuSummary, HostSamples, HostSummary

SETTLING_SECONDS = 1.0
"""A sample's utilization and power are the driver's means over up to this long before it."""
ENOUGH_SAMPLES = 20
"""With fewer, the 5th and the 95th percentile are a single sample each."""


@dataclass(frozen=True, slots=True)
class SampleFrame:
    """What is known of an epoch besides its samples (times on the clock of `time.perf_counter`)."""

    begin_seconds: float
    end_seconds: float
    steps_begin_seconds: float | None = None
    """The first step's call; `None` without steps."""
    steps_end_seconds: float | None = None
    """When the last step was done."""
    compile_spans: Floats = field(default_factory=lambda: np.empty((0, 2)))
    """Call and done of each step that compiled, in the order of time; shape (n, 2)."""
    examples: float | None = None
    """Of all batches in the epoch."""


def summarize_gpus(samples: GpuSamples, frame: SampleFrame) -> tuple[GpuSummary, ...]:
    """Each GPU's epoch.

    Args:
        samples: In the order of time; those before and after the epoch only help to find its energy.
        frame: Boundaries of the epoch.

    Returns:
        One summary for each GPU that has samples in the epoch, in the order of their positions.
    """
    present = np.unique(samples["gpu"][_within(samples["seconds"], frame)])
    return tuple(_summarize_gpu(samples[samples["gpu"] == gpu], int(gpu), frame) for gpu in present)


def summarize_host(samples: HostSamples, frame: SampleFrame) -> HostSummary | None:
    """The host's epoch.

    Args:
        samples: In the order of time.
        frame: Boundaries of the epoch.

    Returns:
        `None` without samples in the epoch.
    """
    within = _within(samples["seconds"], frame)
    if not within.any():
        return None
    steady = samples[_steady(samples["seconds"], frame)]
    return HostSummary(
        samples=int(within.sum()),
        cpu_percent=_distribution(steady["cpu_percent"]),
        process_cpu_percent=_distribution(steady["process_cpu_percent"]),
        iowait_percent=_distribution(steady["iowait_percent"]),
        process_memory_max_bytes=_maximum(steady["process_memory_bytes"]),
        memory_max_percent=_maximum(steady["memory_percent"]),
        disk_read_bytes_per_second=_distribution(steady["disk_read_bytes_per_second"]),
        interpreter_busy_percent=_distribution(steady["interpreter_busy_percent"]),
    )


def _summarize_gpu(rows: GpuSamples, gpu: int, frame: SampleFrame) -> GpuSummary:
    steady = rows[_steady(rows["seconds"], frame)]
    energy = find_energy(rows, frame.begin_seconds, frame.end_seconds)
    swings, period = find_swings(steady)
    return GpuSummary(
        gpu=gpu,
        samples=int(_within(rows["seconds"], frame).sum()),
        utilization_percent=_distribution(steady["utilization_percent"]),
        idle_share=_mean(_known(steady["utilization_percent"]) == 0),
        memory_used_percent=_distribution(steady["memory_used_percent"]),
        power_watts=_distribution(steady["power_watts"]),
        energy_joules=energy,
        joules_per_example=energy / frame.examples if energy is not None and frame.examples else None,
        temperature_max_celsius=_maximum(steady["temperature_celsius"]),
        sm_clock_mhz=_distribution(steady["sm_clock_mhz"]),
        thermal_throttle_share=_mean(_known(steady["thermal_throttle"])),
        power_cap_share=_mean(_known(steady["power_cap"])),
        hardware_slowdown_share=_mean(_known(steady["hardware_slowdown"])),
        sm_activity_percent=_distribution(steady["sm_activity_percent"]),
        sm_occupancy_percent=_distribution(steady["sm_occupancy_percent"]),
        tensor_activity_percent=_distribution(steady["tensor_activity_percent"]),
        dram_activity_percent=_distribution(steady["dram_activity_percent"]),
        swings=swings,
        swing_period_seconds=period,
    )


def _within(seconds: Floats, frame: SampleFrame) -> Bools:
    return (seconds >= frame.begin_seconds) & (seconds < frame.end_seconds)


def _steady(seconds: Floats, frame: SampleFrame) -> Bools:
    """Samples between the first and the last step, compiling left out.

    What a sample shows may have begun a second before it. So the first second of the steps, and the one after each
    step that compiled, are left out as well, if enough samples remain: slightly bent values are better than none.
    """
    settled = _among_steps(seconds, frame, SETTLING_SECONDS)
    return settled if settled.sum() >= ENOUGH_SAMPLES else _among_steps(seconds, frame, 0.0)


def _among_steps(seconds: Floats, frame: SampleFrame, settling_seconds: float) -> Bools:
    if frame.steps_begin_seconds is None or frame.steps_end_seconds is None:
        return np.zeros(len(seconds), np.bool_)
    among: Bools = (seconds >= frame.steps_begin_seconds + settling_seconds) & (seconds <= frame.steps_end_seconds)
    if not len(frame.compile_spans):
        return among
    begins, ends = frame.compile_spans.T
    newest = np.searchsorted(begins, seconds, side="right") - 1
    among &= (newest < 0) | (seconds >= ends[newest] + settling_seconds)
    return among


def _known(values: Floats) -> Floats:
    return values[np.isfinite(values)]


def _distribution(values: Floats) -> Distribution | None:
    known = _known(values)
    if not len(known):
        return None
    p5, p50, p95 = np.percentile(known, (5, 50, 95))
    return Distribution(mean=float(known.mean()), p5=float(p5), p50=float(p50), p95=float(p95))


def _mean(values: Floats | Bools) -> float | None:
    return float(values.mean()) if len(values) else None


def _maximum(values: Floats) -> float | None:
    known = _known(values)
    return float(known.max()) if len(known) else None
