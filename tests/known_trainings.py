# SPDX-License-Identifier: Apache-2.0
"""Trainings that are slow for a reason known by construction, and what a verdict must say of them.

A step takes its time outside of TensorFlow's thread pool, as a step on a GPU does: in it, the input pipeline's
sleeping functions would hold the step up, too.
"""

from __future__ import annotations

import functools
import gc
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from ground_truth import BATCH
from trainings import Sleeper
from workloads import crunch, generator, nap, now_and_then, numbers, reads, spin, spin_for, trainable

from keras_gpu_watch import GPUWatch

AUTOTUNE = tf.data.AUTOTUNE
STEPS = 40
STEP_SECONDS = 0.010


class PacedModel(keras.Model):
    """One dense layer; each call of its train function takes `step_seconds` longer."""

    train_function: Any

    def __init__(self, step_seconds: float) -> None:
        super().__init__()
        self.step_seconds = step_seconds
        self.dense = keras.layers.Dense(1)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.dense(inputs)

    def make_train_function(self, force: bool = False) -> Any:
        if self.train_function is not None and not force:
            return self.train_function
        super().make_train_function(force)
        function: Any = self.train_function

        @functools.wraps(function)
        def paced(iterator: Any) -> Any:
            logs = function(iterator)
            time.sleep(self.step_seconds)
            return logs

        self.train_function = paced
        return paced


def paced_model(step_seconds: float = STEP_SECONDS, **compile_arguments: Any) -> keras.Model:
    """A compiled `PacedModel` that has nothing left to compile."""
    model = PacedModel(step_seconds)
    model.compile("sgd", "mse", **{"jit_compile": False, **compile_arguments})
    model.fit(trainable(numbers(2 * BATCH).batch(BATCH)), verbose=0)
    return model


@dataclass(frozen=True)
class Training:
    """Arguments of one `fit`."""

    data: Any
    model: keras.Model = field(default_factory=paced_model)
    epochs: int = 1
    callbacks: tuple[Any, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)

    def run(self, log_dir: str, *, console: bool = False) -> GPUWatch:
        """Train, watched by a `GPUWatch` that is returned."""
        watch = GPUWatch(log_dir, console=console)
        # With all that other tests have left, one collection takes as long as many steps.
        gc.collect()
        gc.disable()
        try:
            with warnings.catch_warnings():
                # Keras says so at the end of all data whose length it could not know before.
                warnings.filterwarnings("ignore", "Your input ran out of data")
                self.model.fit(
                    self.data, epochs=self.epochs, verbose=0, callbacks=[*self.callbacks, watch], **self.arguments
                )
        finally:
            gc.enable()
        return watch


@dataclass(frozen=True)
class Known:
    """A training, and what is true of it."""

    make: Callable[[], Training]
    kinds: tuple[str, ...]
    """Of the run's verdict; several where the construction is between two."""
    cause: str | None = None
    stage: str | None = None
    """Function, or operation, of the stage to blame."""


KNOWN: dict[str, Known] = {}

INPUT = ("input_bound",)


def _known(kinds: tuple[str, ...] | str, cause: str | None = None, stage: str | None = None) -> Any:
    def register(make: Callable[[], Training]) -> Callable[[], Training]:
        wanted = (kinds,) if isinstance(kinds, str) else kinds
        KNOWN[make.__name__.replace("_", " ")] = Known(make, wanted, cause, stage)
        return make

    return register


def decode(work: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`work` under the name of a user's function."""

    def decode(element: Any) -> Any:
        return work(element)

    return decode


def augment(work: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`work` under the name of another function."""

    def augment(element: Any) -> Any:
        return work(element)

    return augment


def _batches(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return trainable(dataset.batch(BATCH, drop_remainder=True))


# Input: one stage is too slow.


@_known(INPUT, "latency", "decode")
def a_map_that_waits_one_call_at_a_time() -> Training:
    return Training(_batches(numbers(STEPS * BATCH).map(decode(nap(0.010)))).prefetch(AUTOTUNE))


@_known(INPUT, "latency", "decode")
def a_map_that_waits_in_two_calls() -> Training:
    return Training(_batches(numbers(STEPS * BATCH).map(decode(nap(0.020)), num_parallel_calls=2)))


@_known(INPUT, "latency", "decode")
def a_map_that_waits_left_to_autotune() -> Training:
    dataset = numbers(2 * STEPS * BATCH).map(decode(nap(0.025)), num_parallel_calls=AUTOTUNE)
    return Training(_batches(dataset).prefetch(AUTOTUNE))


@_known(INPUT, "latency", "decode")
def many_calls_without_threads_for_them() -> Training:
    return Training(_batches(numbers(STEPS * BATCH).map(decode(nap(0.020)), num_parallel_calls=32)))


@_known(INPUT, "latency", "interleave")
def reads_that_wait_in_two_files_at_a_time() -> Training:
    files = numbers(STEPS).interleave(reads(0.100, BATCH), cycle_length=2, num_parallel_calls=2)
    return Training(_batches(files).prefetch(AUTOTUNE))


@_known(INPUT, "latency", "interleave")
def reads_that_wait_one_after_the_other() -> Training:
    return Training(_batches(numbers(STEPS).interleave(reads(0.040, BATCH), cycle_length=4)))


@_known(INPUT, "latency", "flat_map")
def a_flat_map_that_waits() -> Training:
    return Training(_batches(numbers(STEPS).flat_map(reads(0.040, BATCH))))


@_known(INPUT, "low_parallelism", "decode")
def a_map_that_computes_in_one_call() -> Training:
    return Training(_batches(numbers(STEPS * BATCH).map(decode(crunch(0.010)), num_parallel_calls=1)))


@_known(INPUT, "too_few_cores", "decode")
def a_map_that_needs_more_cores() -> Training:
    return Training(_batches(numbers(STEPS * BATCH).map(decode(crunch(0.030)), num_parallel_calls=AUTOTUNE)))


@_known(INPUT, "too_few_cores", "decode")
def a_map_that_needs_more_cores_in_fixed_calls() -> Training:
    return Training(_batches(numbers(STEPS * BATCH).map(decode(crunch(0.030)), num_parallel_calls=8)))


@_known(INPUT, "python_lock", "decode")
def a_python_map() -> Training:
    return Training(_batches(numbers(STEPS * BATCH).map(decode(spin(0.010)))), paced_model(0.002))


@_known(INPUT, "python_lock", "decode")
def a_python_map_in_parallel_calls() -> Training:
    dataset = numbers(STEPS * BATCH).map(decode(spin(0.010)), num_parallel_calls=8)
    return Training(_batches(dataset).prefetch(AUTOTUNE), paced_model(0.002))


@_known(INPUT, "single_producer", "from_generator")
def a_generator_that_waits() -> Training:
    return Training(trainable(generator(0.040, STEPS)))


@_known(INPUT, "python_lock", "from_generator")
def a_generator_that_computes() -> Training:
    return Training(trainable(generator(0.040, STEPS, spin_for)).prefetch(4))


@_known(INPUT, None, "decode")
def the_first_of_two_maps() -> Training:
    dataset = numbers(STEPS * BATCH).map(decode(nap(0.010)), num_parallel_calls=1)
    return Training(_batches(dataset.map(augment(nap(0.001)), num_parallel_calls=1)))


@_known(INPUT, None, "augment")
def the_second_of_two_maps() -> Training:
    dataset = numbers(STEPS * BATCH).map(decode(nap(0.001)), num_parallel_calls=1)
    return Training(_batches(dataset.map(augment(nap(0.010)), num_parallel_calls=1)))


@_known(INPUT, None, "augment")
def a_map_of_batches_behind_a_cheap_one() -> Training:
    dataset = numbers(STEPS * BATCH).map(decode(nap(0.001))).batch(BATCH).map(augment(nap(0.050)))
    return Training(trainable(dataset).prefetch(2))


@_known(INPUT, None, "decode")
def a_computing_map_before_a_waiting_one() -> Training:
    dataset = numbers(STEPS * BATCH).map(decode(crunch(0.016)), num_parallel_calls=1)
    return Training(_batches(dataset.map(augment(nap(0.003)), num_parallel_calls=1)))


@_known(INPUT, None, "decode")
def the_slow_half_of_a_zip() -> Training:
    left = numbers(STEPS * BATCH).map(decode(nap(0.012)))
    right = numbers(STEPS * BATCH).map(augment(nap(0.002)))
    return Training(_batches(tf.data.Dataset.zip((left, right)).map(lambda a, b: a + b)))


@_known(INPUT, None, "decode")
def a_slow_map_below_a_shuffle() -> Training:
    return Training(_batches(numbers(STEPS * BATCH).map(decode(nap(0.010))).shuffle(8)), epochs=2)


@_known(INPUT, "no_prefetch", "augment")
def a_pipeline_that_fetches_nothing_ahead() -> Training:
    dataset = numbers(2 * STEPS * BATCH).batch(BATCH).map(augment(nap(0.008)))
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.map_parallelization = False
    return Training(trainable(dataset).with_options(options))


class Waiting(keras.utils.PyDataset):
    """Batches that take a nap, or hold the interpreter."""

    def __init__(self, seconds: float, work: Callable[[float], Any], **workers: Any) -> None:
        super().__init__(**workers)
        self._work = functools.partial(work, seconds)

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self._work()
        batch = np.full((BATCH, 1), index, np.float32)
        return batch, batch


@_known(INPUT, "single_producer")
def a_pydataset_that_waits() -> Training:
    return Training(Waiting(0.040, time.sleep))


@_known(INPUT, "python_lock")
def a_pydataset_whose_threads_compute() -> Training:
    return Training(Waiting(0.020, spin_for, workers=8), paced_model(0.002))


def _keras_generator() -> Any:
    for number in range(10 * STEPS):
        time.sleep(0.040)
        batch = np.full((BATCH, 1), number, np.float32)
        yield batch, batch


@_known(INPUT, "single_producer")
def a_plain_generator_that_waits() -> Training:
    return Training(_keras_generator(), arguments={"steps_per_epoch": STEPS})


@_known("moderately_input_bound", None, "decode")
def a_map_that_is_a_little_too_slow() -> Training:
    dataset = numbers(2 * STEPS * BATCH).batch(BATCH).map(decode(nap(0.022)))
    return Training(trainable(dataset).prefetch(2), paced_model(0.018))


@_known("moderately_input_bound", None, "from_generator")
def a_generator_that_is_a_little_too_slow() -> Training:
    return Training(trainable(generator(0.024, 2 * STEPS)).prefetch(2), paced_model(0.020))


# Input: fast enough in the mean.


@_known("bursty_input", "shallow_prefetch")
def bursts_behind_a_prefetch_of_one() -> Training:
    dataset = numbers(3 * STEPS * BATCH).batch(BATCH).map(decode(now_and_then(0.120, 0.002, 20)))
    return Training(trainable(dataset).prefetch(1), paced_model(0.012))


@_known("bursty_input", "shallow_prefetch")
def bursts_behind_a_prefetch_of_two() -> Training:
    dataset = numbers(3 * STEPS * BATCH).batch(BATCH).map(decode(now_and_then(0.200, 0.002, 40)))
    return Training(trainable(dataset).prefetch(2), paced_model(0.012))


@_known("epoch_start_bound", "shuffle_refill", "shuffle")
def a_shuffle_that_fills_its_buffer_at_each_epoch() -> Training:
    dataset = numbers(64 * BATCH).map(decode(nap(0.004))).shuffle(60 * BATCH)
    return Training(_batches(dataset).prefetch(2), paced_model(0.018), epochs=3)


@_known("epoch_start_bound", "shuffle_refill", "shuffle")
def a_shuffle_of_batches() -> Training:
    dataset = numbers(STEPS * BATCH).batch(BATCH).map(decode(nap(0.015))).shuffle(36)
    return Training(trainable(dataset).prefetch(2), paced_model(0.018), epochs=3)


# Not the input.


class SlowLogger(Sleeper):
    """Takes its time after each batch."""


class SlowSaver(Sleeper):
    """Takes its time at the end of each epoch."""


def _fast(batches: int = 2 * STEPS) -> tf.data.Dataset:
    return _batches(numbers(batches * BATCH)).prefetch(AUTOTUNE)


@_known("host_bound", "callback:SlowLogger")
def a_callback_after_each_batch() -> Training:
    return Training(_fast(), callbacks=(SlowLogger(on_train_batch_end=0.010),))


@_known("host_bound", "callback:SlowLogger")
def a_callback_that_outlasts_a_slow_pipeline() -> Training:
    dataset = numbers(STEPS * BATCH).batch(BATCH).map(decode(nap(0.004)))
    return Training(trainable(dataset).prefetch(2), callbacks=(SlowLogger(on_train_batch_end=0.020),))


@_known("host_bound", "callback:SlowSaver")
def a_callback_at_the_epochs_end() -> Training:
    return Training(_fast(), epochs=2, callbacks=(SlowSaver(on_epoch_end=1.0),))


@_known("validation_bound")
def a_validation_that_is_longer_than_the_training() -> Training:
    validation = trainable(numbers(STEPS * BATCH).batch(BATCH).map(decode(nap(0.040))))
    return Training(_fast(), epochs=2, arguments={"validation_data": validation})


@_known("compile_bound", "changing_shapes")
def a_new_shape_every_few_steps() -> Training:
    lengths = numbers(2 * STEPS).map(lambda number: tf.fill([BATCH, 1 + tf.cast(number, tf.int32) // 8], number))
    model = keras.Sequential([keras.Input((None, 1)), keras.layers.Dense(8), keras.layers.GlobalAveragePooling1D()])
    model.compile("sgd", "mse", jit_compile=True)
    pairs = lengths.map(lambda batch: (batch[..., None], tf.zeros([BATCH, 8])))
    return Training(pairs, model)


@_known("compute_bound")
def a_slow_step() -> Training:
    return Training(_fast(STEPS), paced_model(0.030))


@_known("compute_bound")
def a_slow_step_on_arrays() -> Training:
    arrays = np.zeros((STEPS * BATCH, 1), np.float32)
    return Training(arrays, paced_model(0.030), arguments={"y": arrays, "batch_size": BATCH})


@_known("compute_bound")
def a_pipeline_that_keeps_the_cores_busy_but_keeps_up() -> Training:
    dataset = numbers(STEPS * BATCH).map(decode(crunch(0.008)), num_parallel_calls=2)
    return Training(_batches(dataset).prefetch(4), paced_model(0.030))


@_known("compute_bound")
def a_python_map_that_keeps_up() -> Training:
    dataset = numbers(STEPS * BATCH).map(decode(nap(0.003)))
    return Training(_batches(dataset).prefetch(4), paced_model(0.030))


@_known("compute_bound")
def bursts_behind_a_deep_prefetch() -> Training:
    dataset = numbers(2 * STEPS * BATCH).batch(BATCH).map(decode(now_and_then(0.120, 0.002, 20)))
    return Training(trainable(dataset).prefetch(40), paced_model(0.020))


@_known("compute_bound")
def a_slow_map_behind_a_filled_cache() -> Training:
    dataset = numbers(STEPS * BATCH).map(decode(nap(0.004))).cache()
    training = Training(_batches(dataset).prefetch(2), paced_model(0.020), epochs=2)
    training.model.fit(training.data, verbose=0)
    return training


@_known("insufficient_data")
def a_handful_of_steps() -> Training:
    return Training(_fast(10))
