# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
from known_epochs import a_batch, a_context, a_host, a_map, a_pipeline, a_source, an_epoch, some_info

from keras_gpu_watch.diagnosis.context import work_seconds
from keras_gpu_watch.findings import Stage


def test_a_batchs_time_is_split_by_the_share_of_the_wait():
    times = a_context(an_epoch(wait=0.030, compute=0.008, hooks=0.002)).times

    assert (times.wait_seconds, times.rest_seconds) == pytest.approx((0.030, 0.010))


@pytest.mark.parametrize(
    "changes",
    [{"input_wait_share": None}, {"input_wait_share": 1.0}, {"batches_per_second": None}, {"batches_per_second": 0.0}],
)
def test_batch_times_that_are_not_known_are_none(changes):
    assert a_context(an_epoch(wait=0.030, **changes)).times is None


def test_the_only_python_stage_is_blamed_where_nothing_is_measured():
    python = Stage(index=0, op="from_generator", python="py_dataset")
    behind = Stage(index=1, op="prefetch")

    assert a_context(an_epoch(pipeline=a_pipeline(python, behind))).blamed.op == "from_generator"
    assert a_context(an_epoch(pipeline=a_pipeline(python, python))).blamed is None
    # Measured, and nobody waits for it.
    measured = a_map(0.001, wait_share=None, python="numpy_function")
    assert a_context(an_epoch(pipeline=a_pipeline(measured))).blamed is None


@pytest.mark.parametrize(
    ("serial", "slowest", "explained"),
    [(0.004, None, 0.004), (0.0, 0.030, 0.020), (0.004, 0.030, 0.020), (0.0, 0.009, 0.0), (None, None, 0.0)],
)
def test_waits_are_explained_by_serial_work_and_what_does_not_fit_beside_the_step(serial, slowest, explained):
    stages = a_pipeline(serial_seconds_per_batch=serial, slowest_seconds_per_batch=slowest)

    assert a_context(an_epoch(wait=0.020, pipeline=stages)).explained_wait_seconds == pytest.approx(explained)


@pytest.mark.parametrize(
    ("lock", "hooks", "eager", "share"),
    [
        (80.0, 0.0, False, 0.8),
        # A fifth of the time is host time: of the rest, three quarters.
        (80.0, 0.005, False, 0.75),
        (10.0, 0.005, False, 0.0),
        # Eager steps are half of the time.
        (80.0, 0.0, True, 0.6),
        (0.0, 0.0, False, 0.0),
        (None, 0.0, False, None),
    ],
)
def test_the_locks_share_leaves_out_what_the_trainings_own_thread_may_have_held(lock, hooks, eager, share):
    epoch = an_epoch(wait=0.010, compute=0.010, hooks=hooks, host=a_host(lock=lock))

    found = a_context(epoch, info=some_info(run_eagerly=eager)).lock_share

    assert found == (None if share is None else pytest.approx(share))


def test_a_lock_that_the_training_may_have_held_all_the_time_says_nothing_of_others():
    epoch = an_epoch(wait=0.0, host=a_host(lock=100.0))

    assert a_context(epoch, info=some_info(run_eagerly=True)).lock_share == 0.0


def test_an_epoch_without_its_only_part_is_not_faster_by_a_number():
    context = a_context(an_epoch(wall_seconds=2.0))

    assert context.speedup_without(1.0) == pytest.approx(2.0)
    assert context.speedup_without(2.0) is None
    assert context.speedup_without(3.0) is None


def test_stages_below_are_found_once_whatever_their_indices():
    diamond = (
        a_source(),
        a_map(0.001, inputs=(0,)),
        a_map(0.001, inputs=(0,)),
        Stage(index=0, op="zip", inputs=(1, 2, 4, -1, 3)),
    )
    context = a_context(an_epoch(pipeline=a_pipeline(*diamond)))

    assert sorted(stage.index for stage in context.below(context.pipeline.stages[3])) == [0, 1, 2, 3]
    assert context.below(context.pipeline.stages[0]) == ()


def test_work_is_what_was_counted_where_that_explains_the_wait():
    context = a_context(an_epoch(wait=0.020, pipeline=a_pipeline(a_map(0.060, parallelism=2.0))))

    assert work_seconds(context, context.blamed) == 0.060


@pytest.mark.parametrize("busy", [0.001, None])
def test_work_is_as_long_as_a_batch_in_each_call_where_it_was_not_counted(busy):
    context = a_context(an_epoch(wait=0.020, pipeline=a_pipeline(a_source(), a_batch())))

    assert work_seconds(context, a_map(busy, parallelism=4.0)) == pytest.approx(0.120)


def test_without_batch_times_work_is_what_was_counted():
    assert work_seconds(a_context(an_epoch(batches_per_second=None)), a_map(0.060)) == 0.060


def test_a_statistic_of_no_number_is_none():
    assert a_context(an_epoch(host=a_host(lock=math.nan))).lock_share is None


@pytest.mark.parametrize(
    ("longest", "share"),
    [
        # 100 steps of 15 ms, of which 0.5 s are waits.
        (0.25, 1 / 3),
        (0.26, (0.5 - 0.26) / (1.5 - 0.26)),
        (0.5, 0.0),
        (None, 1 / 3),
    ],
)
def test_a_single_stall_that_is_most_of_the_waiting_is_left_out(longest, share):
    context = a_context(an_epoch(wait=0.005, compute=0.010, input_wait_max_seconds=longest))

    assert context.wait_share == pytest.approx(share)
