# SPDX-License-Identifier: Apache-2.0
"""Chooses a few steps that stand for an epoch, for its picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from keras_gpu_watch.findings import StepTimes
from keras_gpu_watch.records import Bools, Floats, StepArray

STRETCH_STEPS = 8
STALL_RATIO = 2.0
"""A wait of so many times the mean is a stall. Where the median step hardly waits, stalls are what the waiting is."""


def typical_stretch(steps: StepArray, steady: Bools, waits_seconds: Floats) -> tuple[StepTimes, ...]:
    """Some steady steps in a row whose mean wait is nearest to that of all.

    Args:
        steps: Rows of `STEP_DTYPE`, consecutive.
        steady: Which of them are steady; shape (n,).
        waits_seconds: Each one's input wait, NaN where not known; shape (n,).

    Returns:
        At most 8 steps; with a stall among them, in the middle if possible, where the waiting is stalls. None where no
        steady step's wait is known.
    """
    usable = steady & ~np.isnan(waits_seconds) & ~np.isnan(steps["host_seconds"])
    if not usable.any():
        return ()
    length = min(STRETCH_STEPS, _longest_run(usable))
    waits = sliding_window_view(waits_seconds, length)
    candidates = sliding_window_view(usable, length).all(axis=1)
    mean = float(waits_seconds[usable].mean())
    stalls = waits.max(axis=1) >= STALL_RATIO * mean
    if float(np.median(waits_seconds[usable])) < mean / STALL_RATIO and (candidates & stalls).any():
        candidates &= stalls
    off_mean = np.where(candidates, np.abs(waits.mean(axis=1) - mean), np.inf)
    # Among equals, the one whose longest wait is in the middle.
    off_middle = np.abs(waits.argmax(axis=1) - length // 2)
    is_near = off_mean <= off_mean.min() + 0.05 * mean
    first = int(np.argmin(np.where(is_near, off_middle, length)))
    chosen = slice(first, first + length)
    seconds = (steps["done_seconds"] - steps["call_seconds"])[chosen]
    columns = (steps["host_seconds"][chosen], waits_seconds[chosen], seconds - waits_seconds[chosen])
    return tuple(StepTimes(*(float(value) for value in row)) for row in zip(*columns, strict=True))


def nearest_stretch(stretches: Sequence[tuple[StepTimes, ...]], mean_wait_seconds: float) -> tuple[StepTimes, ...]:
    """Of the longest stretches the one whose mean wait is nearest to a given one.

    Args:
        stretches: Of which some may be empty.
        mean_wait_seconds: Of all the steps that they were chosen from.
    """
    # A few steps at the end of an epoch can't show what happens now and then.
    longest = max(len(stretch) for stretch in stretches)
    candidates = [stretch for stretch in stretches if stretch and len(stretch) == longest]
    return min(candidates, key=lambda stretch: abs(_mean_wait(stretch) - mean_wait_seconds), default=())


def _mean_wait(stretch: tuple[StepTimes, ...]) -> float:
    return sum(step.input_wait_seconds for step in stretch) / len(stretch)


def _longest_run(flags: Bools) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]])))
    return int((edges[1::2] - edges[::2]).max())
