# SPDX-License-Identifier: Apache-2.0
"""Whatever `fit` takes: every batch is counted, every second has its place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
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

# How data of unknown length end, and finite data with `steps_per_epoch`: Keras says it each time.
pytestmark = [
    pytest.mark.timed,
    pytest.mark.filterwarnings("ignore:.*Your input ran out of data:UserWarning"),
]

EPOCHS = 2
Data = dict[str, Any]
"""Arguments of `fit`."""


class Sequence(keras.utils.PyDataset):
    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        batch = examples()[BATCH * index : BATCH * (index + 1)]
        return batch, batch


def _endless_generator() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    while True:
        yield examples(BATCH), examples(BATCH)


def _watched(data: tf.data.Dataset) -> Data:
    return {"x": keras_gpu_watch.watch(data)}


FINITE: dict[str, Callable[[], Data]] = {
    "tf.data": lambda: {"x": dataset()},
    "tf.data, watched": lambda: _watched(dataset()),
    "tf.data of unknown length": lambda: {"x": dataset().filter(lambda x, y: True)},
    "tf.data of unknown length, watched": lambda: _watched(dataset().filter(lambda x, y: True)),
    "arrays": lambda: {"x": examples(), "y": examples(), "batch_size": BATCH},
}
"""Ten batches an epoch, whatever `steps_per_execution` is: the last group is short."""

ENDLESS: dict[str, Callable[[], Data]] = {
    "tf.data": lambda: {"x": dataset().repeat()},
    "tf.data, watched": lambda: _watched(dataset().repeat()),
    "generator": lambda: {"x": _endless_generator()},
}
"""With `steps_per_epoch` one iterator serves all epochs."""

WITHOUT_A_MODEL: dict[str, Callable[[], Data]] = {
    "autotune off": lambda: {"x": dataset().with_options(_autotune_off())},
}
POOLS: dict[str, dict[str, Any]] = {
    "threads": {"workers": 2},
    "processes": {"workers": 2, "use_multiprocessing": True},
}


def _autotune_off() -> tf.data.Options:
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


def fit(
    log_dir: str,
    data: Data,
    model: keras.Model | None = None,
    epochs: int = EPOCHS,
    failed_fetches: int = 0,
    **arguments: Any,
) -> GPUWatch:
    """Train, and check what every account must fulfil.

    A call that finds the data used up may count as an iteration: TensorFlow adds one beside the fetch that fails.
    """
    model = model or tiny_model()
    watch, stopwatch = GPUWatch(log_dir, console=False), Stopwatch()
    model.fit(**data, epochs=epochs, verbose=0, callbacks=[stopwatch, watch], **arguments)
    assert_account_closes(watch, stopwatch.fit_seconds)
    rows = watch.batches()
    assert len(rows) == len(stopwatch.calls_seconds)
    assert rows["step"].tolist() == np.cumsum(rows["batches"]).tolist()
    assert rows["step"][-1] in model.optimizer.iterations.numpy() - np.arange(failed_fetches + 1)
    assert sum(epoch.batches for epoch in watch.report.epochs) == rows["batches"].sum()
    # What the hooks around a call saw, less what Keras does between them and the call.
    assert (rows["done_seconds"] - rows["call_seconds"]).sum() <= sum(stopwatch.calls_seconds)
    return watch


@pytest.mark.parametrize("kind", FINITE)
@pytest.mark.parametrize("batches_per_call", [1, 4, 7])
def test_ten_batches_are_ten_batches(log_dir: str, kind: str, batches_per_call: int):
    failed_fetches = EPOCHS if "unknown" in kind else 0
    model = tiny_model(steps_per_execution=batches_per_call)
    watch = fit(log_dir, FINITE[kind](), model, failed_fetches=failed_fetches)
    groups = [batches_per_call] * (BATCHES // batches_per_call)
    if BATCHES % batches_per_call:
        groups.append(BATCHES % batches_per_call)
    rows = watch.batches()
    assert rows["batches"].tolist() == groups * EPOCHS
    assert rows["examples"].tolist() == [BATCH * group for group in groups] * EPOCHS
    for epoch in watch.report.epochs:
        assert (epoch.steps, epoch.batches) == (len(groups), BATCHES)
    kinds = rows["kind"].reshape(EPOCHS, -1)
    assert kinds[:, 0].tolist() == [StepKind.COMPILE, StepKind.FIRST]
    assert np.all(kinds[:, 1:] == StepKind.STEADY)
    assert rows["estimated"].any() == (batches_per_call > 1)


@pytest.mark.parametrize("kind", WITHOUT_A_MODEL)
@pytest.mark.parametrize("batches_per_call", [4, 7])
def test_where_nothing_counts_the_batches_the_optimizer_does(log_dir: str, kind: str, batches_per_call: int):
    model = tiny_model(steps_per_execution=batches_per_call)
    watch = fit(log_dir, WITHOUT_A_MODEL[kind](), model)
    assert [epoch.batches for epoch in watch.report.epochs] == [BATCHES] * EPOCHS
    assert watch.batches()["step"][-1] == model.optimizer.iterations.numpy() == BATCHES * EPOCHS


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("batches_per_call", [1, 4, 7])
def test_endless_data_is_counted_by_the_groups_that_ran(log_dir: str, kind: str, batches_per_call: int):
    model = tiny_model(steps_per_execution=batches_per_call)
    watch = fit(log_dir, ENDLESS[kind](), model, steps_per_epoch=BATCHES)
    calls = -(-BATCHES // batches_per_call)
    # Keras runs the last group in full.
    assert watch.batches()["batches"].tolist() == [batches_per_call] * calls * EPOCHS
    assert [epoch.steps for epoch in watch.report.epochs] == [calls] * EPOCHS


@pytest.mark.parametrize("wrap", [lambda data: data, keras_gpu_watch.watch], ids=["plain", "watched"])
@pytest.mark.parametrize("batches_per_call", [1, 4])
def test_finite_data_with_steps_per_epoch_is_counted_over_its_iterators(
    log_dir: str, wrap: Callable[[tf.data.Dataset], tf.data.Dataset], batches_per_call: int
):
    model = tiny_model(steps_per_execution=batches_per_call)
    watch = fit(log_dir, {"x": wrap(dataset())}, model, epochs=5, steps_per_epoch=4)
    # The third epoch finds two batches left, the fourth begins with new ones.
    assert [epoch.batches for epoch in watch.report.epochs] == [4, 4, 2, 4, 4]


class Counter(keras.callbacks.Callback):
    """Counts the batches of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def on_epoch_begin(self, epoch, logs=None) -> None:
        self.counts.append(0)

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.counts[-1] += 1


@pytest.mark.parametrize("wrap", [lambda data: data, keras_gpu_watch.watch], ids=["plain", "watched"])
def test_epochs_of_unequal_length_are_counted_each(log_dir: str, wrap: Callable[[tf.data.Dataset], tf.data.Dataset]):
    lengths = itertools.cycle([3, 8, 5, 6])

    def elements() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for _ in range(next(lengths)):
            yield examples(BATCH), examples(BATCH)

    spec = tf.TensorSpec([None, 1], tf.float32)
    data = tf.data.Dataset.from_generator(elements, output_signature=(spec, spec))
    watch, counter, stopwatch = GPUWatch(log_dir, console=False), Counter(), Stopwatch()
    tiny_model().fit(wrap(data), epochs=4, verbose=0, callbacks=[counter, stopwatch, watch])
    assert len(set(counter.counts)) > 1
    assert [epoch.batches for epoch in watch.report.epochs] == counter.counts
    assert_account_closes(watch, stopwatch.fit_seconds)


def test_a_generator_that_ends_is_an_epoch_that_ends(log_dir: str):
    finite = ((examples(BATCH), examples(BATCH)) for _ in range(BATCHES))
    watch = fit(log_dir, {"x": finite}, epochs=1, failed_fetches=1)
    assert watch.report.epochs[0].batches == BATCHES


@pytest.mark.parametrize("workers", [0, 1])
def test_a_pydataset_without_a_pool_is_measured(log_dir: str, workers: int):
    watch = fit(log_dir, {"x": Sequence(workers=workers)})
    assert [epoch.batches for epoch in watch.report.epochs] == [BATCHES] * EPOCHS
    assert watch.report.epochs[1].input_wait_seconds is not None


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_pydataset_with_a_pool_is_measured_too(log_dir: str, pool: str):
    watch = fit(log_dir, {"x": Sequence(**POOLS[pool])})
    assert [epoch.batches for epoch in watch.report.epochs] == [BATCHES] * EPOCHS
    assert all(epoch.input_wait_seconds is not None for epoch in watch.report.epochs)


@pytest.mark.parametrize("kind", WITHOUT_A_MODEL)
def test_input_that_tf_data_has_no_model_of_gives_step_times_and_the_reason(log_dir: str, kind: str):
    watch = fit(log_dir, WITHOUT_A_MODEL[kind]())
    for epoch in watch.report.epochs:
        assert epoch.batches == BATCHES
        assert epoch.step_seconds > 0
        unknown = (epoch.input_wait_seconds, epoch.compute_seconds, epoch.input_wait_share, epoch.goodput)
        assert unknown == (None, None, None, None)
        assert ["keeps no timing of this input" in note for note in epoch.notes] == [True]
    assert np.isnan(watch.batches()["input_wait_seconds"]).all()


def test_watching_makes_input_without_a_model_known(log_dir: str):
    watch = fit(log_dir, _watched(dataset().with_options(_autotune_off())))
    for epoch in watch.report.epochs:
        assert epoch.input_wait_seconds is not None
        assert epoch.notes == ()


@pytest.mark.parametrize("batches_per_call", [4, 7])
def test_a_wait_that_is_not_known_always_has_a_reason(log_dir: str, batches_per_call: int):
    # One call an epoch: tf.data tells its wait with the next call only.
    model = tiny_model(steps_per_execution=batches_per_call)
    watch = fit(log_dir, {"x": dataset()}, model, epochs=3, steps_per_epoch=batches_per_call)
    for epoch in watch.report.epochs:
        assert epoch.input_wait_seconds is not None or epoch.notes
