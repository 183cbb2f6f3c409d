# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from ground_truth import BATCH, Stopwatch, find_truth, sleeping_model
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from trainings import dataset, examples, tiny_model

from keras_gpu_watch import GPUWatch, watch
from keras_gpu_watch.probes.boundaries import Boundaries
from keras_gpu_watch.probes.epoch_iterator import FitInput, PoolStamp, find_dataset_holder, read_fit_input
from keras_gpu_watch.probes.stamp_source import WATCHED_ATTRIBUTE

BATCHES, EPOCHS = 12, 3

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*ran out of data:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


class Items(keras.utils.PyDataset):
    """Batches that all differ, each of which takes a while to make."""

    def __init__(self, seconds: float = 1e-3, batches: int = BATCHES, fails_at: int | None = None, **pool: Any) -> None:
        super().__init__(**pool)
        self.seconds, self.batches, self.fails_at = seconds, batches, fails_at

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(self.seconds)
        if index == self.fails_at:
            raise ValueError("no such item")
        column = np.full((BATCH, 1), index / self.batches, np.float32)
        return column, 2 * column


class Endless(Items):
    @property
    def num_batches(self) -> None:
        return None


class Stamping(keras.callbacks.Callback):
    """Stamps as the package's own callback does."""

    def __init__(self, stamp: Callable[[Any], Any] = watch) -> None:
        super().__init__()
        self.pool_stamp = PoolStamp(stamp)
        self.is_put: bool | None = None
        self.holder: Any = None
        self.before: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        boundaries = Boundaries()
        boundaries.attach(self)
        self.holder = find_dataset_holder(boundaries.driver)
        self.before = getattr(self.holder, "_distributed_dataset", None)
        self.is_put = self.pool_stamp.put(boundaries.driver)
        boundaries.detach()

    def on_train_end(self, logs: Any = None) -> None:
        self.pool_stamp.take_off()

    @property
    def dataset(self) -> Any:
        """What the training takes its iterators from now."""
        return self.holder._distributed_dataset


def _pool_has_statistics() -> bool:
    data = PyDatasetAdapter(Items(workers=2)).get_tf_dataset()
    return data.options().autotune.enabled is not False


without_statistics = pytest.mark.skipif(_pool_has_statistics(), reason="this Keras leaves tf.data's statistics on")

POOLS: dict[str, Callable[[], dict[str, Any]]] = {
    "threads": lambda: {"x": Items(workers=4)},
    "processes": lambda: {"x": Items(workers=2, use_multiprocessing=True)},
    "one process": lambda: {"x": Items(workers=1, use_multiprocessing=True)},
    "a short queue": lambda: {"x": Items(workers=4, max_queue_size=1)},
    "steps per epoch": lambda: {"x": Items(workers=2), "steps_per_epoch": 5},
    "endless": lambda: {"x": Endless(workers=2), "steps_per_epoch": 5},
    "class weights": lambda: {"x": Items(workers=2), "class_weight": {0: 1.0, 1: 3.0}},
}


def _autotune_off() -> tf.data.Options:
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


WITHOUT_A_POOL: dict[str, Callable[[], dict[str, Any]]] = {
    "no pool": lambda: {"x": Items(workers=1)},
    "arrays": lambda: {"x": examples(), "y": examples()},
    "a tf.data.Dataset": lambda: {"x": dataset()},
    "a tf.data.Dataset without statistics": lambda: {"x": dataset().with_options(_autotune_off())},
}


def train(data: dict[str, Any], *callbacks: keras.callbacks.Callback) -> tuple[list[np.ndarray], dict[str, Any]]:
    keras.utils.set_random_seed(0)
    model = tiny_model()
    history = model.fit(**data, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model.get_weights(), history.history


@without_statistics
@pytest.mark.parametrize("pool", POOLS)
def test_a_training_with_a_pool_is_the_same_with_stamps_and_its_waits_are_known(log_dir: str, pool: str) -> None:
    stamping, gpu_watch = Stamping(), GPUWatch(log_dir, console=False)
    weights, history = train(POOLS[pool](), stamping, gpu_watch)
    plain_weights, plain_history = train(POOLS[pool]())
    assert stamping.is_put is True
    assert all(map(np.array_equal, weights, plain_weights))
    assert history == plain_history
    assert all(epoch.input_wait_seconds is not None for epoch in gpu_watch.report.epochs)
    assert not np.isnan(gpu_watch.batches()["input_wait_seconds"]).any()


@without_statistics
@pytest.mark.parametrize("uses_processes", [False, True])
def test_the_waits_are_the_calls_without_their_steps(log_dir: str, uses_processes: bool) -> None:
    model = sleeping_model(0.005)
    step_seconds = find_truth(0.0, 20, model).step_seconds
    stopwatch, gpu_watch = Stopwatch(), GPUWatch(log_dir, console=False)
    # Two workers give two batches each 120 ms: on the average a step waits for 55 ms.
    data = Items(seconds=0.12, batches=16, workers=2, use_multiprocessing=uses_processes, max_queue_size=2)
    model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=[Stamping(), stopwatch, gpu_watch])
    steps = gpu_watch.batches()
    steady = (steps["epoch"] == 1) & ~np.isnan(steps["host_seconds"])
    truth_seconds = (np.array(stopwatch.calls_seconds) - step_seconds)[steady].sum()
    assert truth_seconds > 0.4
    assert steps["input_wait_seconds"][steady].sum() == pytest.approx(truth_seconds, rel=0.1)


@without_statistics
def test_the_dataset_is_stamped_during_the_training_and_put_back_at_its_end() -> None:
    stamping = Stamping()
    seen: list[Any] = []
    look = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(stamping.dataset))
    train(POOLS["threads"](), stamping, look)
    assert [getattr(each, WATCHED_ATTRIBUTE, False) for each in seen] == [True] * EPOCHS
    assert stamping.dataset is stamping.before
    assert not hasattr(stamping.before, WATCHED_ATTRIBUTE)
    stamping.pool_stamp.take_off()


@without_statistics
def test_what_somebody_else_put_there_stays() -> None:
    stamping = Stamping()
    theirs: list[Any] = []

    def replace(epoch: int, logs: Any) -> None:
        theirs.append(watch(stamping.before))
        stamping.holder._distributed_dataset = theirs[-1]

    train(POOLS["threads"](), stamping, keras.callbacks.LambdaCallback(on_epoch_end=replace))
    assert stamping.dataset is theirs[-1]


@pytest.mark.parametrize("kind", WITHOUT_A_POOL)
def test_other_input_is_left_alone(kind: str) -> None:
    stamping = Stamping(stamp=lambda dataset: pytest.fail("not to be stamped"))
    train(WITHOUT_A_POOL[kind](), stamping)
    assert stamping.is_put is False
    assert stamping.dataset is stamping.before


def test_under_a_strategy_and_in_other_loops_there_is_nothing_to_stamp() -> None:
    stamping = Stamping()
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = tiny_model()
    model.fit(dataset(), verbose=0, callbacks=[stamping])
    assert (stamping.holder, stamping.is_put) == (None, False)
    callbacks = keras.callbacks.CallbackList([stamping], model=model)
    callbacks.on_train_begin()
    assert (stamping.holder, stamping.is_put) == (None, False)
    assert stamping.pool_stamp.put(None) is False


@pytest.mark.parametrize("holder", [None, object(), keras.callbacks.History()])
def test_a_variable_of_that_name_that_is_no_iterator_of_keras_is_left_alone(holder: Any) -> None:
    def driver(epoch_iterator: Any) -> FrameType:
        return sys._getframe()

    assert PoolStamp(watch).put(driver(holder)) is False


class Interrupts(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 5:
            signal.raise_signal(signal.SIGINT)


@without_statistics
@pytest.mark.parametrize("uses_processes", [False, True])
@pytest.mark.parametrize("ends_by", ["an item", "Ctrl-C"])
def test_a_training_that_breaks_off_does_so_as_ever_and_the_next_one_works(ends_by: str, uses_processes: bool) -> None:
    pool: dict[str, Any] = {"workers": 2, "use_multiprocessing": uses_processes}

    def break_off(*callbacks: keras.callbacks.Callback) -> type[BaseException]:
        data = Items(fails_at=7 if ends_by == "an item" else None, **pool)
        interrupts = [Interrupts()] if ends_by == "Ctrl-C" else []
        with pytest.raises((tf.errors.OpError, KeyboardInterrupt)) as caught:
            train({"x": data}, *callbacks, *interrupts)
        return caught.type

    stamping, again = Stamping(), Stamping()
    assert break_off(stamping) is break_off()
    stamping.pool_stamp.take_off()
    assert stamping.dataset is stamping.before
    train({"x": Items(**pool)}, again)
    assert again.is_put is True


class Reading(keras.callbacks.Callback):
    """Reads what `fit` was given, as the package's own callback does."""

    given = FitInput()

    def on_train_begin(self, logs: Any = None) -> None:
        boundaries = Boundaries()
        boundaries.attach(self)
        self.given = read_fit_input(boundaries.driver)
        boundaries.detach()


def test_the_watched_dataset_of_a_fit_is_found_before_its_first_iterator() -> None:
    watched, reading = watch(dataset()), Reading()
    tiny_model().fit(watched, verbose=0, callbacks=[reading])
    assert reading.given.dataset is watched
    assert reading.given.reason is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x": dataset()}, "fit(watch(dataset), ...)"),
        ({"x": watch(dataset()).take(2)}, "not last"),
        ({"x": examples(), "y": examples()}, "fit(watch(dataset), ...)"),
        ({"x": Items(workers=2)}, "fit(watch(dataset), ...)"),
        ({"x": watch(dataset()), "class_weight": {0: 1.0, 1: 2.0}}, "tf.gather(weights, y)"),
    ],
    ids=["not watched", "not last", "arrays", "a pool", "class weights"],
)
def test_input_that_cannot_be_tuned_says_why_and_what_to_type(arguments: dict[str, Any], words: str) -> None:
    reading = Reading()
    tiny_model().fit(**arguments, verbose=0, callbacks=[reading])
    assert reading.given.dataset is None
    assert words in (reading.given.reason or "")


def test_under_a_strategy_nothing_can_be_tuned_and_in_other_loops_nothing_is_known() -> None:
    reading = Reading()
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = tiny_model()
    model.fit(watch(dataset()), verbose=0, callbacks=[reading])
    assert "strategy" in (reading.given.reason or "")
    keras.callbacks.CallbackList([reading], model=model).on_train_begin()
    assert reading.given == FitInput()
