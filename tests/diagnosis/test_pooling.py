# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import pytest
from known_epochs import a_gpu, a_host, a_map, a_pipeline, a_source, an_epoch, constant

from keras_gpu_watch.diagnosis.pooling import pool
from keras_gpu_watch.findings import CallbackSeconds


def test_seconds_and_counts_add_up():
    whole = pool([an_epoch(wait=0.01, validation_seconds=1.0), an_epoch(epoch=1, wait=0.03, first_batch_seconds=0.5)])

    assert (whole.epoch, whole.steps, whole.steady_steps, whole.batches) == (1, 200, 200, 200)
    assert whole.wall_seconds == pytest.approx(2.0 + 4.0 + 1.5)
    assert whole.input_wait_seconds == pytest.approx(4.0)
    assert (whole.validation_seconds, whole.first_batch_seconds) == (1.0, 0.5)


def test_the_share_and_the_ceiling_are_those_of_all_steps_together():
    whole = pool([an_epoch(wait=0.01), an_epoch(wait=0.03)])

    # 4 s of 6 s.
    assert whole.input_wait_share == pytest.approx(2 / 3)
    assert whole.ceiling_speedup == pytest.approx(3.0)
    assert whole.batches_per_second == pytest.approx(200 / 6)


def test_what_one_epoch_does_not_know_is_not_taken_for_zero():
    whole = pool([an_epoch(wait=0.01), an_epoch(wait=None)])

    assert whole.input_wait_seconds is None
    assert whole.input_wait_share == pytest.approx(0.5)
    assert pool([an_epoch(wait=None)]).input_wait_share is None
    assert pool([an_epoch()]).validation_seconds is None


def test_statistics_are_weighted_with_samples():
    many = dataclasses.replace(a_gpu(90.0), samples=60)
    whole = pool([an_epoch(gpus=(a_gpu(10.0),)), an_epoch(gpus=(many,), host=a_host(cpu=40.0))])

    use, host = whole.gpus[0].utilization_percent, whole.host
    assert use is not None
    assert host is not None
    assert use.mean == pytest.approx(70.0)
    assert host.process_cpu_percent == constant(40.0)
    assert host.interpreter_busy_percent is None


def test_a_callbacks_seconds_add_up():
    plotter = CallbackSeconds(name="Plotter", step_seconds=1.0, epoch_seconds=0.5, validation_seconds=0.2)
    whole = pool([an_epoch(callbacks=(plotter,)), an_epoch(callbacks=(plotter,))])

    assert whole.callbacks == (
        CallbackSeconds(name="Plotter", step_seconds=2.0, epoch_seconds=1.0, validation_seconds=0.4),
    )


def test_extremes_are_those_of_the_whole_run():
    whole = pool(
        [
            an_epoch(input_wait_max_seconds=0.5, host=a_host(memory=20.0), compile_steps=1),
            an_epoch(input_wait_max_seconds=0.1, host=a_host(memory=90.0), compile_steps=4),
            an_epoch(input_wait_max_seconds=None, host=a_host(memory=None)),
        ]
    )

    assert whole.host is not None
    assert (whole.input_wait_max_seconds, whole.host.memory_max_percent, whole.compile_steps) == (0.5, 90.0, 4)


def test_the_newest_pipeline_with_a_stage_to_blame_is_kept_and_else_the_newest():
    blamed, other = a_pipeline(a_map(0.030)), a_pipeline(a_source())

    assert pool([an_epoch(pipeline=blamed), an_epoch(pipeline=other), an_epoch()]).pipeline == blamed
    assert pool([an_epoch(pipeline=other), an_epoch()]).pipeline == other
    assert pool([an_epoch()]).pipeline is None


def test_epochs_without_samples_or_steps_weigh_nothing():
    unsampled = dataclasses.replace(a_gpu(0.0), samples=0)
    whole = pool([an_epoch(gpus=(unsampled,)), an_epoch(gpus=(a_gpu(80.0),))])

    assert whole.gpus[0].utilization_percent == constant(80.0)


def test_the_compilations_of_several_epochs_make_no_storm():
    assert pool([an_epoch(compile_steps=2)] * 5).compile_steps == 2
