# SPDX-License-Identifier: Apache-2.0
"""A training is the same with and without us, however it ends."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trainings import BATCH, BATCHES, dataset, examples, read_report, tiny_model

import keras_gpu_watch
from keras_gpu_watch import GPUWatch

EPOCHS = 2
GONE_WITHIN_SECONDS = 2.0


class Hashing(keras.Model):
    """Keeps a hash of every batch it is trained on."""

    def train_step(self, data):
        def note(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
            self.seen.update(inputs.tobytes() + targets.tobytes())
            return inputs

        inputs, targets = data
        noted = tf.ensure_shape(tf.numpy_function(note, [inputs, targets], tf.float32), [None, 1])
        return super().train_step((noted, targets))


def _generator() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(7)
    while True:
        batch = random.random((BATCH, 1), dtype=np.float32)
        yield batch, batch


def _shuffled(seed: int | None) -> tf.data.Dataset:
    values = examples(38)
    return tf.data.Dataset.from_tensor_slices((values, values)).shuffle(16, seed=seed).batch(BATCH)


INPUTS: dict[str, Callable[[], dict[str, Any]]] = {
    "arrays": lambda: {"x": examples(38), "y": examples(38), "batch_size": BATCH, "shuffle": True},
    "tf.data": lambda: {"x": _shuffled(None)},
    "seeded tf.data": lambda: {"x": _shuffled(3).repeat()},
    "generator": lambda: {"x": _generator()},
}
ENDLESS = ("seeded tf.data", "generator")


def _train(kind: str, callbacks: list[Any], watch_data: bool, **compile_arguments: Any) -> tuple[Any, ...]:
    keras.utils.set_random_seed(1)
    model = tiny_model(Hashing, optimizer="adam", jit_compile=False, **compile_arguments)
    model.seen = hashlib.sha256()
    arguments = INPUTS[kind]()
    if watch_data:
        arguments["x"] = keras_gpu_watch.watch(arguments["x"])
    if kind in ENDLESS:
        arguments["steps_per_epoch"] = BATCHES
    history = model.fit(
        **arguments, epochs=EPOCHS, verbose=0, validation_data=(examples(), examples()), callbacks=callbacks
    )
    weights = [weight.tolist() for weight in model.get_weights()]
    return model.seen.hexdigest(), weights, history.history, model.optimizer.iterations.numpy()


@pytest.mark.parametrize(("kind", "batches_per_call"), [*((kind, 1) for kind in INPUTS), ("tf.data", 4)])
def test_batches_weights_and_history_are_identical_with_and_without_us(log_dir: str, kind: str, batches_per_call: int):
    alone = _train(kind, [], False, steps_per_execution=batches_per_call)
    assert _train(kind, [], False, steps_per_execution=batches_per_call) == alone
    with_us = [GPUWatch(log_dir, console=False)]
    assert _train(kind, with_us, False, steps_per_execution=batches_per_call) == alone
    if "tf.data" in kind:
        assert _train(kind, [GPUWatch(log_dir, console=False)], True, steps_per_execution=batches_per_call) == alone


class Seen(keras.callbacks.Callback):
    """Keeps the logs that callbacks are given."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[Any] = []

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.logs.append((batch, {name: (type(value), float(value)) for name, value in logs.items()}))


def test_other_callbacks_get_the_same_logs_of_the_same_types(log_dir: str):
    logs = []
    for callbacks in ([], [GPUWatch(log_dir, console=False)]):
        keras.utils.set_random_seed(1)
        seen = Seen()
        tiny_model().fit(dataset(), verbose=0, callbacks=[*callbacks, seen])
        logs.append(seen.logs)
    assert logs[0] == logs[1]


class BrokenError(Exception):
    """What a user's own code raises."""


class Failing(keras.callbacks.Callback):
    """Raises in one hook, the second time for hooks of a batch."""

    def __init__(self, hook: str, error: BaseException) -> None:
        super().__init__()
        self.calls = 0
        self.error = error
        self.at = 2 if "batch" in hook else 1
        setattr(self, hook, self._fail)

    def _fail(self, *arguments: Any, **keywords: Any) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise self.error


def _our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("keras-gpu-watch")]


def assert_cleaned_up(log_dir: str, watch: GPUWatch, model: keras.Model, own_function: Any) -> dict[str, Any]:
    """Within the time promised: no thread, the user's train function, complete files."""
    deadline = time.monotonic() + GONE_WITHIN_SECONDS
    while _our_threads() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _our_threads() == []
    assert model.train_function is own_function
    assert watch.report.status == "interrupted"
    assert watch.report.info is not None
    report = read_report(watch.report.info.run_dir or "")
    assert report["status"] == "interrupted"
    assert report["epochs_total"] == len(watch.report.epochs)
    return report


def steps_on_disk(run_dir: str) -> list[int]:
    accumulator = EventAccumulator(run_dir, size_guidance={"scalars": 0})
    accumulator.Reload()
    return [event.step for event in accumulator.Scalars("step/total_ms")]


def assert_next_fit_works(log_dir: str, watch: GPUWatch, model: keras.Model) -> None:
    model.fit(dataset(), epochs=1, verbose=0, callbacks=[watch])
    assert watch.report.status == "finished"
    assert watch.report.epochs[-1].batches == BATCHES


STEPS_BEFORE = {
    "on_epoch_begin": 0,
    "on_train_batch_begin": 1,
    "on_train_batch_end": 2,
    "on_test_begin": BATCHES,
    "on_test_batch_begin": BATCHES,
    "on_test_batch_end": BATCHES,
    "on_test_end": BATCHES,
    "on_epoch_end": BATCHES,
}
"""Steps that are done when a hook fails."""


@pytest.mark.parametrize("is_first", [True, False], ids=["before us", "after us"])
@pytest.mark.parametrize("hook", STEPS_BEFORE)
@pytest.mark.parametrize("error", [BrokenError("mine"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_what_another_callback_raises_passes_through_and_we_leave_nothing_behind(
    log_dir: str, hook: str, error: BaseException, is_first: bool
):
    model = tiny_model()
    model.make_train_function()
    own_function = model.train_function
    watch, failing = GPUWatch(log_dir, console=False), Failing(hook, error)
    callbacks = [failing, watch] if is_first else [watch, failing]
    with pytest.raises(type(error)) as caught:
        model.fit(dataset(), epochs=2, verbose=0, validation_data=dataset(2), callbacks=callbacks)
    # `caught` keeps the traceback, and with it every frame of `fit`, alive.
    assert caught.value is error
    steps = STEPS_BEFORE[hook]
    if hook == "on_epoch_begin" and is_first:
        # It failed before our own hook: there is no run yet.
        assert watch.report.epochs == ()
        assert not Path(log_dir).exists()
        assert_next_fit_works(log_dir, watch, model)
        return
    report = assert_cleaned_up(log_dir, watch, model, own_function)
    assert sum(epoch["batches"] for epoch in report["epochs"]) == steps
    if steps:
        assert steps_on_disk(report["info"]["run_dir"]) == list(range(1, steps + 1))
    assert_next_fit_works(log_dir, watch, model)


@pytest.mark.parametrize("hook", ["on_train_begin", "on_train_end"])
@pytest.mark.parametrize("is_first", [True, False], ids=["before us", "after us"])
def test_what_another_callback_raises_at_either_end_passes_through(log_dir: str, hook: str, is_first: bool):
    model = tiny_model()
    model.make_train_function()
    own_function = model.train_function
    watch, failing = GPUWatch(log_dir, console=False), Failing(hook, BrokenError("mine"))
    with pytest.raises(BrokenError) as caught:
        model.fit(dataset(), verbose=0, callbacks=[failing, watch] if is_first else [watch, failing])
    assert caught.value is failing.error
    deadline = time.monotonic() + GONE_WITHIN_SECONDS
    while _our_threads() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _our_threads() == []
    if hook == "on_train_end":
        assert model.train_function is own_function
        assert len(watch.report.epochs) == 1
    assert_next_fit_works(log_dir, watch, model)
    assert model.train_function is own_function


class FailsToTrain(keras.Model):
    def train_step(self, data):
        def check(inputs: np.ndarray) -> np.ndarray:
            self.steps += 1
            if self.steps == 5:
                raise ValueError("fifth step")
            return inputs

        inputs, targets = data
        return super().train_step((tf.ensure_shape(tf.numpy_function(check, [inputs], tf.float32), [None, 1]), targets))


class FailsToTrace(keras.Model):
    def train_step(self, data):
        raise BrokenError("in Python")


def _failing_generator(error: BaseException) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for _ in range(4):
        yield examples(BATCH), examples(BATCH)
    raise error


def test_what_a_step_raises_passes_through_and_the_files_are_complete_at_once(log_dir: str):
    model = tiny_model(FailsToTrain, jit_compile=False)
    model.steps = 0
    model.make_train_function()
    own_function = model.train_function
    watch = GPUWatch(log_dir, console=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="fifth step"):
        model.fit(dataset(), verbose=0, callbacks=[watch])
    assert _our_threads() == []
    report = assert_cleaned_up(log_dir, watch, model, own_function)
    assert report["epochs"][0]["batches"] == 4
    assert steps_on_disk(report["info"]["run_dir"]) == [1, 2, 3, 4]
    assert_next_fit_works(log_dir, watch, model)


def test_what_a_step_raises_while_it_is_traced_passes_through(log_dir: str):
    model = tiny_model(FailsToTrace)
    model.make_train_function()
    own_function = model.train_function
    watch = GPUWatch(log_dir, console=False)
    with pytest.raises(BrokenError, match="in Python"):
        model.fit(dataset(), verbose=0, callbacks=[watch])
    report = assert_cleaned_up(log_dir, watch, model, own_function)
    assert report["epochs"][0]["steps"] == 0


@pytest.mark.parametrize("watch_data", [False, True], ids=["plain", "watched"])
def test_what_the_data_raise_passes_through_with_the_same_words(log_dir: str, watch_data: bool):
    spec = tf.TensorSpec([BATCH, 1], tf.float32)
    raised = []
    for callbacks in ([], [GPUWatch(log_dir, console=False)]):
        model = tiny_model()
        data = tf.data.Dataset.from_generator(lambda: _failing_generator(BrokenError("fifth batch")), (tf.float32,) * 2)
        data = data.map(lambda *parts: tuple(tf.ensure_shape(part, spec.shape) for part in parts))
        if watch_data and callbacks:
            data = keras_gpu_watch.watch(data)
        with pytest.raises(tf.errors.OpError, match="fifth batch") as caught:
            model.fit(data, verbose=0, steps_per_epoch=BATCHES, callbacks=callbacks)
        raised.append((type(caught.value), caught.value.message.partition("\n")[0]))
    assert raised[0] == raised[1]
    (watch,) = callbacks
    assert watch.report.status == "interrupted"
    assert watch.report.epochs[0].batches == 4


def test_what_a_python_generator_raises_passes_through(log_dir: str):
    model = tiny_model()
    watch = GPUWatch(log_dir, console=False)
    with pytest.raises(tf.errors.OpError, match="fifth batch"):
        model.fit(_failing_generator(BrokenError("fifth batch")), verbose=0, steps_per_epoch=BATCHES, callbacks=[watch])
    assert watch.report.status == "interrupted"
    assert_next_fit_works(log_dir, watch, model)


def test_what_validation_data_raise_passes_through(log_dir: str):
    model = tiny_model()
    model.make_train_function()
    own_function = model.train_function
    watch = GPUWatch(log_dir, console=False)
    with pytest.raises(tf.errors.OpError, match="fifth batch"):
        model.fit(
            dataset(),
            verbose=0,
            callbacks=[watch],
            validation_data=_failing_generator(BrokenError("fifth batch")),
            validation_steps=BATCHES,
        )
    report = assert_cleaned_up(log_dir, watch, model, own_function)
    assert report["epochs"][0]["batches"] == BATCHES
    assert_next_fit_works(log_dir, watch, model)


def test_a_second_fit_begun_at_once_after_an_interruption_completes_the_first(log_dir: str):
    model = tiny_model()
    watch = GPUWatch(log_dir, console=False)
    with pytest.raises(BrokenError):
        model.fit(dataset(), verbose=0, callbacks=[watch, Failing("on_epoch_end", BrokenError())])
    # Before the background thread can have noticed.
    model.fit(dataset(), initial_epoch=1, epochs=2, verbose=0, callbacks=[watch])
    assert watch.report.status == "finished"
    assert [epoch.epoch for epoch in watch.report.epochs] == [0, 1]
    assert watch.batches()["step"].tolist() == list(range(1, 2 * BATCHES + 1))
    assert watch.report.info is not None
    assert steps_on_disk(watch.report.info.run_dir or "") == list(range(1, 2 * BATCHES + 1))
    assert not hasattr(model.train_function, "__wrapped__")
