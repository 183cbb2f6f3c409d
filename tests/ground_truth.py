# SPDX-License-Identifier: Apache-2.0
"""Trainings whose input wait is known by construction, and stopwatches outside of the package.

A fetch sleeps inside tf.data's own `SleepDataset`, in the thread that asks for the batch, so that nothing but the sleep
is in it. A step sleeps in a `numpy_function` on its batch (without an input taken from the data TensorFlow would start
it beside the fetch).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

BATCH = 4
BURST = 10
"""In a bursty pipeline one fetch in so many takes all the time."""


def sleeping_dataset(fetch_seconds: float, batches: int, *, is_bursty: bool = False) -> tf.data.Dataset:
    """Batches that take `fetch_seconds` each to fetch; if bursty, in the mean over `BURST` of them."""
    values = np.arange(batches * BATCH, dtype=np.float32).reshape(-1, 1)
    dataset = tf.data.Dataset.from_tensor_slices((values, values)).batch(BATCH, drop_remainder=True)
    if fetch_seconds > 0:
        dataset = (
            _sleep(dataset.batch(BURST), fetch_seconds * BURST).unbatch()
            if is_bursty
            else _sleep(dataset, fetch_seconds)
        )
    options = tf.data.Options()
    # Nothing is fetched ahead: the wait is the fetch.
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def _sleep(dataset: tf.data.Dataset, seconds: float) -> tf.data.Dataset:
    variant = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        sleep_microseconds=tf.constant(round(seconds * 1e6), tf.int64),
        output_types=dataset._flat_types,
        output_shapes=dataset._flat_shapes,
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


class SleepingModel(keras.Model):
    """A step sleeps for `step_seconds` on top of its (tiny) real work."""

    def __init__(self, step_seconds: float) -> None:
        super().__init__()
        self.step_seconds = step_seconds
        self.dense = keras.layers.Dense(1)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.dense(inputs)

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        def sleep(batch: np.ndarray) -> np.ndarray:
            time.sleep(self.step_seconds)
            return batch

        inputs, targets = data
        slow = tf.ensure_shape(tf.numpy_function(sleep, [inputs], tf.float32), [BATCH, 1])
        return super().train_step((slow, targets))


def sleeping_model(step_seconds: float, steps_per_execution: int = 1) -> keras.Model:
    """A compiled `SleepingModel`."""
    model = SleepingModel(step_seconds)
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution, jit_compile=False)
    return model


class Stopwatch(keras.callbacks.Callback):
    """Times calls of the train function from outside, by the hooks around it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_seconds: list[float] = []
        self.fit_seconds = 0.0
        self._begin = self._call = 0.0

    def on_train_begin(self, logs=None) -> None:
        self._begin = time.perf_counter()

    def on_train_batch_begin(self, batch, logs=None) -> None:
        self._call = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.calls_seconds.append(time.perf_counter() - self._call)

    def on_train_end(self, logs=None) -> None:
        self.fit_seconds = time.perf_counter() - self._begin


@dataclass(frozen=True)
class Truth:
    """What a pipeline and a model take by themselves."""

    fetch_seconds: np.ndarray
    """Each batch's fetch, as constructed."""
    step_seconds: float
    """One step on batches that are there at once, by hooks around the call."""

    def wait_seconds(self, batches_per_call: int) -> np.ndarray:
        """Each call's wait: its first fetch, and what later ones outlast the step beside which they run."""
        fetches = self.fetch_seconds.reshape(-1, batches_per_call)
        return fetches[:, 0] + np.maximum(fetches[:, 1:] - self.step_seconds, 0).sum(axis=1)


def find_truth(fetch_seconds: float, batches: int, model: keras.Model, *, is_bursty: bool = False) -> Truth:
    """The fetches as `sleeping_dataset` makes them, and the step timed alone, without the package."""
    fetches = np.full(batches, fetch_seconds)
    if is_bursty:
        # A whole burst is prepared when its first batch is asked for.
        fetches = np.where(np.arange(batches) % BURST == 0, fetch_seconds * BURST, 0.0)
    batches_per_call = model.steps_per_execution
    stopwatch = Stopwatch()
    model.fit(sleeping_dataset(0.0, 20 * batches_per_call), verbose=0, callbacks=[stopwatch])
    return Truth(fetches, float(np.median(stopwatch.calls_seconds[1:])) / batches_per_call)
