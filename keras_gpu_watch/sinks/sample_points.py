# SPDX-License-Identifier: Apache-2.0
"""Turns samples of the devices into points on the step axis, few enough to write however long a run is."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_gpu_watch.records import Floats, Ints, StepArray
from keras_gpu_watch.samples import GpuSamples, HostSamples
from keras_gpu_watch.sinks.thinning import MeanThinner, Points, no_points

HOST_COLUMNS = (
    "cpu_percent",
    "process_cpu_percent",
    "iowait_percent",
    "memory_percent",
    "disk_read_bytes_per_second",
    "interpreter_busy_percent",
)
"""Fields of a point's first columns."""
GPU_COLUMNS = (
    "utilization_percent",
    "memory_used_percent",
    "power_watts",
    "temperature_celsius",
    "sm_clock_mhz",
    "sm_activity_percent",
    "tensor_activity_percent",
    "dram_activity_percent",
)
"""Fields of the columns that follow, once for each GPU: a GPU that shows up late only adds columns on the right."""
POINTS_PER_STRIDE = 512
"""Points written before the stride doubles.

A point of 8 GPUs takes 2.4 kB: every doubling of a run's length adds 1.2 MB, so 24 hours at 0.1 s are 13 MB and a year
is 24 MB.
"""
MAX_HELD_SECONDS = 30.0
"""How long samples wait for their step; at 0.1 s and with 8 GPUs these are 0.4 MB."""
# Where a driver is slow, a sample arrives when steps that ended after it have been taken already.
_REMEMBERED_STEPS = 8_192


class _Held(NamedTuple):
    """Samples that wait for their step."""

    gpus: GpuSamples
    host: HostSamples

    @property
    def newest_seconds(self) -> float:
        return max(float(samples["seconds"][-1]) for samples in self if len(samples))


class SamplePoints:
    """Points of host and GPUs together: one for each sample time at first, then means over more and more of them.

    A point's step is the one that was under way at its time, hence not known before that step has ended: samples wait
    until steps arrive that are newer. What is left at an epoch's end, or waits too long (in a validation), is given the
    last step known.

    Args:
        start_step: Optimizer iterations done before the first step.
    """

    def __init__(self, start_step: int) -> None:
        self._last_step = start_step
        self._last_done_seconds = float("-inf")
        # The newest steps as pairs of arrays: when each ended, and its optimizer iteration.
        self._ended: deque[tuple[Floats, Ints]] = deque()
        self._remembered = 0
        self._held: list[_Held] = []
        self._columns = len(HOST_COLUMNS)
        self._means = MeanThinner(self._columns, POINTS_PER_STRIDE)

    def add_steps(self, chunk: StepArray) -> Points:
        """Take the next steps.

        Args:
            chunk: Rows of `STEP_DTYPE`, oldest first; at least one.

        Returns:
            The points that became complete.
        """
        # Copies, because a view would keep the whole chunk alive.
        self._ended.append((chunk["done_seconds"].copy(), chunk["step"].copy()))
        self._remembered += len(chunk)
        while self._remembered - len(self._ended[0][0]) >= _REMEMBERED_STEPS:
            self._remembered -= len(self._ended.popleft()[0])
        self._last_step, self._last_done_seconds = int(chunk["step"][-1]), float(chunk["done_seconds"][-1])
        return self._place(MAX_HELD_SECONDS)

    def add_samples(self, gpus: GpuSamples, host: HostSamples) -> Points:
        """Take the next samples.

        Args:
            gpus: Rows of `GPU_SAMPLE_DTYPE`, oldest first.
            host: Rows of `HOST_SAMPLE_DTYPE`, oldest first.

        Returns:
            The points that became complete.
        """
        if len(gpus) or len(host):
            self._held.append(_Held(gpus, host))
        return self._place(MAX_HELD_SECONDS)

    def end_epoch(self) -> Points:
        """Give what is left to the last step; call it when the epoch's last steps were taken."""
        return self._place(at_most_seconds=0.0)

    def finish(self) -> list[Points]:
        """Give what is left to the last step, and end the point under way."""
        return [self._place(at_most_seconds=0.0), self._means.finish()]

    def _place(self, at_most_seconds: float) -> Points:
        ready = self._take_ready(at_most_seconds)
        if not ready:
            return no_points(self._columns)
        gpus = np.concatenate([held.gpus for held in ready])
        host = np.concatenate([held.host for held in ready])
        if len(gpus):
            columns = len(HOST_COLUMNS) + len(GPU_COLUMNS) * (int(gpus["gpu"].max()) + 1)
            self._columns = max(self._columns, columns)
        seconds, values = _table(gpus, host, self._columns)
        return self._means.add(Points(self._steps_at(seconds), seconds, values))

    def _take_ready(self, at_most_seconds: float) -> list[_Held]:
        held = self._held
        if not held:
            return []
        if held[-1].newest_seconds - held[0].newest_seconds >= at_most_seconds:
            count = len(held)
        else:
            count = sum(each.newest_seconds <= self._last_done_seconds for each in held)
        self._held = held[count:]
        return held[:count]

    def _steps_at(self, seconds: Floats) -> Ints:
        if not self._ended:
            return np.full(len(seconds), self._last_step)
        done_seconds, steps = (np.concatenate(column) for column in zip(*self._ended, strict=True))
        under_way = np.minimum(np.searchsorted(done_seconds, seconds), len(steps) - 1)
        return np.asarray(steps[under_way], np.int64)


def _table(gpus: GpuSamples, host: HostSamples, columns: int) -> tuple[Floats, Floats]:
    """One row for each sample time, with what host and GPUs gave; NaN where they gave nothing."""
    gpu = gpus["gpu"]
    # GPUs are read in the order of their numbers, so a sample ends where the number does not rise.
    begins = np.append(True, gpu[1:] <= gpu[:-1])[: len(gpu)]
    gpu_rows = np.cumsum(begins) - 1
    gpu_seconds = gpus["seconds"][begins]
    host_rows, host_seconds = _host_rows(gpu_seconds, host["seconds"])
    seconds = np.concatenate((gpu_seconds, host_seconds))
    values = np.full((len(seconds), columns), np.nan)
    values[host_rows, : len(HOST_COLUMNS)] = np.column_stack([host[field] for field in HOST_COLUMNS])
    first_columns = len(HOST_COLUMNS) + len(GPU_COLUMNS) * gpu
    gpu_values = np.column_stack([gpus[field] for field in GPU_COLUMNS])
    values[gpu_rows[:, np.newaxis], first_columns[:, np.newaxis] + np.arange(len(GPU_COLUMNS))] = gpu_values
    order = np.argsort(seconds, kind="stable")
    return seconds[order], values[order]


def _host_rows(gpu_seconds: Floats, host_seconds: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Where the host's samples go in a table that begins with the GPUs' ones, and the times of those that are added.

    The host is read after the GPUs: its first sample after theirs belongs to the same time. Where the GPUs have a gap,
    its further ones have times of their own.
    """
    rows = np.searchsorted(gpu_seconds, host_seconds, side="right") - 1
    # -1, before the first of the GPUs' samples, counts as taken.
    added = rows == np.append(-1, rows[:-1])[: len(rows)]
    rows[added] = len(gpu_seconds) + np.arange(np.count_nonzero(added))
    return rows, host_seconds[added]
