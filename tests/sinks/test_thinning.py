# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from keras_gpu_watch.records import StepArray, StepKind
from keras_gpu_watch.sinks.thinning import POINTS_PER_STRIDE, MeanThinner, Points, StepThinner, WindowThinner

MakeSteps = Callable[..., StepArray]
WAIT, COMPUTE, HOST, TOTAL = range(4)
SHARE, MEAN, P95, MAX, SUM = range(5)


def _chunks(steps: StepArray, length: int) -> Iterator[StepArray]:
    return (steps[begin : begin + length] for begin in range(0, len(steps), length))


def _all_points(thinner: StepThinner | WindowThinner, steps: StepArray, length: int) -> Points:
    parts = [thinner.add(chunk) for chunk in _chunks(steps, length)]
    parts.append(thinner.finish())
    columns = list(zip(*parts, strict=True))
    return Points(*(np.concatenate(column) for column in columns))


def test_every_step_is_a_point_at_batch_frequency(make_steps: MakeSteps) -> None:
    steps = make_steps(5, first_step=101, wait=[1.0, 2.0, 3.0, 4.0, 5.0], compute=0.5, host=0.25)
    points = StepThinner("batch").add(steps)
    assert_array_equal(points.steps, [101, 102, 103, 104, 105])
    assert_array_equal(points.seconds, steps["done_seconds"])
    assert_allclose(points.values[:, TOTAL], [1.75, 2.75, 3.75, 4.75, 5.75])
    assert_allclose(points.values[:, :TOTAL], [[wait, 0.5, 0.25] for wait in (1, 2, 3, 4, 5)])


def test_epoch_frequency_writes_no_step_points(make_steps: MakeSteps) -> None:
    assert len(_all_points(StepThinner("epoch"), make_steps(50), 10).steps) == 0


@pytest.mark.parametrize("length", [1, 3, 7, 64])
def test_a_point_is_the_mean_over_its_steps_however_they_are_chunked(make_steps: MakeSteps, length: int) -> None:
    steps = make_steps(10, wait=np.arange(10.0))
    points = _all_points(StepThinner(4), steps, length)
    assert_array_equal(points.steps, [4, 8, 10])
    assert_array_equal(points.seconds, steps["done_seconds"][[3, 7, 9]])
    assert_allclose(points.values[:, WAIT], [1.5, 5.5, 8.5])


def test_a_mean_counts_only_what_was_measured(make_steps: MakeSteps) -> None:
    steps = make_steps(4, wait=[1.0, np.nan, np.nan, np.nan])
    points = StepThinner(2).add(steps)
    assert_array_equal(points.values[:, WAIT], [1.0, np.nan])


def test_a_wait_of_zero_counts(make_steps: MakeSteps) -> None:
    points = StepThinner(2).add(make_steps(2, wait=[1.0, 0.0]))
    assert_array_equal(points.values[:, WAIT], [0.5])


def test_total_of_a_step_without_host_time_is_its_call(make_steps: MakeSteps) -> None:
    points = StepThinner("batch").add(make_steps(1, wait=2.0, compute=1.0, host=np.nan))
    assert_array_equal(points.values, [[2.0, 1.0, np.nan, 3.0]])


def test_the_stride_doubles_after_each_8192_points(make_steps: MakeSteps) -> None:
    count = POINTS_PER_STRIDE * 3 + 8
    steps = make_steps(count, wait=np.arange(float(count)))
    for length in (64, 5_000, count):
        points = _all_points(StepThinner("batch"), steps, length)
        gaps = np.diff(points.steps, prepend=0)
        assert_array_equal(gaps, [1] * POINTS_PER_STRIDE + [2] * POINTS_PER_STRIDE + [4, 4])
        assert_allclose(points.values[POINTS_PER_STRIDE, WAIT], POINTS_PER_STRIDE + 0.5)
        assert_allclose(points.values[-1, WAIT], count - 2.5)


def _rows(values: list[list[float]], first_step: int = 1) -> Points:
    steps = np.arange(first_step, first_step + len(values))
    return Points(steps, steps / 2.0, np.array(values))


def test_the_number_of_points_before_the_stride_doubles_can_be_chosen() -> None:
    points = MeanThinner(1, points_per_stride=3).add(_rows([[float(value)] for value in range(1, 10)]))
    assert_array_equal(points.steps, [1, 2, 3, 5, 7, 9])
    assert_array_equal(points.seconds, 0.5 * points.steps)
    assert_array_equal(points.values[:, 0], [1, 2, 3, 4.5, 6.5, 8.5])


def test_a_series_that_begins_in_the_middle_of_a_point_is_averaged_from_there() -> None:
    thinner = MeanThinner(1, points_per_stride=100, stride=4)
    assert len(thinner.add(_rows([[1.0], [3.0]])).steps) == 0
    points = thinner.add(_rows([[3.0, 8.0], [5.0, 6.0], [2.0, 1.0]], first_step=3))
    assert_array_equal(points.steps, [4])
    assert_array_equal(points.values, [[3.0, 7.0]])
    assert_array_equal(thinner.finish().values, [[2.0, 1.0]])


def test_a_window_summarizes_twenty_steady_steps(make_steps: MakeSteps) -> None:
    waits = np.linspace(0.1, 2.0, 20)
    steps = make_steps(20, wait=np.random.permutation(waits), compute=1.0, host=0.5)
    points = WindowThinner().add(steps)
    assert_array_equal(points.steps, [20])
    assert_array_equal(points.seconds, steps["done_seconds"][-1:])
    expected = [21 / (21 + 30), waits.mean(), np.percentile(waits, 95), 2.0, 21.0]
    assert_allclose(points.values, [expected])


@pytest.mark.parametrize("length", [1, 7, 64])
def test_windows_do_not_depend_on_the_chunks(make_steps: MakeSteps, length: int) -> None:
    steps = make_steps(90, wait=np.arange(90.0))
    points = _all_points(WindowThinner(), steps, length)
    assert_array_equal(points.steps, [20, 40, 60, 80, 90])
    assert_allclose(points.values[:, SUM], [190, 590, 990, 1390, 845])


def test_first_and_compiling_steps_stay_out_of_the_windows(make_steps: MakeSteps) -> None:
    steps = make_steps(22, wait=0.0)
    steps["kind"][0], steps["kind"][11] = StepKind.FIRST, StepKind.COMPILE
    steps["input_wait_seconds"][[0, 11]] = 99.0
    points = WindowThinner().add(steps)
    assert_array_equal(points.steps, [22])
    assert_array_equal(points.values, [[0, 0, 0, 0, 0]])


def test_steps_whose_wait_is_not_known_make_no_window(make_steps: MakeSteps) -> None:
    thinner = WindowThinner()
    assert len(_all_points(thinner, make_steps(100, wait=np.nan), 10).steps) == 0


def test_without_compute_a_window_has_waits_but_no_share(make_steps: MakeSteps) -> None:
    points = WindowThinner().add(make_steps(20, wait=0.5, compute=np.nan))
    assert_array_equal(points.values[0], [np.nan, 0.5, 0.5, 0.5, 10.0])


def test_a_long_run_keeps_below_a_thousand_windows_and_loses_no_stall(make_steps: MakeSteps) -> None:
    waits = np.full(100_000, 0.001)
    waits[99_990] = 7.0
    points = _all_points(WindowThinner(), make_steps(100_000, wait=waits), 64)
    assert 250 < len(points.steps) < 1_000
    assert points.values[-1, MAX] == 7.0
    assert_allclose(points.values[:, SUM].sum(), waits.sum())
    assert points.steps[-1] == 100_000


def test_many_short_epochs_keep_below_a_thousand_windows(make_steps: MakeSteps) -> None:
    thinner = WindowThinner()
    windows = 0
    for epoch in range(10_000):
        windows += len(thinner.add(make_steps(10, first_step=10 * epoch + 1)).steps)
        windows += len(thinner.end_epoch().steps)
    assert 250 < windows < 1_000


def test_an_epoch_closes_a_window_that_is_half_full_and_keeps_a_shorter_one(make_steps: MakeSteps) -> None:
    thinner = WindowThinner()
    thinner.add(make_steps(9))
    assert len(thinner.end_epoch().steps) == 0
    thinner.add(make_steps(2, first_step=10))
    assert_array_equal(thinner.end_epoch().steps, [11])
    assert len(thinner.finish().steps) == 0


def test_nothing_in_gives_nothing_out(make_steps: MakeSteps) -> None:
    for thinner in (StepThinner("batch"), StepThinner(3), WindowThinner()):
        assert len(_all_points(thinner, make_steps(0), 1).steps) == 0
