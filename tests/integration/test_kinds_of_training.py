# SPDX-License-Identifier: Apache-2.0
"""Whatever `fit` can be told to do: the account stays right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from ground_truth import Stopwatch
from trainings import BATCH, BATCHES, assert_account_closes, dataset, examples, tiny_model

import keras_gpu_watch
from keras_gpu_watch import GPUWatch
from keras_gpu_watch.records import StepKind

pytestmark = pytest.mark.timed

WRAPS = pytest.mark.parametrize("wrap", [lambda data: data, keras_gpu_watch.watch], ids=["plain", "watched"])


def fit(log_dir: str, model: keras.Model, data: tf.data.Dataset, *callbacks: Any, **arguments: Any) -> GPUWatch:
    watch, stopwatch = GPUWatch(log_dir, console=False), Stopwatch()
    model.fit(data, verbose=0, callbacks=[stopwatch, *callbacks, watch], **arguments)
    assert_account_closes(watch, stopwatch.fit_seconds)
    return watch


def classes() -> tf.data.Dataset:
    return dataset().map(lambda inputs, targets: (inputs, tf.cast(targets > 0.5, tf.int32)))


def short_last_batch() -> tf.data.Dataset:
    """Nine batches of four and one of two."""
    values = examples(BATCHES * BATCH - 2)
    return tf.data.Dataset.from_tensor_slices((values, values)).batch(BATCH)


@WRAPS
def test_class_weights_are_measured_and_a_watch_below_them_says_what_to_type(log_dir: str, wrap: Any):
    watch = fit(log_dir, tiny_model(), wrap(classes()), epochs=2, class_weight={0: 1.0, 1: 2.0})
    for epoch in watch.report.epochs:
        assert epoch.batches == BATCHES
        assert epoch.input_wait_seconds is not None
    says = [note for note in watch.report.notes if "fit(watch(dataset))" in note]
    assert len(says) == (1 if wrap is keras_gpu_watch.watch else 0)


def test_initial_epoch_names_the_epochs(log_dir: str):
    watch = fit(log_dir, tiny_model(), dataset(), initial_epoch=3, epochs=5)
    assert [epoch.epoch for epoch in watch.report.epochs] == [3, 4]
    assert np.unique(watch.batches()["epoch"]).tolist() == [3, 4]
    assert watch.batches()["step"].tolist() == list(range(1, 2 * BATCHES + 1))


class OwnStep(keras.Model):
    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(inputs, training=True) - targets) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"inner": {"loss": loss}, "text": tf.constant("not a number"), "shape": tf.shape(inputs)}


@WRAPS
def test_a_custom_train_step_may_return_anything(log_dir: str, wrap: Any):
    watch = fit(log_dir, tiny_model(OwnStep), wrap(dataset()), epochs=2)
    assert [epoch.batches for epoch in watch.report.epochs] == [BATCHES, BATCHES]
    assert watch.report.epochs[1].compute_seconds is not None


class NothingToTrain(keras.Model):
    def train_step(self, data):
        return {"mean": keras.ops.mean(data[0])}


def test_a_model_without_an_optimizer_and_without_weights_counts_its_batches(log_dir: str):
    inputs = keras.Input((1,))
    model = NothingToTrain(inputs, inputs)
    model.compile(optimizer=None)
    watch = fit(log_dir, model, dataset(), epochs=2)
    assert watch.report.info is not None
    assert watch.report.info.start_step == 0
    assert watch.batches()["step"].tolist() == list(range(1, 2 * BATCHES + 1))


@WRAPS
def test_an_eager_step_is_not_taken_for_a_compiling_one(log_dir: str, wrap: Any):
    watch = fit(log_dir, tiny_model(run_eagerly=True), wrap(dataset()), epochs=2)
    assert StepKind.COMPILE not in watch.batches()["kind"]
    for epoch in watch.report.epochs:
        assert epoch.batches == BATCHES
        assert epoch.compile_seconds == 0.0


@WRAPS
@pytest.mark.parametrize("batches_per_call", [1, 4])
def test_xla_compiles_a_short_last_batch_once(log_dir: str, wrap: Any, batches_per_call: int):
    model = tiny_model(jit_compile=True, steps_per_execution=batches_per_call)
    watch = fit(log_dir, model, wrap(short_last_batch()), epochs=3)
    kinds = watch.batches()["kind"].reshape(3, -1)
    calls = kinds.shape[1]
    steady = [StepKind.STEADY] * (calls - 2)
    assert kinds[0].tolist() == [StepKind.COMPILE, *steady, StepKind.COMPILE]
    for later in kinds[1:]:
        assert later.tolist() == [StepKind.FIRST, *steady, StepKind.STEADY]
    assert [epoch.compile_seconds > 0 for epoch in watch.report.epochs] == [True, False, False]
    # What the short batch took is in none of the steady numbers.
    steps = watch.batches()
    compiling = steps["compile_seconds"][calls - 1]
    assert watch.report.epochs[0].step_seconds < compiling
    # Compiled once for the model, whatever callback watches it.
    again = fit(f"{log_dir}-2", model, wrap(short_last_batch()))
    assert StepKind.COMPILE not in again.batches()["kind"]


def test_gradient_accumulation_counts_batches_and_goes_on_from_them(log_dir: str):
    model = tiny_model(optimizer=keras.optimizers.SGD(gradient_accumulation_steps=4))
    first = fit(log_dir, model, dataset(), epochs=2)
    assert first.batches()["step"].tolist() == list(range(1, 2 * BATCHES + 1))
    assert model.optimizer.iterations.numpy() == 2 * BATCHES // 4
    second = fit(f"{log_dir}-2", model, dataset())
    assert second.batches()["step"].tolist() == list(range(2 * BATCHES + 1, 3 * BATCHES + 1))


def _generator() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    while True:
        yield examples(BATCH), examples(BATCH)


VALIDATION: dict[str, Any] = {
    "dataset": lambda: {"validation_data": dataset(3)},
    "watched dataset": lambda: {"validation_data": keras_gpu_watch.watch(dataset(3))},
    "arrays": lambda: {"validation_data": (examples(), examples())},
    "generator": lambda: {"validation_data": _generator(), "validation_steps": 3},
}


@pytest.mark.parametrize("kind", VALIDATION)
@pytest.mark.parametrize("batches_per_call", [1, 4])
def test_validation_of_any_kind_is_measured_where_it_runs_and_none_of_it_is_a_step(
    log_dir: str, kind: str, batches_per_call: int
):
    model = tiny_model(steps_per_execution=batches_per_call)
    watch = fit(log_dir, model, dataset(), epochs=4, validation_freq=2, **VALIDATION[kind]())
    assert [epoch.batches for epoch in watch.report.epochs] == [BATCHES] * 4
    assert [epoch.validation_seconds is not None for epoch in watch.report.epochs] == [False, True, False, True]
    assert watch.batches()["batches"].sum() == 4 * BATCHES


def test_validation_on_the_very_dataset_that_is_trained_on_does_not_mix(log_dir: str):
    data = keras_gpu_watch.watch(dataset())
    watch = fit(log_dir, tiny_model(), data, epochs=2, validation_data=data)
    rows = watch.batches()
    assert rows["batches"].tolist() == [1] * 2 * BATCHES
    assert not np.isnan(rows["input_wait_seconds"]).any()


def test_a_validation_split_is_validation(log_dir: str):
    watch, stopwatch = GPUWatch(log_dir, console=False), Stopwatch()
    model = tiny_model()
    arguments: dict[str, Any] = {"batch_size": BATCH, "epochs": 2, "validation_split": 0.5}
    model.fit(examples(), examples(), verbose=0, callbacks=[stopwatch, watch], **arguments)
    assert_account_closes(watch, stopwatch.fit_seconds)
    for epoch in watch.report.epochs:
        assert epoch.batches == BATCHES // 2
        assert epoch.validation_seconds is not None


class StopAt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None) -> None:
        if batch == 3:
            self.model.stop_training = True


def test_stopping_in_mid_epoch_ends_the_account_there(log_dir: str):
    watch = fit(log_dir, tiny_model(), dataset(), StopAt(), epochs=3)
    assert [epoch.batches for epoch in watch.report.epochs] == [4]


def test_early_stopping_ends_the_account_after_its_epoch(log_dir: str):
    stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e9)
    watch = fit(log_dir, tiny_model(), dataset(), stop, epochs=9)
    assert [epoch.batches for epoch in watch.report.epochs] == [BATCHES] * 2


class Rebuild(keras.callbacks.Callback):
    """Makes a new train function at the third call of one hook."""

    def __init__(self, hook: str) -> None:
        super().__init__()
        self.calls = 0
        setattr(self, hook, self._rebuild)

    def _rebuild(self, *arguments: Any, **keywords: Any) -> None:
        self.calls += 1
        if self.calls == 3:
            self.model.make_train_function(force=True)


@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_epoch_end"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_train_function_made_anew_in_mid_training_is_followed(log_dir: str, hook: str, is_first: bool):
    model = tiny_model()
    watch, rebuild = GPUWatch(log_dir, console=False), Rebuild(hook)
    model.fit(dataset(), epochs=5, verbose=0, callbacks=[rebuild, watch] if is_first else [watch, rebuild])
    # A hook that comes after ours within the same batch hides one step.
    hidden = 1 if hook == "on_train_batch_begin" and not is_first else 0
    rows = watch.batches()
    assert len(rows) == 5 * BATCHES - hidden
    # The new function is traced, and that is seen too.
    assert (rows["kind"] == StepKind.COMPILE).sum() == 2 - hidden
    assert not hasattr(model.train_function, "__wrapped__")


class Recompile(keras.callbacks.Callback):
    """Compiles the model anew at the begin of an epoch, before or after other callbacks."""

    def on_epoch_begin(self, epoch, logs=None) -> None:
        if epoch == 1:
            self.model.compile("sgd", "mse", jit_compile=False)


class MakeFunction(keras.callbacks.Callback):
    """Makes the train function that a compilation has thrown away."""

    def on_epoch_begin(self, epoch, logs=None) -> None:
        self.model.make_train_function()


def test_a_model_compiled_anew_in_mid_training_trains_on_and_is_followed(log_dir: str):
    watch = GPUWatch(log_dir, console=False)
    tiny_model().fit(dataset(), epochs=3, verbose=0, callbacks=[Recompile(), watch, MakeFunction()])
    assert [epoch.batches for epoch in watch.report.epochs] == [BATCHES] * 3
    assert watch.report.status == "finished"


class Busybody(keras.callbacks.Callback):
    """Evaluates, predicts and trains in mid-epoch, and has GPUWatch hear of it."""

    def __init__(self, watch: GPUWatch) -> None:
        super().__init__()
        self.watch = watch

    def on_train_batch_end(self, batch, logs=None) -> None:
        if batch == 4:
            self.model.evaluate(dataset(), verbose=0, callbacks=[self.watch])
            self.model.predict(dataset(), verbose=0)
            self.model.train_on_batch(examples(BATCH), examples(BATCH))


@WRAPS
def test_what_a_callback_does_with_the_model_in_mid_epoch_is_host_time(log_dir: str, wrap: Any):
    watch, stopwatch = GPUWatch(log_dir, console=False), Stopwatch()
    callbacks = [stopwatch, Busybody(watch), watch]
    tiny_model().fit(wrap(dataset()), epochs=2, verbose=0, callbacks=callbacks)
    assert_account_closes(watch, stopwatch.fit_seconds)
    for epoch in watch.report.epochs:
        assert epoch.batches == BATCHES
        assert epoch.validation_seconds is None
        assert epoch.host_seconds > epoch.epoch_end_seconds


class Inner(keras.callbacks.Callback):
    """Trains another model, watched by a callback of its own."""

    def __init__(self, log_dir: str) -> None:
        super().__init__()
        self.log_dir = log_dir
        self.watches: list[GPUWatch] = []

    def on_train_batch_end(self, batch, logs=None) -> None:
        if batch == 4:
            self.watches.append(fit(self.log_dir, tiny_model(), dataset()))


def test_a_watched_training_inside_a_watched_training_is_measured_by_itself(log_dir: str):
    inner = Inner(f"{log_dir}/inner")
    watch = fit(f"{log_dir}/outer", tiny_model(), dataset(), inner, epochs=2)
    assert [epoch.batches for epoch in watch.report.epochs] == [BATCHES, BATCHES]
    for nested, epoch in zip(inner.watches, watch.report.epochs, strict=True):
        assert [other.batches for other in nested.report.epochs] == [BATCHES]
        assert nested.report.wall_seconds is not None
        assert epoch.host_seconds > nested.report.wall_seconds


def test_two_watches_in_one_fit_agree(log_dir: str):
    model = tiny_model()
    other = GPUWatch(log_dir, console=False)
    watch = fit(log_dir, model, dataset(), other, epochs=3)
    for one, two in zip(watch.report.epochs, other.report.epochs, strict=True):
        assert one.batches == two.batches == BATCHES
        assert one.wall_seconds == pytest.approx(two.wall_seconds, abs=5e-3)
        assert one.compile_seconds == pytest.approx(two.compile_seconds, abs=0.02 * one.wall_seconds + 5e-3)
    assert watch.batches()["kind"].tolist() == other.batches()["kind"].tolist()
    assert not hasattr(model.train_function, "__wrapped__")
    assert watch.report.info is not None
    assert other.report.info is not None
    assert watch.report.info.run_dir != other.report.info.run_dir
