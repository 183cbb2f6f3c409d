# SPDX-License-Identifier: Apache-2.0
"""Turns steps into few enough points to write, however long a run is. Plain NumPy, a chunk at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_gpu_watch.records import Floats, StepArray, StepKind

POINTS_PER_STRIDE = 8_192
"""Step points written before the stride doubles: at some 125 bytes each, every doubling of a run's length adds 1 MB."""
FIRST_WINDOW_STEPS = 20
# TensorBoard keeps 1,000 points of a tag and picks them at random beyond that, which could lose the window that holds a
# stall. Quadrupling after 250 windows keeps a run of 100,000 steps (and up to 400,000) below that number.
WINDOWS_PER_LENGTH = 250
# A window's waits are held until it closes; this bounds them at 3 MB.
_LONGEST_WINDOW_STEPS = FIRST_WINDOW_STEPS * 4**6


class Points(NamedTuple):
    """Points to write, oldest first."""

    steps: NDArray[np.int64]
    """Optimizer iteration of each point: that of the last row that it covers."""
    seconds: Floats
    """Time of that row on the monotonic clock; for a step, its end."""
    values: Floats
    """One row per point, one column per series; NaN = not measured, so not to be written."""


def no_points(columns: int) -> Points:
    """No point of so many series."""
    return Points(np.empty(0, np.int64), np.empty(0), np.empty((0, columns)))


def _joined(parts: list[Points], columns: int) -> Points:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return no_points(columns)
    steps, seconds, values = zip(*parts, strict=True)
    return Points(np.concatenate(steps), np.concatenate(seconds), np.concatenate(values))


class MeanThinner:
    """Points that are each the mean over some rows; a value that was not measured (NaN) does not count.

    After each `points_per_stride` points, a point covers twice as many rows as before: however long a run is, as many
    points more are written each time its length doubles.

    Args:
        columns: Series of the rows.
        points_per_stride: Points before the stride doubles.
        stride: Rows of each point at first.
    """

    def __init__(self, columns: int, points_per_stride: int, stride: int = 1) -> None:
        self._points_per_stride = points_per_stride
        self._stride = stride
        self._points = 0
        # The point under way: how many rows it has, their sums, how many of them were measured, and the last one.
        self._filled = 0
        self._sums = np.zeros(columns)
        self._measured = np.zeros(columns)
        self._last_step = 0
        self._last_seconds = 0.0

    def add(self, rows: Points) -> Points:
        """Take the next rows.

        Args:
            rows: Oldest first; they may have columns that those before did not have, on the right.

        Returns:
            The points that these rows complete.
        """
        columns = rows.values.shape[1]
        if not len(rows.steps):
            return no_points(columns)
        self._widen(columns)
        self._last_step, self._last_seconds = int(rows.steps[-1]), float(rows.seconds[-1])
        parts: list[Points] = []
        steps, seconds, values = rows
        begin = 0
        while begin < len(steps):
            end = begin + (self._points_per_stride - self._points) * self._stride - self._filled
            parts.append(self._thin(Points(steps[begin:end], seconds[begin:end], values[begin:end])))
            begin = end
        return _joined(parts, columns)

    def finish(self) -> Points:
        """The point under way, as it stands; none if there is none."""
        if not self._filled:
            return no_points(len(self._sums))
        self._filled = 0
        steps, seconds = np.array([self._last_step]), np.array([self._last_seconds])
        return Points(steps, seconds, _mean(self._sums, self._measured)[np.newaxis])

    def _widen(self, columns: int) -> None:
        more = columns - len(self._sums)
        if more > 0:
            self._sums, self._measured = np.pad(self._sums, (0, more)), np.pad(self._measured, (0, more))

    def _thin(self, rows: Points) -> Points:
        """Thin rows that are known to fit before the stride changes."""
        thinned = rows if self._stride == 1 else self._averaged(rows)
        self._points += len(thinned.steps)
        if self._points == self._points_per_stride:
            self._stride *= 2
            self._points = 0
        return thinned

    def _averaged(self, rows: Points) -> Points:
        stride, before = self._stride, self._filled
        complete, self._filled = divmod(before + len(rows.steps), stride)
        begins = np.maximum(np.arange(-before, len(rows.steps), stride), 0)
        missing = np.isnan(rows.values)
        sums = np.add.reduceat(np.where(missing, 0.0, rows.values), begins)
        measured = np.add.reduceat(~missing, begins, dtype=np.float64)
        if before:
            sums[0] += self._sums
            measured[0] += self._measured
        if self._filled:
            self._sums, self._measured = sums[-1], measured[-1]
        lasts = slice(stride - before - 1, None, stride)
        means = _mean(sums[:complete], measured[:complete])
        return Points(rows.steps[lasts], rows.seconds[lasts], means)


class StepThinner:
    """Step points: input wait, compute, host and total in seconds, in this order, each the mean over the point's steps.

    A point covers one step, or as many as `update_freq` says; after each 8,192 points, twice as many as before.

    Args:
        update_freq: `"batch"`, `"epoch"` (no step points) or a number of steps.
    """

    COLUMNS = 4

    def __init__(self, update_freq: str | int) -> None:
        stride = {"batch": 1, "epoch": 0}[update_freq] if isinstance(update_freq, str) else update_freq
        self._means = MeanThinner(self.COLUMNS, POINTS_PER_STRIDE, stride) if stride else None

    def add(self, chunk: StepArray) -> Points:
        """Take the next steps.

        Args:
            chunk: Rows of `STEP_DTYPE`, oldest first.

        Returns:
            The points that these steps complete.
        """
        if self._means is None:
            return no_points(self.COLUMNS)
        return self._means.add(Points(chunk["step"], chunk["done_seconds"], _step_values(chunk)))

    def finish(self) -> Points:
        """The point under way, as it stands; none if there is none."""
        return no_points(self.COLUMNS) if self._means is None else self._means.finish()


def _step_values(chunk: StepArray) -> Floats:
    call = chunk["done_seconds"] - chunk["call_seconds"]
    host = chunk["host_seconds"]
    total = call + np.where(np.isnan(host), 0.0, host)
    return np.column_stack((chunk["input_wait_seconds"], chunk["compute_seconds"], host, total))


def _mean(sums: Floats, measured: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        means: Floats = sums / measured
    return means


class WindowThinner:
    """Windows of steady steps whose input wait was measured.

    The series are the share of input wait in the window's time, then its mean, 95th percentile, maximum and sum, in
    this order. A window has 20 steps; after each 250 windows, four times as many as before.
    """

    COLUMNS = 5

    def __init__(self) -> None:
        self._length = FIRST_WINDOW_STEPS
        self._windows = 0
        # Tables of [input wait, compute + host, done, step], one row per step.
        self._pending: list[Floats] = []
        self._pending_steps = 0

    def add(self, chunk: StepArray) -> Points:
        """Take the next steps.

        Args:
            chunk: Rows of `STEP_DTYPE`, oldest first.

        Returns:
            One point for each window that these steps complete.
        """
        table = _window_table(chunk)
        if not len(table):
            return no_points(self.COLUMNS)
        self._pending.append(table)
        self._pending_steps += len(table)
        parts: list[Points] = []
        while self._pending_steps >= self._length:
            windows = min(self._pending_steps // self._length, WINDOWS_PER_LENGTH - self._windows)
            parts.append(self._close(windows, self._length))
        return _joined(parts, self.COLUMNS)

    def end_epoch(self) -> Points:
        """Close the window under way if it is at least half full.

        Shorter ones go on into the next epoch: otherwise a run of many short epochs would get a window for each.
        """
        return self._close_rest(self._length // 2)

    def finish(self) -> Points:
        """Close the window under way, however short; none if it has no steps."""
        return self._close_rest(1)

    def _close_rest(self, at_least_steps: int) -> Points:
        if self._pending_steps < at_least_steps:
            return no_points(self.COLUMNS)
        return self._close(1, self._pending_steps)

    def _close(self, windows: int, length: int) -> Points:
        table = np.concatenate(self._pending)
        end = windows * length
        self._pending = [table[end:]]
        self._pending_steps -= end
        self._windows += windows
        if self._windows == WINDOWS_PER_LENGTH:
            self._length = min(4 * self._length, _LONGEST_WINDOW_STEPS)
            self._windows = 0
        return _window_points(table[:end].reshape(windows, length, -1))


def _window_table(chunk: StepArray) -> Floats:
    wait, host = chunk["input_wait_seconds"], chunk["host_seconds"]
    rest = chunk["compute_seconds"] + np.where(np.isnan(host), 0.0, host)
    # A step number is exact in a float up to 2**53.
    table = np.column_stack((wait, rest, chunk["done_seconds"], chunk["step"]))
    steady: Floats = table[(chunk["kind"] == StepKind.STEADY) & ~np.isnan(wait)]
    return steady


def _window_points(tables: Floats) -> Points:
    """Summarize windows.

    Args:
        tables: Shape (windows, steps of a window, 4), columns as in `_window_table`.
    """
    wait = tables[:, :, 0]
    last = tables[:, -1]
    total = wait.sum(axis=1)
    with np.errstate(invalid="ignore"):
        share = total / (total + tables[:, :, 1].sum(axis=1))
    ordered = np.sort(wait, axis=1)
    # By hand, because `np.percentile` costs 100 us a call, which is 1.5 us a step.
    below, fraction = divmod(0.95 * (wait.shape[1] - 1), 1.0)
    p95 = ordered[:, int(below)] * (1.0 - fraction) + ordered[:, min(int(below) + 1, wait.shape[1] - 1)] * fraction
    values = np.column_stack((share, total / wait.shape[1], p95, ordered[:, -1], total))
    return Points(last[:, 3].astype(np.int64), last[:, 2], values)
