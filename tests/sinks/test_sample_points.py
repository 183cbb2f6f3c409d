# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from keras_gpu_watch.records import StepArray
from keras_gpu_watch.samples import GpuSamples, HostSamples
from keras_gpu_watch.sinks.sample_points import (
    GPU_COLUMNS,
    HOST_COLUMNS,
    MAX_HELD_SECONDS,
    POINTS_PER_STRIDE,
    SamplePoints,
)
from keras_gpu_watch.sinks.thinning import Points

MakeSteps = Callable[..., StepArray]
MakeGpus = Callable[..., GpuSamples]
MakeHost = Callable[..., HostSamples]
HOST_CPU = 0
UTILIZATION = len(HOST_COLUMNS)


def _column(field: str, gpu: int = 0) -> int:
    return len(HOST_COLUMNS) + len(GPU_COLUMNS) * gpu + GPU_COLUMNS.index(field)


def _joined(parts: list[Points]) -> Points:
    parts = [points for points in parts if len(points.steps)]
    return Points(*(np.concatenate(column) for column in zip(*parts, strict=True)))


@pytest.fixture
def steps_of_a_second(make_steps: MakeSteps) -> Callable[..., StepArray]:
    """Steps that end at 1.0, 2.0, 3.0, ... s: step n at n seconds."""

    def make(first: int, last: int) -> StepArray:
        return make_steps(last - first + 1, first_step=first, wait=0.5, compute=0.25, host=0.25, start=first - 1.0)

    return make


def test_a_sample_belongs_to_the_step_that_was_under_way(
    steps_of_a_second: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    series = SamplePoints(start_step=0)
    times = [0.3, 0.9, 1.5, 2.2, 2.7]
    none_yet = [series.add_samples(make_gpu_samples(time), make_host_samples(time)) for time in times]
    assert [len(points.steps) for points in none_yet] == [0] * 5
    points = series.add_steps(steps_of_a_second(1, 4))
    assert_array_equal(points.steps, [1, 1, 2, 3, 3])
    assert_array_equal(points.seconds, times)


def test_a_sample_waits_until_its_step_has_ended(
    steps_of_a_second: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    series = SamplePoints(start_step=0)
    for time in (0.5, 1.5, 2.5):
        series.add_samples(make_gpu_samples(time), make_host_samples([]))
    assert_array_equal(series.add_steps(steps_of_a_second(1, 1)).steps, [1])
    assert_array_equal(series.add_steps(steps_of_a_second(2, 2)).steps, [2])
    assert len(series.add_samples(make_gpu_samples(2.9), make_host_samples([])).steps) == 0
    assert_array_equal(series.add_steps(steps_of_a_second(3, 3)).steps, [3, 3])


def test_a_sample_that_comes_late_still_finds_its_step(
    steps_of_a_second: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    series = SamplePoints(start_step=0)
    series.add_steps(steps_of_a_second(1, 3))
    series.add_steps(steps_of_a_second(4, 6))
    assert_array_equal(series.add_samples(make_gpu_samples(1.5), make_host_samples([])).steps, [2])
    assert_array_equal(series.add_samples(make_gpu_samples(4.5), make_host_samples([])).steps, [5])


def test_a_sample_finds_its_step_when_many_were_taken_before(
    steps_of_a_second: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    series = SamplePoints(start_step=0)
    for first in range(1, 50_000, 100):
        series.add_steps(steps_of_a_second(first, first + 99))
    assert_array_equal(series.add_samples(make_gpu_samples(49_850.5), make_host_samples([])).steps, [49_851])


def test_what_is_left_at_an_epochs_end_and_at_the_end_gets_the_last_step(
    steps_of_a_second: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    series = SamplePoints(start_step=0)
    series.add_steps(steps_of_a_second(1, 3))
    series.add_samples(make_gpu_samples(7.0), make_host_samples(7.0))
    assert_array_equal(series.end_epoch().steps, [3])
    assert len(series.end_epoch().steps) == 0
    series.add_samples(make_gpu_samples(8.0), make_host_samples(8.0))
    assert_array_equal(_joined(series.finish()).steps, [3])


def test_without_any_step_samples_get_the_step_where_the_training_began(
    make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    series = SamplePoints(start_step=70)
    series.add_samples(make_gpu_samples(1.0), make_host_samples(1.0))
    assert_array_equal(_joined(series.finish()).steps, [70])


def test_samples_of_a_long_validation_are_not_held_for_ever(
    steps_of_a_second: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    series = SamplePoints(start_step=0)
    series.add_steps(steps_of_a_second(1, 3))
    given = taken = 0
    for time in np.arange(5.0, 205.0, 0.5):
        taken += len(series.add_samples(make_gpu_samples(time), make_host_samples([])).steps)
        given += 1
        assert (given - taken) * 0.5 <= MAX_HELD_SECONDS + 0.5
    assert taken > given / 2
    points = series.add_steps(steps_of_a_second(205, 206))
    assert given - taken == len(points.steps)


def test_gpus_and_host_of_one_sample_are_one_point(
    steps_of_a_second: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    series = SamplePoints(start_step=0)
    series.add_steps(steps_of_a_second(1, 3))
    gpus = make_gpu_samples([0.5, 1.5], gpus=2, power_watts=[100.0, 200.0, 110.0, 210.0])
    points = series.add_samples(gpus, make_host_samples(0.5, cpu_percent=33.0))
    assert_array_equal(points.seconds, [0.5, 1.5])
    assert_array_equal(points.values[:, _column("power_watts", gpu=0)], [100.0, 110.0])
    assert_array_equal(points.values[:, _column("power_watts", gpu=1)], [200.0, 210.0])
    assert_array_equal(points.values[:, HOST_CPU], [33.0, np.nan])


def test_without_a_gpu_the_host_has_points_of_its_own(
    steps_of_a_second: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    series = SamplePoints(start_step=0)
    series.add_steps(steps_of_a_second(1, 3))
    points = series.add_samples(make_gpu_samples([]), make_host_samples([0.5, 1.0, 1.5], cpu_percent=[1.0, 0.0, 3.0]))
    assert_array_equal(points.values[:, HOST_CPU], [1.0, 0.0, 3.0])
    assert points.values.shape == (3, len(HOST_COLUMNS))


def test_the_host_goes_on_through_a_gap_of_the_gpus(
    steps_of_a_second: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    series = SamplePoints(start_step=0)
    series.add_steps(steps_of_a_second(1, 4))
    gpus = make_gpu_samples([0.5, 2.5], utilization_percent=[70.0, 80.0])
    points = series.add_samples(
        gpus, make_host_samples([0.5, 1.0, 1.5, 2.0, 2.5], cpu_percent=[1.0, 2.0, 3.0, 4.0, 5.0])
    )
    assert_array_equal(points.values[:, HOST_CPU], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert_array_equal(points.values[:, UTILIZATION], [70.0, np.nan, np.nan, np.nan, 80.0])
    assert_array_equal(points.steps, [1, 2, 2, 3, 3])


def test_a_gpu_that_is_lost_leaves_a_gap_and_one_that_shows_up_late_gets_columns(
    steps_of_a_second: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    series = SamplePoints(start_step=0)
    series.add_steps(steps_of_a_second(1, 4))
    every = make_gpu_samples([0.5, 1.5, 2.5], gpus=3, temperature_celsius=np.arange(30.0, 39.0))
    # Sample 0 has GPUs 0 and 1, sample 1 has 0 and 2, sample 2 has 1 and 2.
    narrow = series.add_samples(every[[0, 1]], make_host_samples([]))
    assert narrow.values.shape[1] == len(HOST_COLUMNS) + 2 * len(GPU_COLUMNS)
    wide = series.add_samples(every[[3, 5, 7, 8]], make_host_samples([]))
    columns = [_column("temperature_celsius", gpu) for gpu in range(3)]
    assert_array_equal(narrow.values[0, columns[:2]], [30.0, 31.0])
    assert_array_equal(wide.values[:, columns], [[33.0, np.nan, 35.0], [np.nan, 37.0, 38.0]])


def test_a_reading_that_is_missing_is_a_gap_and_a_reading_of_zero_is_zero(
    steps_of_a_second: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    series = SamplePoints(start_step=0)
    series.add_steps(steps_of_a_second(1, 4))
    gpus = make_gpu_samples([0.5, 1.5], utilization_percent=[0.0, np.nan], power_watts=[np.nan, 0.0])
    points = series.add_samples(gpus, make_host_samples(0.5, iowait_percent=np.nan))
    assert_array_equal(points.values[:, _column("utilization_percent")], [0.0, np.nan])
    assert_array_equal(points.values[:, _column("power_watts")], [np.nan, 0.0])
    assert np.isnan(points.values[0, HOST_COLUMNS.index("iowait_percent")])


@pytest.mark.parametrize("length", [1, 7, 4_000])
def test_points_are_means_over_more_and_more_samples(
    steps_of_a_second: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost, length: int
) -> None:
    count = 3 * POINTS_PER_STRIDE + 4
    series = SamplePoints(start_step=0)
    times = 0.5 + np.arange(float(count))
    gpus = make_gpu_samples(times, utilization_percent=np.arange(float(count)))
    # Only each fifth sample has the host.
    host = make_host_samples(times[::5], cpu_percent=np.arange(0.0, count, 5))
    parts = []
    for begin in range(0, count, length):
        end = min(begin + length, count)
        in_part = host[-(-begin // 5) : -(-end // 5)]
        parts.append(series.add_samples(gpus[begin:end], in_part))
        parts.append(series.add_steps(steps_of_a_second(begin + 1, end)))
    points = _joined([*parts, *series.finish()])
    assert_array_equal(np.diff(points.steps, prepend=0), [1] * POINTS_PER_STRIDE + [2] * POINTS_PER_STRIDE + [4])
    assert_array_equal(points.seconds, points.steps - 0.5)
    assert_allclose(points.values[:POINTS_PER_STRIDE, UTILIZATION], np.arange(POINTS_PER_STRIDE))
    assert_allclose(points.values[POINTS_PER_STRIDE:-1, UTILIZATION], np.arange(POINTS_PER_STRIDE, count - 4, 2) + 0.5)
    assert_allclose(points.values[-1, UTILIZATION], count - 2.5)
    cpu = points.values[:, HOST_CPU]
    in_pairs = [pair - pair % 5 if pair % 5 == 0 else pair + 1 for pair in range(POINTS_PER_STRIDE, count - 4, 2)]
    expected = [value if value % 5 == 0 else np.nan for value in in_pairs]
    assert_array_equal(cpu[POINTS_PER_STRIDE:-1], expected)


def test_nothing_in_gives_nothing_out(make_gpu_samples: MakeGpus, make_host_samples: MakeHost) -> None:
    series = SamplePoints(start_step=0)
    assert len(series.add_samples(make_gpu_samples([]), make_host_samples([])).steps) == 0
    assert [len(points.steps) for points in (series.end_epoch(), *series.finish())] == [0, 0, 0]
