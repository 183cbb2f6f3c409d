# SPDX-License-Identifier: Apache-2.0
"""Tuning in real trainings: it makes them faster, and changes nothing else, whatever happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from ground_truth import BATCH
from known_trainings import decode, paced_model
from trainings import dataset, tiny_model
from workloads import nap, numbers, trainable

from keras_gpu_watch import AutoTune, GPUWatch, watch
from keras_gpu_watch.knobs import END, Knobs
from keras_gpu_watch.tuning import Tuner, dump_state, load_state

STEPS = 24
EPOCHS = 5
STEP_SECONDS = 0.004

pytestmark = [
    pytest.mark.timed,
    pytest.mark.filterwarnings("ignore:.*ran out of data:UserWarning"),
]


def slow_reads(seconds: float = 0.006, calls: int = 2, batches: int = STEPS) -> tf.data.Dataset:
    """Each element waits for a while; a batch of them takes longer than a step."""
    elements = numbers(batches * BATCH).shuffle(batches * BATCH, seed=3)
    return trainable(elements.map(decode(nap(seconds)), num_parallel_calls=calls).batch(BATCH, drop_remainder=True))


def fit(log_dir: str, data: Any, autotune: bool | AutoTune = True, epochs: int = EPOCHS, **arguments: Any) -> GPUWatch:
    callback = arguments.pop("watch", None) or GPUWatch(log_dir, autotune=autotune, console=False)
    model = arguments.pop("model", None) or paced_model(STEP_SECONDS)
    callbacks = [*arguments.pop("callbacks", ()), callback]
    model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks, **arguments)
    return callback


def rates(watched: GPUWatch) -> list[float]:
    return [epoch.batches_per_second or 0.0 for epoch in watched.report.epochs]


def test_a_pipeline_that_waits_gets_faster_and_says_how(log_dir: str) -> None:
    report = fit(log_dir, watch(slow_reads())).report

    tuning = report.tuning
    assert tuning is not None
    assert tuning.speedup is not None
    assert tuning.speedup > 1.8
    assert max(tuning.best.parallel_calls.values()) > 4
    assert tuning.best.private_threadpool_size is not None
    assert "num_parallel_calls=" in (tuning.code or "")
    assert [epoch.knobs.is_empty for epoch in report.epochs[:2] if epoch.knobs is not None] == [True, True]
    assert report.epochs[2].knobs == tuning.trials[0].knobs
    assert (report.epochs[-1].batches_per_second or 0.0) > 1.8 * (report.epochs[1].batches_per_second or 0.0)
    # What was saved is what is shown.
    assert json.loads(report.to_json())["tuning"]["speedup"] == pytest.approx(tuning.speedup, rel=1e-4)


def test_a_tuned_training_learns_exactly_what_it_would_have(log_dir: str) -> None:
    trained = []
    for tuned in (False, True):
        keras.utils.set_random_seed(5)
        data = slow_reads(0.003)
        model = paced_model(0.001)
        fit(log_dir, watch(data) if tuned else data, autotune=tuned, model=model)
        trained.append(model.get_weights())
    for plain, tuned in zip(*trained, strict=True):
        np.testing.assert_array_equal(plain, tuned)


def test_a_training_that_does_not_wait_is_left_alone(log_dir: str) -> None:
    data = watch(trainable(numbers(STEPS * BATCH).batch(BATCH, drop_remainder=True)).prefetch(2))
    report = fit(log_dir, data, epochs=4, model=paced_model(0.01)).report
    assert report.tuning is not None
    assert report.tuning.best.is_empty
    assert report.tuning.trials == ()
    assert all(epoch.knobs is not None and epoch.knobs.is_empty for epoch in report.epochs)


@pytest.mark.parametrize("case", ["not watched", "class weights", "strategy"])
def test_what_cannot_be_tuned_is_one_warning_with_the_line_to_type(log_dir: str, case: str) -> None:
    model, data = tiny_model(), watch(dataset())
    arguments: dict[str, Any] = {}
    if case == "not watched":
        data = dataset()
    elif case == "class weights":
        arguments = {"class_weight": {0: 1.0, 1: 2.0}}
    else:
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            model = tiny_model()
    with pytest.warns(RuntimeWarning, match="nothing is tuned") as caught:
        report = fit(log_dir, data, epochs=3, model=model, **arguments).report
    assert len([each for each in caught if "tuned" in str(each.message)]) == 1
    assert report.tuning is None
    assert any("nothing is tuned" in note for note in report.notes)


class FailingModel(keras.Sequential):
    """Its second epoch fails in a step."""

    train_function: Any

    def __init__(self) -> None:
        super().__init__([keras.Input((1,)), keras.layers.Dense(1)])
        self.compile("sgd", "mse", jit_compile=False)

    def make_train_function(self, force: bool = False) -> Any:
        super().make_train_function(force)
        function: Any = self.train_function

        def train(iterator: Any) -> Any:
            if self.optimizer.iterations.numpy() > STEPS:
                raise ValueError("theirs")
            return function(iterator)

        self.train_function = train
        return train


class BreaksAt(keras.callbacks.Callback):
    """Makes the pipeline fail from some epoch on."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch
        self.is_broken = tf.Variable(False)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.is_broken.assign(epoch >= self.epoch)


def test_an_error_in_a_tuned_pipeline_stays_the_users_and_puts_his_pipeline_back(log_dir: str) -> None:
    breaking = BreaksAt(3)

    def check(element: tf.Tensor, target: tf.Tensor) -> Any:
        message = "made by the user"
        with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(breaking.is_broken), [message])]):
            return tf.identity(element), target

    data = watch(slow_reads().map(check))
    callback = GPUWatch(log_dir, autotune=True, console=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="made by the user"):
        fit(log_dir, data, watch=callback, callbacks=[breaking])
    assert callback.report.tuning is not None
    assert callback.report.tuning.knobs.is_empty
    assert data.knobs.is_empty
    breaking.epoch = 99
    fit(log_dir, data, watch=callback, epochs=2, callbacks=[breaking])
    assert callback.report.status == "finished"


def test_ctrl_c_in_a_tuned_epoch_ends_the_training_as_ever(log_dir: str) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.model.optimizer.iterations.numpy() > 3 * STEPS + 5:
                raise KeyboardInterrupt

    callback = GPUWatch(log_dir, autotune=True, console=False)
    with pytest.raises(KeyboardInterrupt):
        fit(log_dir, watch(slow_reads()), watch=callback, callbacks=[Stop()])
    assert callback.report.tuning is not None


def test_a_second_fit_goes_on_with_what_the_first_one_found(log_dir: str) -> None:
    callback = GPUWatch(log_dir, autotune=True, console=False)
    model = paced_model(STEP_SECONDS)
    fit(log_dir, watch(slow_reads()), watch=callback, model=model)
    best = callback.report.tuning.best  # type: ignore[union-attr]
    assert not best.is_empty
    fit(log_dir, watch(slow_reads()), watch=callback, model=model, epochs=1)
    assert callback.report.epochs[-1].knobs == best


def test_early_stopping_and_watched_validation_data_work_as_ever(log_dir: str) -> None:
    validation = watch(slow_reads(0.0005, batches=4))
    stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=0, min_delta=1e9)
    callback = fit(log_dir, watch(slow_reads()), validation_data=validation, callbacks=[stopping])
    assert len(callback.report.epochs) == 2
    assert validation.knobs.is_empty


def test_one_iterator_for_the_whole_fit_is_said_and_tuned_at_the_next_fit(log_dir: str) -> None:
    callback = GPUWatch(log_dir, autotune=True, console=False)
    model = paced_model(STEP_SECONDS)
    data = watch(slow_reads(batches=10 * STEPS).repeat())
    fit(log_dir, data, watch=callback, model=model, steps_per_epoch=STEPS, epochs=6)
    tuning = callback.report.tuning
    assert tuning is not None
    assert all(epoch.knobs is None or epoch.knobs.is_empty for epoch in callback.report.epochs)
    assert "next" in tuning.headline
    fit(log_dir, data, watch=callback, model=model, steps_per_epoch=STEPS, epochs=2)
    last = callback.report.epochs[-1]
    assert last.knobs is not None
    assert not last.knobs.is_empty
    assert (last.batches_per_second or 0.0) > 1.8 * (callback.report.epochs[2].batches_per_second or 0.0)


def test_iterators_that_keras_makes_an_epoch_early_are_tuned_one_epoch_later(log_dir: str) -> None:
    report = fit(log_dir, watch(slow_reads()), steps_per_epoch=STEPS, epochs=7).report
    assert report.tuning is not None
    assert not report.tuning.best.is_empty
    assert (report.epochs[-1].batches_per_second or 0.0) > 1.8 * (report.epochs[1].batches_per_second or 0.0)


def test_the_next_run_starts_from_the_settings_that_were_kept(log_dir: str, tmp_path: Path) -> None:
    autotune = AutoTune(state=tmp_path / "tuned.json")
    best = fit(log_dir, watch(slow_reads()), autotune).report.tuning.best  # type: ignore[union-attr]
    report = fit(log_dir, watch(slow_reads()), autotune, epochs=2).report
    assert [epoch.knobs for epoch in report.epochs] == [best, best]
    assert [path.name for path in tmp_path.glob("tuned*")] == ["tuned.json"]


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"schema_version": 99}', "\0" * 2_000_000])
def test_a_state_that_is_none_is_a_word_and_the_training_goes_on(log_dir: str, tmp_path: Path, text: str) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.warns(RuntimeWarning, match="tuned.json"):
        report = fit(log_dir, watch(dataset()), AutoTune(state=path), epochs=1, model=tiny_model()).report
    assert report.status == "finished"
    assert report.epochs[0].knobs is not None
    assert report.epochs[0].knobs.is_empty


def test_settings_that_failed_are_not_kept_and_those_that_do_not_suit_today_are(log_dir: str, tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    shape = watch(slow_reads()).tunable().shape
    deep = Knobs(buffer_sizes={END: 500})
    path.write_text(dump_state(None, shape, deep))
    fit(log_dir, watch(slow_reads()), AutoTune(state=path, max_memory=1), epochs=2)
    assert load_state(path.read_text(), shape)[0] == deep
    watched = watch(slow_reads())
    with pytest.raises(ValueError, match="theirs"):
        fit(log_dir, watched, AutoTune(state=path), epochs=2, model=FailingModel())
    assert watched.knobs.is_empty
    assert load_state(path.read_text(), shape)[0] == Knobs()


def test_a_state_that_cannot_be_written_is_a_word(log_dir: str, tmp_path: Path) -> None:
    path = tmp_path / "no such folder" / "tuned.json"
    with pytest.warns(RuntimeWarning, match="can't be kept"):
        report = fit(log_dir, watch(slow_reads()), AutoTune(state=path)).report
    assert report.status == "finished"


def test_our_own_failure_puts_the_users_pipeline_back_and_the_training_goes_on(
    log_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Tuner.judge

    def judge(self: Tuner, observation: Any) -> list[str]:
        if observation.summary.epoch == 3:
            raise RuntimeError("ours")
        return original(self, observation)

    monkeypatch.setattr(Tuner, "judge", judge)
    data = watch(slow_reads())
    report = fit(log_dir, data, epochs=6).report
    assert report.status == "finished"
    assert any("tuning of the input pipeline failed" in note for note in report.notes)
    assert data.knobs.is_empty
    assert [epoch.knobs is not None for epoch in report.epochs] == [True, True, True, True, False, False]


def test_a_rebuild_that_fails_is_told_and_not_tried_again(log_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from keras_gpu_watch import watched

    def rebuild(*arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(watched, "rebuild", rebuild)
    report = fit(log_dir, watch(slow_reads())).report
    assert report.status == "finished"
    assert report.tuning is not None
    assert report.tuning.best.is_empty
    assert [trial.outcome for trial in report.tuning.trials] == ["failed"]


def test_buffers_stay_within_the_memory_that_is_allowed(log_dir: str) -> None:
    # A batch has two columns of BATCH floats.
    report = fit(log_dir, watch(slow_reads()), AutoTune(max_memory=20 * 2 * BATCH * 4)).report
    assert report.tuning is not None
    assert all(size <= 20 for trial in report.tuning.trials for size in trial.knobs.buffer_sizes.values())


def test_the_console_tells_each_decision(log_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    paced = paced_model(STEP_SECONDS)
    paced.fit(watch(slow_reads()), epochs=EPOCHS, verbose=0, callbacks=[GPUWatch(log_dir, autotune=True)])
    out = capsys.readouterr().out
    assert "GPU Watch tuner: trying" in out
    assert "GPU Watch tuner: kept" in out
    assert "num_parallel_calls=" in out
