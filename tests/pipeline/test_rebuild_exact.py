# SPDX-License-Identifier: Apache-2.0
"""Turning every knob in every epoch changes no element and no order, for many kinds of pipelines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf
from exact_pipelines import KINDS, plain

from keras_gpu_watch import watch
from keras_gpu_watch.knobs import Knobs, Tunable
from keras_gpu_watch.pipeline.rebuild import rebuild

EPOCHS = 5
CALLS = (4, 1, None, 3, -1)
BUFFERS = (1, 5, None, -1, 2)
"""By epoch; `None`: the user's own pipeline again."""


def knobs_of(epoch: int, tunable: Tunable) -> Knobs:
    calls, buffer = CALLS[epoch], BUFFERS[epoch]
    if calls is None or buffer is None:
        return Knobs()
    parallel = [knob for knob in tunable.knobs if knob.kind == "parallel_calls"]
    return Knobs(
        parallel_calls={knob.index: min(calls, knob.limit or calls) for knob in parallel},
        buffer_sizes={knob.index: buffer for knob in tunable.knobs if knob.kind == "buffer_size"},
        private_threadpool_size=1 + epoch,
    )


def epochs(dataset: Any, between: Callable[[], None], turn: Callable[[int], None]) -> list[Any]:
    """What `fit` gets: it makes a second iterator at the end of each epoch that it never uses."""
    seen = []
    for epoch in range(EPOCHS):
        turn(epoch)
        seen.append([plain(element) for element in dataset])
        if epoch % 2:
            turn(epoch + 1)
        iter(dataset)
        between()
    return seen


@pytest.mark.parametrize("name", KINDS)
def test_every_element_is_the_one_without_us(name: str, tmp_path: Path) -> None:
    dataset, between = KINDS[name](tmp_path / "plain")
    expected = epochs(dataset, between, lambda epoch: None)
    dataset, between = KINDS[name](tmp_path / "turned")
    watched: Any = watch(dataset)
    tunable = watched.tunable()

    def turn(epoch: int) -> None:
        if epoch < EPOCHS:
            watched.set_knobs(knobs_of(epoch, tunable))

    rebuilt = rebuild(dataset, knobs_of(0, tunable))
    assert rebuilt.element_spec == dataset.element_spec
    assert int(rebuilt.cardinality()) == int(dataset.cardinality())
    assert epochs(watched, between, turn) == expected
    assert watched.failure is None


def checksums(dataset: Any) -> list[int]:
    """One number a batch, in order."""
    return [int(tf.reduce_sum(tf.cast(batch[:, 0], tf.int64))) for batch in dataset]


@pytest.mark.slow
def test_half_a_gigabyte_of_arrays_is_neither_copied_nor_reordered() -> None:
    rows = np.ones((2**9, 2**20), np.uint8)
    rows[:, 0] = np.arange(len(rows)) % 251

    def dataset() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(rows).map(lambda row: row + 1).shuffle(4, seed=3).batch(4)

    plain_dataset = dataset()
    orders = [checksums(plain_dataset) for _ in range(1 + EPOCHS)]
    watched: Any = watch(dataset())
    tunable = watched.tunable()
    # The first iterator of any dataset costs a copy of its arrays: TensorFlow's own.
    found = [checksums(watched)]
    before = psutil.Process().memory_info().rss
    for epoch in range(EPOCHS):
        watched.set_knobs(knobs_of(epoch, tunable))
        found.append(checksums(watched))
        assert psutil.Process().memory_info().rss - before < rows.nbytes // 2
    assert found == orders
    assert len({tuple(order) for order in orders}) == 1 + EPOCHS
    assert watched.failure is None


def pairs(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Batches to train on, of batches of anything."""
    rows = tf.reshape(tf.cast(batch, tf.float32), [tf.shape(batch)[0], -1])
    column = tf.math.floormod(tf.reduce_sum(rows, axis=1, keepdims=True), 97.0) / 97
    return tf.ensure_shape(column, [None, 1]), tf.ensure_shape(2 * column, [None, 1])


class Turn(keras.callbacks.Callback):
    """Turns all knobs after each epoch."""

    def __init__(self, watched: Any) -> None:
        super().__init__()
        self.watched = watched

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.watched.set_knobs(knobs_of(epoch % 2, self.watched.tunable()))


def trained_weights(dataset: Any, callbacks: list[Any]) -> list[np.ndarray]:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(dataset, epochs=3, verbose=0, callbacks=callbacks)
    return [np.asarray(weight) for weight in model.get_weights()]


@pytest.mark.parametrize("name", ["seeded shuffle", "numpy function", "keras random layer"])
def test_a_training_ends_with_the_weights_without_us(name: str, tmp_path: Path) -> None:
    dataset, _ = KINDS[name](tmp_path / "plain")
    expected = trained_weights(dataset.map(pairs), [])
    dataset, _ = KINDS[name](tmp_path / "turned")
    watched = watch(dataset.map(pairs))
    found = trained_weights(watched, [Turn(watched)])
    assert all(np.isfinite(weight).all() for weight in expected)
    assert all(np.array_equal(*each) for each in zip(found, expected, strict=True))
    assert not watched.knobs.is_empty
    assert watched.failure is None
