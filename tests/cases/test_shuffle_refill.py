# SPDX-License-Identifier: Apache-2.0
"""Each epoch begins with a pause in which a shuffle fills its buffer."""

from __future__ import annotations

import pytest
from ground_truth import BATCH
from known_trainings import Training, decode, paced_model
from verdicts import about, assert_blames, assert_not_the_input, judge, verdict_of
from workloads import nap, numbers, trainable

pytestmark = pytest.mark.timed


def test_filling_a_large_buffer_is_an_epochs_start_and_not_a_slow_map(log_dir):
    report = judge("a shuffle that fills its buffer at each epoch", log_dir)

    assert_blames(report, "a shuffle that fills its buffer at each epoch")
    words = " ".join(f"{each.what} {each.code}" for each in verdict_of(report).suggestions)
    assert "num_parallel_calls" not in words
    for epoch in report.epochs:
        # 60 batches of elements that take 4 ms each are read before the first one leaves.
        assert epoch.first_batch_seconds == about(60 * BATCH * 0.004)
        assert epoch.input_wait_share < 0.05


def test_a_small_buffer_is_no_finding(log_dir):
    dataset = numbers(80 * BATCH).map(decode(nap(0.002))).shuffle(8).batch(BATCH, drop_remainder=True)

    report = judge(Training(trainable(dataset).prefetch(2), paced_model(0.020), epochs=2), log_dir)

    assert_not_the_input(report)
    assert verdict_of(report).kind != "epoch_start_bound"
