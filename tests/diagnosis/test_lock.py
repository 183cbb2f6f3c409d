# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from known_epochs import a_context, a_host, a_map, a_pipeline, a_source, an_epoch

from keras_gpu_watch.diagnosis import diagnose
from keras_gpu_watch.diagnosis.rules.lock import RULE
from keras_gpu_watch.findings import Stage
from keras_gpu_watch.samples import Devices


def epoch(*, wait=0.0005, busy=0.011, lock=95.0, python="numpy_function", **changes):
    """Steps of 10 ms; a Python map beside them."""
    pipeline = a_pipeline(a_source(), a_map(busy, python=python, is_stateful=True))
    return an_epoch(**{"wait": wait, "pipeline": pipeline, "host": a_host(lock=lock), **changes})


def find(account):
    return RULE.find(a_context(account))


def test_a_python_stage_that_sets_the_pace_and_holds_the_lock_is_to_blame_though_hardly_any_wait_is_seen():
    verdict = find(epoch())

    assert (verdict.kind, verdict.cause, verdict.stage) == ("input_bound", "python_lock", "map(decode)")
    assert not any("num_parallel_calls" in (each.code or "") for each in verdict.suggestions)
    assert [each.expected_speedup for each in verdict.suggestions] == [None, None]


def test_it_is_the_verdict_before_the_host_time_that_the_lock_makes_long():
    verdict, others = diagnose([epoch(hooks=0.004, busy=0.014)], Devices(), None)

    assert (verdict.kind, verdict.cause) == ("input_bound", "python_lock")
    assert "host_bound" in [each.kind for each in others]


@pytest.mark.parametrize("lock", [59.0, 0.0, None])
def test_a_lock_that_is_mostly_free_or_not_measured_is_no_finding(lock):
    assert find(epoch(lock=lock)) is None


@pytest.mark.parametrize("busy", [0.008, 0.0, None])
def test_a_python_stage_that_keeps_up_or_is_not_measured_is_no_finding(busy):
    assert find(epoch(busy=busy)) is None


def test_a_stage_without_python_does_not_hold_the_lock():
    assert find(epoch(python=None)) is None


def test_a_wait_that_is_plain_to_see_is_left_to_the_rule_for_input():
    assert find(epoch(wait=0.010, busy=0.020)) is None


def test_too_few_steps_allow_no_claim():
    assert find(epoch(steps=10)) is None


@pytest.mark.parametrize(("wait", "is_found"), [(0.001, True), (0.0001, False)])
def test_a_pydataset_without_measured_stages_must_be_waited_for(wait, is_found):
    source = Stage(index=0, op="from_generator", function="Images", python="py_dataset", added_by="keras")
    pipeline = a_pipeline(source, input_kind="PyDataset")

    assert (find(epoch(wait=wait, pipeline=pipeline)) is not None) is is_found
