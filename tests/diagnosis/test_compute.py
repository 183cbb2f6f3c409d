# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from known_epochs import a_context, an_epoch, find_by, some_info

from keras_gpu_watch.diagnosis.rules.compute import INSUFFICIENT, RULE


def test_a_step_without_waits_is_its_own_limit_and_says_that_tuning_does_not_help():
    verdict = find_by(RULE, a_context(an_epoch(wait=0.0001)))

    assert (verdict.kind, verdict.cause, verdict.severity) == ("compute_bound", None, "info")
    assert "tuning the pipeline will not help (at most 1.01x if input were free)" in verdict.headline
    assert verdict.lost_share is None


def test_on_a_cpu_a_gpu_is_offered():
    verdict = find_by(RULE, a_context(info=some_info(on_accelerator=False)))

    assert "on the CPU" in verdict.headline
    assert "GPU" in verdict.suggestions[0].what


@pytest.mark.parametrize(
    ("info", "cause"),
    [
        (some_info(run_eagerly=True), "host_op"),
        (some_info(replicas=2), "communication"),
        (some_info(replicas=1), None),
        (None, None),
    ],
)
def test_the_step_is_explained_where_the_model_tells(info, cause):
    verdict = find_by(RULE, a_context(info=info))

    assert verdict.cause == cause
    assert "prefetch" not in str(verdict)


@pytest.mark.parametrize(
    "epoch",
    [an_epoch(wait=None), an_epoch(wait=0.01), an_epoch(hooks=0.01), an_epoch(steps=19)],
    ids=["wait not measured", "waits", "host time", "few steps"],
)
def test_nothing_else_is_compute_bound(epoch):
    assert find_by(RULE, a_context(epoch)) is None


def test_few_steps_are_not_enough():
    verdict = find_by(INSUFFICIENT, a_context(an_epoch(steps=7, wait=0.5)))

    assert verdict.kind == "insufficient_data"
    assert "7 steady steps" in verdict.headline


def test_a_wait_that_was_not_measured_is_reported_with_its_reason():
    epoch = an_epoch(wait=None, notes=("input wait is not known: the clock stepped",))

    verdict = find_by(INSUFFICIENT, a_context(epoch))

    assert verdict.kind == "insufficient_data"
    assert "the clock stepped" in verdict.headline
    assert "watch(ds)" in verdict.suggestions[0].code


def test_a_wait_of_zero_is_enough():
    assert find_by(INSUFFICIENT, a_context(an_epoch(wait=0.0))) is None
