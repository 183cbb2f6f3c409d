# SPDX-License-Identifier: Apache-2.0
"""Sleeps are planted where a training can spend its time; the account must find each in its place."""

from __future__ import annotations

import gc
import itertools
import math
import time
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from ground_truth import Stopwatch
from trainings import BATCH, BATCHES, Sleeper, assert_account_closes, dataset, examples, tiny_model

import keras_gpu_watch
from keras_gpu_watch import GPUWatch
from keras_gpu_watch.records import EpochSummary

pytestmark = pytest.mark.timed

WRAPS = pytest.mark.parametrize("wrap", [lambda data: data, keras_gpu_watch.watch], ids=["plain", "watched"])
EPOCHS = 3
# TensorFlow may take 0.1 s to let go of an iterator, in any part of an epoch.
NAP_SECONDS = 0.5
"""Long against all that the tiny training does by itself."""
PARTS = (
    "first_batch_seconds",
    "compile_seconds",
    "step_seconds",
    "host_seconds",
    "validation_seconds",
    "epoch_end_seconds",
)


def fit(log_dir: str, callbacks: list[Any], **arguments: Any) -> tuple[GPUWatch, float]:
    watch, stopwatch = GPUWatch(log_dir, console=False), Stopwatch()
    data = arguments.pop("x", None) or dataset()
    model = arguments.pop("model", None) or tiny_model()
    # With all that the tests before have left, a collection takes as long as what is measured here.
    gc.collect()
    gc.disable()
    try:
        model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[stopwatch, *callbacks, watch], **arguments)
    finally:
        gc.enable()
    assert_account_closes(watch, stopwatch.fit_seconds)
    return watch, stopwatch.fit_seconds


def part(epoch: EpochSummary, name: str) -> float:
    return getattr(epoch, name) or 0.0


def assert_slept_in(epoch: EpochSummary, name: str, seconds: float) -> None:
    """The part has the sleep and little else, and no other part has it."""
    assert part(epoch, name) >= seconds
    others = sum(part(epoch, other) for other in PARTS if other not in (name, "compile_seconds"))
    assert part(epoch, name) + others < 1.75 * seconds


@pytest.mark.parametrize(
    ("hook", "name", "times"),
    [
        ("on_epoch_begin", "first_batch_seconds", 1),
        ("on_train_batch_begin", "host_seconds", BATCHES),
        ("on_train_batch_end", "host_seconds", BATCHES),
        ("on_test_begin", "validation_seconds", 1),
        ("on_test_batch_end", "validation_seconds", 3),
        ("on_test_end", "epoch_end_seconds", 1),
        ("on_epoch_end", "epoch_end_seconds", 1),
    ],
)
def test_a_sleep_in_a_callback_is_found_in_its_part(log_dir: str, hook: str, name: str, times: int):
    sleeper = Sleeper(**{hook: NAP_SECONDS / times})
    model = tiny_model()
    # So that neither part holds the tracing of the evaluation.
    model.evaluate(dataset(3), verbose=0)
    watch, _ = fit(log_dir, [sleeper], model=model, validation_data=dataset(3))
    slept = NAP_SECONDS
    # The hook around the first batch lies before the first, the one around the last behind the last step.
    if name == "host_seconds":
        slept *= (BATCHES - 1) / BATCHES
    for epoch in watch.report.epochs[1:]:
        assert_slept_in(epoch, name, slept)


@WRAPS
def test_a_slow_first_element_is_the_first_batch_and_nothing_else(log_dir: str, wrap: Any):
    def slow_begin() -> Any:
        time.sleep(NAP_SECONDS)
        for _ in range(BATCHES):
            yield examples(BATCH), examples(BATCH)

    spec = tf.TensorSpec([BATCH, 1], tf.float32)
    data = tf.data.Dataset.from_generator(slow_begin, output_signature=(spec, spec))
    data = data.apply(tf.data.experimental.assert_cardinality(BATCHES))
    model = tiny_model()
    # Traced before: what is left of the first call is the fetch.
    model.fit(dataset(), verbose=0)
    watch, _ = fit(log_dir, [], x=wrap(data), model=model)
    for epoch in watch.report.epochs:
        assert epoch.first_batch_seconds >= 0.99 * NAP_SECONDS
        assert epoch.step_seconds < 0.5 * NAP_SECONDS
        assert epoch.input_wait_max_seconds is not None
        assert epoch.input_wait_max_seconds < 0.25 * NAP_SECONDS


class SlowToTrace(keras.Model):
    def train_step(self, data):
        # Python: runs while the step is traced, not when it runs.
        time.sleep(NAP_SECONDS)
        return super().train_step(data)


@WRAPS
@pytest.mark.parametrize("batches_per_call", [1, 4])
def test_slow_tracing_is_compile_time_and_nothing_else(log_dir: str, wrap: Any, batches_per_call: int):
    model = tiny_model(SlowToTrace, steps_per_execution=batches_per_call)
    watch, _ = fit(log_dir, [], x=wrap(dataset()), model=model)
    first, *later = watch.report.epochs
    assert first.compile_seconds >= NAP_SECONDS
    assert first.first_batch_seconds < 0.75 * NAP_SECONDS
    for epoch in watch.report.epochs:
        assert epoch.step_seconds < 0.5 * NAP_SECONDS
        assert (epoch.input_wait_max_seconds or 0.0) < 0.25 * NAP_SECONDS
    assert [epoch.compile_seconds for epoch in later] == [0.0] * len(later)


class Everywhere(keras.callbacks.Callback):
    """Sleeps in every hook, the same time an epoch in each."""

    SECONDS = 0.02
    TIMES = {  # noqa: RUF012
        "on_train_begin": 1,
        "on_epoch_begin": 1,
        "on_train_batch_begin": BATCHES,
        "on_train_batch_end": BATCHES,
        "on_test_begin": 1,
        "on_test_batch_begin": 2,
        "on_test_batch_end": 2,
        "on_test_end": 1,
        "on_epoch_end": 1,
        "on_train_end": 1,
    }

    def __init__(self) -> None:
        super().__init__()
        for hook, times in self.TIMES.items():
            setattr(self, hook, lambda *arguments, seconds=self.SECONDS / times, **keywords: time.sleep(seconds))


# What Keras does when it saves weights.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_the_account_does_not_depend_on_the_order_of_the_callbacks(log_dir: str, tmp_path: Path):
    model = tiny_model()
    model.fit(dataset(), validation_data=dataset(2), verbose=0)
    least: dict[tuple[bool, str], float] = {}
    for order in list(itertools.permutations(range(4)))[::2]:
        watch, stopwatch = GPUWatch(f"{log_dir}/{order}", console=False), Stopwatch()
        saver = keras.callbacks.ModelCheckpoint(str(tmp_path / "weights.weights.h5"), save_weights_only=True)
        callbacks = [Everywhere(), watch, stopwatch, saver]
        model.fit(
            dataset(),
            validation_data=dataset(2),
            epochs=2,
            verbose=0,
            callbacks=[callbacks[place] for place in order],
        )
        # The second epoch: the first one's begin may hold what a machine does once.
        account = {name: part(watch.report.epochs[-1], name) for name in PARTS}
        account["startup"] = watch.report.startup_seconds or 0.0
        is_after = order.index(0) < order.index(1)
        for name, seconds in account.items():
            least[is_after, name] = min(seconds, least.get((is_after, name), math.inf))
    for name in (*PARTS, "startup"):
        # A hook that was counted in one order only would make a difference of its whole sleep.
        assert abs(least[True, name] - least[False, name]) < Everywhere.SECONDS / 2, name
    assert least[True, "startup"] >= Everywhere.SECONDS


def test_hooks_before_ours_at_the_begin_of_training_count_as_startup(log_dir: str):
    watch, _ = fit(log_dir, [Sleeper(on_train_begin=NAP_SECONDS)])
    assert watch.report.startup_seconds is not None
    assert NAP_SECONDS <= watch.report.startup_seconds < 1.5 * NAP_SECONDS


def test_what_we_use_ourselves_is_a_small_part_of_what_we_report(log_dir: str):
    # Closing an epoch takes a few milliseconds, however short it was.
    watch, _ = fit(log_dir, [Sleeper(on_train_batch_end=0.02)])
    for epoch in watch.report.epochs:
        assert 0.0 < epoch.watch_overhead_seconds < 0.1 * epoch.wall_seconds
