# SPDX-License-Identifier: Apache-2.0
"""Callbacks and validation that take longer than the training."""

from __future__ import annotations

import pytest
from known_trainings import STEPS, SlowLogger, Training, paced_model
from trainings import BATCH
from verdicts import about, assert_blames, assert_not_the_input, judge, verdict_of
from workloads import numbers, trainable

pytestmark = pytest.mark.timed


def fast() -> object:
    return trainable(numbers(2 * STEPS * BATCH).batch(BATCH, drop_remainder=True)).prefetch(2)


@pytest.mark.parametrize(
    "case",
    [
        "a callback after each batch",
        "a callback that outlasts a slow pipeline",
        "a callback at the epochs end",
    ],
)
def test_the_callback_that_holds_the_training_up_is_named(log_dir, case):
    report = judge(case, log_dir)

    assert_blames(report, case)
    assert_not_the_input(report)


def test_a_validation_that_is_longer_than_the_training_is_named(log_dir):
    report = judge("a validation that is longer than the training", log_dir)

    assert_blames(report, "a validation that is longer than the training")
    # The waiting is in the validation's input.
    assert all(epoch.input_wait_seconds < 0.25 * epoch.validation_seconds for epoch in report.epochs)


def test_a_callbacks_seconds_are_those_that_it_slept(log_dir):
    slow = SlowLogger(on_train_batch_end=0.005)

    report = judge(Training(fast(), paced_model(), callbacks=(slow,)), log_dir)

    (logger,) = [each for each in report.epochs[0].callbacks if each.name == "SlowLogger"]
    assert logger.step_seconds == about(slow.slept_seconds)


def test_a_quick_callback_is_not_named(log_dir):
    report = judge(Training(fast(), paced_model(), callbacks=(SlowLogger(on_train_batch_end=0.0001),)), log_dir)

    assert verdict_of(report).kind == "compute_bound"
