# SPDX-License-Identifier: Apache-2.0
"""Compiling: again and again for new shapes, or once."""

from __future__ import annotations

import pytest
from known_trainings import STEPS, Training
from trainings import BATCH, tiny_model
from verdicts import assert_blames, judge, verdict_of
from workloads import numbers, trainable

pytestmark = pytest.mark.timed


def test_a_new_shape_every_few_steps_is_a_storm_of_compiling(log_dir):
    report = judge("a new shape every few steps", log_dir)

    assert_blames(report, "a new shape every few steps")
    # 80 steps in lengths of 1 + n // 8.
    assert report.epochs[0].compile_steps == 10
    assert "input" not in verdict_of(report).kind


def test_compiling_once_is_no_storm(log_dir):
    dataset = trainable(numbers(4 * STEPS * BATCH).batch(BATCH, drop_remainder=True)).prefetch(2)

    report = judge(Training(dataset, tiny_model(jit_compile=True), epochs=3), log_dir)

    assert verdict_of(report).cause != "changing_shapes"
    assert [epoch.compile_steps for epoch in report.epochs] == [1, 0, 0]
