# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import pytest
from known_epochs import a_gpu, a_machine, an_epoch, some_info

from keras_gpu_watch.diagnosis import diagnose
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.samples import GpuDevice


def kinds(epoch, *earlier, devices=None):
    verdict, others = diagnose([*earlier, epoch], devices or a_machine(), some_info())
    return verdict.kind, {verdict.kind, *(other.kind for other in others)}


def test_each_limit_names_its_source():
    for limit in dataclasses.fields(LIMITS):
        assert limit.metadata["source"].startswith(("XProf", "TraceML", "SageMaker", "PyTorch", "Ours: "))


@pytest.mark.parametrize(
    ("share", "kind"),
    [
        (0.0, "compute_bound"),
        (0.049, "compute_bound"),
        (0.05, "moderately_input_bound"),
        (0.051, "moderately_input_bound"),
        (0.199, "moderately_input_bound"),
        (0.20, "input_bound"),
        (0.201, "input_bound"),
        (1.0, "input_bound"),
    ],
)
def test_the_share_of_the_wait_decides_at_its_limits_exactly(share, kind):
    epoch = an_epoch(wait=0.001, input_wait_share=share)

    assert kinds(epoch)[0] == kind


@pytest.mark.parametrize(("steps", "kind"), [(19, "insufficient_data"), (20, "input_bound")])
def test_twenty_steady_steps_allow_a_claim(steps, kind):
    epoch = an_epoch(wait=0.010, steps=100, steady_steps=steps)

    assert kinds(epoch)[0] == kind


@pytest.mark.parametrize(
    ("host_seconds", "is_bound"),
    [(0.00109, False), (0.001 / 0.9, True), (0.00112, True)],
)
def test_a_tenth_of_the_steps_is_much_host_time(host_seconds, is_bound):
    # 10 ms of compute: a tenth of the step is 1.11 ms.
    epoch = an_epoch(compute=0.010, hooks=host_seconds * 1.0000001)

    assert ("host_bound" in kinds(epoch)[1]) == is_bound


@pytest.mark.parametrize(
    ("part", "kind", "limit"),
    [
        ("first_batch_seconds", "epoch_start_bound", LIMITS.epoch_start_share),
        ("validation_seconds", "validation_bound", LIMITS.validation_share),
        ("epoch_end_seconds", "host_bound", LIMITS.host_share),
        ("compile_seconds", "compile_bound", LIMITS.compile_share),
    ],
)
@pytest.mark.parametrize(("off", "is_bound"), [(-0.001, False), (0.0, True), (0.001, True)])
def test_parts_of_the_wall_time_count_from_their_limit_on(part, kind, limit, off, is_bound):
    epoch = an_epoch(epoch=1, wall_seconds=10.0, **{part: 10 * (limit + off), "compile_steps": 5})

    assert (kind in kinds(epoch, an_epoch(first_batch_seconds=epoch.first_batch_seconds))[1]) == is_bound


@pytest.mark.parametrize(("wall", "is_claimed"), [(0.99, False), (1.0, True)])
def test_an_epoch_of_a_second_allows_a_claim_on_its_parts(wall, is_claimed):
    epoch = an_epoch(steps=5, wall_seconds=wall, validation_seconds=0.9)

    assert ("validation_bound" in kinds(epoch)[1]) == is_claimed


@pytest.mark.parametrize(
    ("mean", "p95", "is_underused"),
    [(60.0, 69.9, True), (60.0, 70.0, False), (49.9, 90.0, True), (50.0, 90.0, False)],
)
def test_a_gpu_is_underused_below_its_limits(mean, p95, is_underused):
    epoch = an_epoch(gpus=(a_gpu(mean, p95=p95),))

    assert ("gpu_underused" in kinds(epoch, devices=a_machine(gpus=(GpuDevice(name="A"),)))[1]) == is_underused


@pytest.mark.parametrize(("activity", "is_underused"), [(29.9, True), (30.0, False), (None, False), (0.0, True)])
def test_idle_multiprocessors_count_although_some_kernel_always_runs(activity, is_underused):
    epoch = an_epoch(gpus=(a_gpu(99.0, activity=activity),))

    assert ("gpu_underused" in kinds(epoch)[1]) == is_underused
