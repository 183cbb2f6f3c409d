# SPDX-License-Identifier: Apache-2.0
"""Input waits against pipelines whose wait is known by construction."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from ground_truth import find_truth, sleeping_dataset, sleeping_model

from keras_gpu_watch import GPUWatch, watch
from keras_gpu_watch.records import StepArray, StepKind

CALL_SECONDS = 0.04
"""One batch, wait and work together: long enough for the noise of a busy machine to be small beside it."""
BATCHES = 40
TOLERANCE = 0.05
TOLERANCE_ESTIMATED = 0.10
"""Of several batches a call, gaps can't tell a step's end from the launch of the next one."""

pytestmark = [
    pytest.mark.timed,
    pytest.mark.filterwarnings("ignore:.*ran out of data:UserWarning"),
]

CASES = [(0.0, False), (0.1, False), (0.1, True), (0.5, False), (0.5, True), (0.9, False), (0.9, True)]
IDS = [f"{share:.0%}, {'bursty' if is_bursty else 'fixed'}" for share, is_bursty in CASES]


def steps_of(model: keras.Model, dataset: tf.data.Dataset, log_dir: Path) -> StepArray:
    callback = GPUWatch(log_dir, console=False)
    model.fit(dataset, verbose=0, callbacks=[callback])
    return callback.batches()


def wait_share_error(steps: StepArray, true_waits: np.ndarray) -> float:
    """Difference of the mean wait to the true one, in mean steps."""
    used = (steps["kind"] == StepKind.STEADY) & ~np.isnan(steps["input_wait_seconds"])
    assert used.sum() >= len(steps) - 3
    steady = steps[used]
    error = steady["input_wait_seconds"].mean() - true_waits[used].mean()
    return float(error / (steady["done_seconds"] - steady["call_seconds"]).mean())


@pytest.mark.slow
@pytest.mark.parametrize(("share", "is_bursty"), CASES, ids=IDS)
def test_the_mean_wait_is_true_watched_or_not(share: float, is_bursty: bool, tmp_path: Path) -> None:
    fetch_seconds = CALL_SECONDS * share
    model = sleeping_model(CALL_SECONDS - fetch_seconds if share else CALL_SECONDS / 2)
    dataset = sleeping_dataset(fetch_seconds, BATCHES, is_bursty=is_bursty)
    truth = find_truth(fetch_seconds, BATCHES, model, is_bursty=is_bursty).wait_seconds(1)
    watched = wait_share_error(steps_of(model, watch(dataset), tmp_path / "watched"), truth)
    unwatched = wait_share_error(steps_of(model, dataset, tmp_path / "unwatched"), truth)
    assert abs(watched) < TOLERANCE
    assert abs(unwatched) < TOLERANCE
    assert abs(watched - unwatched) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(("share", "is_bursty"), CASES, ids=IDS)
def test_the_mean_wait_of_several_batches_a_call_is_true(share: float, is_bursty: bool, tmp_path: Path) -> None:
    # Within a call a fetch runs beside the step before: it must outlast the step to be waited for.
    batch_seconds = CALL_SECONDS if share >= 0.5 else CALL_SECONDS / 2
    fetch_seconds = batch_seconds if share else 0.0
    model = sleeping_model(batch_seconds * (1 - share), steps_per_execution=8)
    dataset = sleeping_dataset(fetch_seconds, BATCHES, is_bursty=is_bursty)
    truth = find_truth(fetch_seconds, BATCHES, model, is_bursty=is_bursty).wait_seconds(8)
    watched = wait_share_error(steps_of(model, watch(dataset), tmp_path / "watched"), truth)
    assert abs(watched) < TOLERANCE
    if not is_bursty:
        unwatched = wait_share_error(steps_of(model, dataset, tmp_path / "unwatched"), truth)
        assert abs(unwatched) < TOLERANCE_ESTIMATED
