# SPDX-License-Identifier: Apache-2.0
"""The steps that stand for an epoch in its picture."""

from __future__ import annotations

import numpy as np
import pytest

from keras_gpu_watch.accounting.typical import STRETCH_STEPS, nearest_stretch, typical_stretch
from keras_gpu_watch.findings import StepTimes
from keras_gpu_watch.records import STEP_DTYPE

COMPUTE, HOST = 0.010, 0.001


def stretch_of(waits: list[float], steady: list[bool] | None = None) -> tuple[StepTimes, ...]:
    waiting = np.array(waits)
    steps = np.zeros(len(waits), STEP_DTYPE)
    ends = np.cumsum(HOST + np.nan_to_num(waiting) + COMPUTE)
    steps["done_seconds"] = ends
    steps["call_seconds"] = ends - np.nan_to_num(waiting) - COMPUTE
    steps["host_seconds"] = HOST
    return typical_stretch(steps, np.ones(len(waits), np.bool_) if steady is None else np.array(steady), waiting)


def waits_of(stretch: tuple[StepTimes, ...]) -> list[float]:
    return [step.input_wait_seconds for step in stretch]


def test_even_waits_give_some_of_the_steps_with_all_three_times():
    stretch = stretch_of([0.020] * 30)

    assert len(stretch) == STRETCH_STEPS
    for step in stretch:
        assert step.host_seconds == pytest.approx(HOST)
        assert step.input_wait_seconds == pytest.approx(0.020)
        assert step.compute_seconds == pytest.approx(COMPUTE)


def test_an_outlier_is_not_typical_where_all_steps_wait():
    assert max(waits_of(stretch_of([0.020] * 20 + [0.300] + [0.020] * 20))) == pytest.approx(0.020)


def test_where_only_some_steps_wait_such_a_stall_is_shown_in_the_middle():
    waits = waits_of(stretch_of(([0.0] * 19 + [0.100]) * 4))

    assert max(waits) == pytest.approx(0.100)
    assert waits.index(max(waits)) == STRETCH_STEPS // 2


def test_steps_that_compile_or_are_not_known_are_left_out():
    steady = [False, *[True] * 4, False, *[True] * 3]

    assert len(stretch_of([0.02] * 9, steady)) == 4
    assert len(stretch_of([0.02, np.nan, 0.02, 0.02])) == 2


def test_nothing_known_gives_no_stretch():
    assert stretch_of([np.nan] * 5) == ()
    assert stretch_of([0.0] * 3, [False] * 3) == ()


def test_a_wait_of_zero_is_known():
    assert waits_of(stretch_of([0.0] * 3)) == [0.0] * 3


def test_of_two_stretches_the_one_nearer_to_the_mean_stays():
    slow, fast = stretch_of([0.050] * 8), stretch_of([0.001] * 8)

    assert nearest_stretch((slow, (), fast), 0.045) == slow
    assert nearest_stretch((slow, fast), 0.005) == fast
    assert nearest_stretch(((), ()), 0.005) == ()


def test_a_few_last_steps_are_not_taken_before_a_full_stretch():
    full, few = stretch_of([0.050] * 8), stretch_of([0.001] * 3)

    assert nearest_stretch((full, few), 0.001) == full
