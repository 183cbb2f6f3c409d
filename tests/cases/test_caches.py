# SPDX-License-Identifier: Apache-2.0
"""Caches that are never filled, and first epochs that are slow because the disk's cache is cold."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from ground_truth import BATCH
from known_trainings import Training, decode, paced_model
from verdicts import judge, verdict_of
from workloads import nap, numbers, trainable

pytestmark = pytest.mark.timed

STEPS = 30


def cached(elements: int) -> tf.data.Dataset:
    dataset = numbers(elements).map(decode(nap(0.010))).cache().batch(BATCH, drop_remainder=True)
    return trainable(dataset).prefetch(2)


def test_a_cache_that_each_epoch_leaves_half_read_is_named(log_dir):
    arguments = {"steps_per_epoch": STEPS}

    # A new iterator for each epoch, which never reads to the end.
    report = judge(
        Training(cached(3 * STEPS * BATCH).take(STEPS), paced_model(), epochs=3, arguments=arguments), log_dir
    )

    verdict = verdict_of(report)
    assert verdict.kind == "input_bound"
    assert verdict.cause == "cache_not_filled"
    assert report.epochs[2].input_wait_share > 0.5


def test_a_cache_that_is_filled_is_no_finding(log_dir):
    report = judge(Training(cached(STEPS * BATCH), paced_model(), epochs=3), log_dir)

    verdict = verdict_of(report)
    assert verdict.cause != "cache_not_filled"
    assert report.epochs[2].input_wait_share < 0.05
    assert report.epochs[2].verdict.kind == "compute_bound"


def test_a_first_epoch_that_alone_is_slow_is_reported_apart(log_dir):
    touched = set()

    def read(element: np.ndarray) -> np.ndarray:
        if float(element) not in touched:
            touched.add(float(element))
            time.sleep(0.010)
        return element

    def load(element: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(read, [element], tf.float32), [])

    dataset = numbers(STEPS * BATCH).map(load).batch(BATCH, drop_remainder=True)

    report = judge(Training(trainable(dataset).prefetch(2), paced_model(), epochs=3), log_dir)

    assert report.epochs[0].verdict.kind == "input_bound"
    assert report.epochs[2].verdict.kind == "compute_bound"
    causes = [verdict.cause for epoch in report.epochs for verdict in (epoch.verdict, *epoch.other_verdicts)]
    assert "cold_cache" in [verdict_of(report).cause, *causes]
