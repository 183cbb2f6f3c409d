# SPDX-License-Identifier: Apache-2.0
"""A Python generator makes the batches, one at a time, slower than the step needs them."""

from __future__ import annotations

import pytest
from ground_truth import BATCH
from known_trainings import Training, paced_model
from verdicts import (
    about,
    assert_blames,
    assert_not_the_input,
    assert_speedups_stay_below_the_ceiling,
    judge,
    stage_named,
)
from workloads import generator, trainable

pytestmark = pytest.mark.timed


def test_a_generator_that_waits_is_blamed_as_the_only_producer(log_dir):
    report = judge("a generator that waits", log_dir)

    assert_blames(report, "a generator that waits")
    assert_speedups_stay_below_the_ceiling(report)
    # 40 ms to make a batch, 10 ms to train on it, side by side.
    (epoch,) = report.epochs
    assert abs(epoch.input_wait_share - 0.75) < 0.10
    assert stage_named(report, "from_generator").busy_seconds_per_batch == about(0.040)
    assert stage_named(report, "from_generator").python == "from_generator"


def test_a_deeper_prefetch_is_not_offered_as_a_cure_for_a_slow_generator(log_dir):
    report = judge("a generator that waits", log_dir)

    words = " ".join(f"{suggestion.what} {suggestion.code}" for suggestion in report.verdict.suggestions)
    assert "buffer_size" not in words


def test_keras_own_generator_is_blamed_too(log_dir):
    assert_blames(judge("a plain generator that waits", log_dir), "a plain generator that waits")


def test_a_generator_that_is_fast_enough_is_not_blamed(log_dir):
    report = judge(Training(trainable(generator(0.005, 40)).prefetch(2), paced_model(0.020)), log_dir)

    assert_not_the_input(report)
    assert report.epochs[0].examples == 40 * BATCH
