# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import pytest
from known_epochs import (
    a_batch,
    a_context,
    a_gpu,
    a_host,
    a_machine,
    a_map,
    a_pipeline,
    a_source,
    an_epoch,
    find_by,
    some_info,
)

from keras_gpu_watch.diagnosis.rules.gpu import SHARED, THROTTLED, UNDERUSED
from keras_gpu_watch.samples import GpuDevice

MACHINE = a_machine(gpus=(GpuDevice(name="A100"), GpuDevice(name="A100")))


def find(rule, *gpus, info=None, machine=MACHINE, **changes):
    epoch = an_epoch(**{"compute": 0.050, **changes}, gpus=gpus)
    return find_by(rule, a_context(epoch, devices=machine, info=info or some_info()))


def test_an_idle_gpu_with_long_steps_and_no_wait_is_launch_bound():
    verdict = find(UNDERUSED, a_gpu(30.0))

    assert (verdict.kind, verdict.cause) == ("gpu_underused", "launch_bound")
    assert verdict.lost_share == pytest.approx(0.7)
    assert any("jit_compile=True" in (each.code or "") for each in verdict.suggestions)


def test_xla_is_not_offered_where_it_is_on():
    verdict = find(UNDERUSED, a_gpu(30.0), info=some_info(jit_compile=True))

    assert not any("jit_compile" in (each.code or "") for each in verdict.suggestions)


def test_an_idle_gpu_with_short_steps_has_small_batches():
    verdict = find(UNDERUSED, a_gpu(30.0), compute=0.003, pipeline=a_pipeline(a_source(), a_batch()))

    assert verdict.cause == "small_batch"
    assert verdict.suggestions[0].code == "ds = ds.batch(128)"


def test_python_in_the_step_is_named():
    assert find(UNDERUSED, a_gpu(30.0), info=some_info(run_eagerly=True)).cause == "host_op"
    assert find(UNDERUSED, a_gpu(30.0), host=a_host(lock=90.0)).cause == "host_op"


@pytest.mark.parametrize("lock", [None, 0.0])
def test_a_lock_that_is_free_or_not_measured_says_nothing_of_the_step(lock):
    assert find(UNDERUSED, a_gpu(30.0), host=a_host(lock=lock)).cause == "launch_bound"


def test_python_in_the_pipeline_is_not_taken_for_the_steps():
    stages = a_pipeline(a_source(), a_map(0.001, python="numpy_function"))

    assert find(UNDERUSED, a_gpu(30.0), host=a_host(lock=90.0), pipeline=stages).cause == "launch_bound"


def test_several_replicas_are_sent_to_their_communication_and_never_to_the_pipeline():
    verdict = find(UNDERUSED, a_gpu(10.0), info=some_info(replicas=8))

    assert verdict.cause == "communication"
    assert "prefetch" not in str(verdict)


def test_a_model_on_the_cpu_beside_an_idle_gpu_is_named():
    assert find(UNDERUSED, a_gpu(0.0), info=some_info(on_accelerator=False)).cause == "training_on_cpu"


def test_a_gpu_that_waits_for_input_or_callbacks_is_not_underused_by_itself():
    assert find(UNDERUSED, a_gpu(30.0), wait=0.010) is None
    assert find(UNDERUSED, a_gpu(30.0), hooks=0.010) is None


def test_a_gpu_without_samples_is_not_idle_and_one_at_zero_is():
    assert find(UNDERUSED) is None
    assert find(UNDERUSED, a_gpu(None)) is None
    assert find(UNDERUSED, a_gpu(0.0)) is not None


def test_the_busiest_gpu_counts():
    idle = dataclasses.replace(a_gpu(0.0), gpu=1)

    assert find(UNDERUSED, a_gpu(95.0), idle) is None


@pytest.mark.parametrize(
    ("share", "severity"),
    [
        ({"thermal_throttle_share": 0.5}, "warning"),
        ({"hardware_slowdown_share": 0.05}, "warning"),
        ({"power_cap_share": 0.5}, "info"),
    ],
)
def test_clocks_that_are_held_down_are_a_finding_of_their_own(share, severity):
    verdict = find(THROTTLED, a_gpu(99.0, **share))

    assert (verdict.kind, verdict.cause, verdict.severity) == ("compute_bound", "throttled", severity)


@pytest.mark.parametrize("share", [None, 0.0, 0.049])
def test_clocks_that_are_free_or_not_known_are_none(share):
    assert find(THROTTLED, a_gpu(99.0, thermal_throttle_share=share)) is None


@pytest.mark.parametrize(("others", "is_shared"), [(2, True), (0, False), (None, False)])
def test_a_gpu_of_several_processes_is_shared(others, is_shared):
    machine = a_machine(gpus=(GpuDevice(name="A100", other_processes=others),))

    verdict = find(SHARED, a_gpu(99.0), machine=machine)

    assert (verdict is not None) == is_shared
    assert verdict is None or verdict.cause == "gpu_shared"


def test_the_loss_is_the_idle_part_of_the_compute_by_the_stricter_measure():
    # Compute is half of the wall time.
    by_activity = find(UNDERUSED, a_gpu(90.0, activity=20.0), validation_seconds=5.0)
    by_use = find(UNDERUSED, a_gpu(30.0), validation_seconds=5.0)

    assert by_activity.lost_share == pytest.approx(0.8 * 0.5)
    assert by_use.lost_share == pytest.approx(0.7 * 0.5)
    assert by_activity.evidence["gpu_sm_activity_mean_percent"] == 20.0
    assert "20 % of its multiprocessors" in by_activity.headline


@pytest.mark.parametrize(("seconds", "cause"), [(0.0099, "small_batch"), (0.010, "launch_bound")])
def test_a_short_step_is_shorter_than_its_limit(seconds, cause):
    assert find(UNDERUSED, a_gpu(30.0), compute=seconds, batches_per_second=1 / seconds).cause == cause
