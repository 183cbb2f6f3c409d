# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import pickle
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from trainings import BATCHES, Sleeper, dataset, tiny_model

from keras_gpu_watch.findings import CallbackSeconds
from keras_gpu_watch.probes.boundaries import Boundaries
from keras_gpu_watch.probes.callback_timer import HOOKS, CallbackTimer

ALL_HOOKS = [hook for hooks in HOOKS.values() for hook in hooks]


class ManualClock:
    """Moves only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Worker(keras.callbacks.Callback):
    """A hook takes as many seconds of its clock as it is told."""

    def __init__(self, clock: ManualClock, seconds: float = 1.0) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def on_epoch_end(self, epoch: int, logs: Any = None) -> str:
        """What an epoch's end does."""
        self.clock.now += self.seconds
        return f"epoch {epoch}"


class Timed(keras.callbacks.Callback):
    """Holds the timer as the package's own callback does."""

    def __init__(self) -> None:
        super().__init__()
        self.timer = CallbackTimer()
        self.boundaries = Boundaries()
        self.epochs: list[dict[str, CallbackSeconds]] = []
        self.order: list[str] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.boundaries.attach(self)
        self.timer.attach(self.boundaries.callbacks, self)

    def take(self, boundary: str) -> None:
        found = self.timer.take_epoch(self.boundaries.take(boundary))
        self.order = [seconds.name for seconds in found]
        self.epochs.append({seconds.name: seconds for seconds in found})

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch > 0:
            self.take("on_epoch_begin")

    def on_train_end(self, logs: Any = None) -> None:
        self.take("on_train_end")
        self.timer.detach()
        self.boundaries.detach()


def attached(*callbacks: Any, clock: ManualClock | None = None) -> CallbackTimer:
    timer = CallbackTimer(clock or ManualClock())
    timer.attach(callbacks, own=None)
    return timer


def fit(*callbacks: keras.callbacks.Callback, epochs: int = 1) -> keras.Model:
    model = tiny_model()
    model.fit(dataset(), epochs=epochs, validation_data=dataset(2), callbacks=list(callbacks), verbose=0)
    return model


# What is counted


@pytest.mark.parametrize("part", HOOKS)
def test_each_hook_counts_for_its_part(part: str) -> None:
    for name in HOOKS[part]:
        clock = ManualClock()
        worker = Worker(clock)
        setattr(worker, name, lambda *arguments, clock=clock: setattr(clock, "now", clock.now + 2.0))
        timer = attached(worker, clock=clock)
        getattr(worker, name)(0)
        assert timer.take_epoch() == (CallbackSeconds(name="Worker", **{part: 2.0}),)


def test_taking_an_epoch_starts_the_next_one_from_nothing() -> None:
    clock = ManualClock()
    worker = Worker(clock)
    timer = attached(worker, clock=clock)
    worker.on_epoch_end(0)
    worker.on_epoch_end(1)
    (seconds,) = timer.take_epoch()
    assert [type(value) for value in dataclasses.astuple(seconds)] == [str, float, float, float]
    assert seconds.epoch_seconds == 2.0
    assert timer.take_epoch() == ()
    worker.on_epoch_end(2)
    assert timer.take_epoch()[0].epoch_seconds == 1.0


def test_the_slowest_comes_first_and_equal_names_are_numbered_in_the_order_of_the_list() -> None:
    clock = ManualClock()
    workers = [Worker(clock, seconds) for seconds in (1.0, 3.0, 0.0, 2.0)]
    timer = attached(*workers, workers[1], clock=clock)
    for worker in workers:
        worker.on_epoch_end(0)
    found = [(seconds.name, seconds.epoch_seconds) for seconds in timer.take_epoch()]
    assert found == [("Worker 2", 3.0), ("Worker 4", 2.0), ("Worker", 1.0)]


def test_the_own_callback_is_not_timed() -> None:
    own, other = Worker(ManualClock()), Worker(ManualClock())
    CallbackTimer().attach([own, other], own)
    assert "on_epoch_end" not in vars(own)
    assert "on_epoch_end" in vars(other)


def test_hooks_that_are_not_overridden_are_left_alone() -> None:
    worker = Worker(ManualClock())
    attached(worker)
    assert [hook for hook in ALL_HOOKS if hook in vars(worker)] == ["on_epoch_end"]


def test_a_hook_within_a_hook_belongs_to_the_outer_one() -> None:
    clock = ManualClock()

    class Both(keras.callbacks.Callback):
        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            clock.now += 1.0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            clock.now += 2.0
            super().on_train_batch_end(batch, logs)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.on_test_begin()

        def on_test_begin(self, logs: Any = None) -> None:
            clock.now += 4.0

    both, worker = Both(), Worker(clock)
    container = keras.callbacks.CallbackList([both, worker])
    timer = attached(both, clock=clock)
    both.on_train_batch_end(0)
    both.on_epoch_end(0)
    assert timer.take_epoch() == (CallbackSeconds(name="Both", step_seconds=3.0, epoch_seconds=4.0),)
    timer.detach()
    timer.attach([container, worker], own=None)
    container.on_epoch_end(0)
    assert timer.take_epoch() == (CallbackSeconds(name="CallbackList", epoch_seconds=5.0),)


def test_the_default_hook_of_a_train_batch_calls_the_old_one_which_counts_once() -> None:
    clock = ManualClock()

    class Old(keras.callbacks.Callback):
        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            clock.now += 1.0

    old = Old()
    timer = attached(old, clock=clock)
    old.on_train_batch_end(0)
    assert timer.take_epoch() == (CallbackSeconds(name="Old", step_seconds=1.0),)


def test_hooks_on_several_threads_at_once_all_count() -> None:
    interval_seconds = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    class Many(keras.callbacks.Callback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    readings = threading.local()

    def clock() -> float:
        # One second from each reading to the next of the same thread.
        readings.count = getattr(readings, "count", 0) + 1
        return float(readings.count)

    many = Many()
    timer = CallbackTimer(clock)
    timer.attach([many], own=None)

    def call_many_times() -> None:
        for batch in range(2000):
            many.on_test_batch_end(batch)

    threads = [threading.Thread(target=call_many_times) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval_seconds)
    assert timer.take_epoch()[0].validation_seconds == 8000.0


def test_an_exception_passes_unchanged_and_its_time_counts() -> None:
    clock = ManualClock()
    error = ValueError("theirs")

    class Raises(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            clock.now += 1.0
            raise error

    raises = Raises()
    timer = attached(raises, clock=clock)
    for _ in range(2):
        with pytest.raises(ValueError, match="theirs") as caught:
            raises.on_epoch_end(0)
        assert caught.value is error
    assert timer.take_epoch()[0].epoch_seconds == 2.0


# How little it shows


def test_a_timed_hook_looks_like_the_hook() -> None:
    worker = Worker(ManualClock())
    plain = worker.on_epoch_end
    attached(worker)
    timed: Any = worker.on_epoch_end
    assert timed is not plain
    assert timed(3) == "epoch 3"
    assert timed(epoch=3, logs={}) == "epoch 3"
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__self__", "__func__", "__code__"):
        assert getattr(timed, name) == getattr(plain, name)
    assert timed.__wrapped__ == plain
    assert inspect.signature(timed) == inspect.signature(plain)
    assert not hasattr(timed, "_is_default")


COPIES: list[Callable[[Any], Any]] = [copy.deepcopy, *(lambda x, p=p: pickle.loads(pickle.dumps(x, p)) for p in (2, 5))]


class Picklable(keras.callbacks.Callback):
    """Counts on itself; one of its hooks is a function of its instance, and one has another name than its function."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.on_epoch_begin = str

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.count += 1

    on_test_end = staticmethod(lambda logs=None: "tested")


@pytest.mark.parametrize("make_copy", COPIES)
def test_a_callback_is_copied_and_pickled_as_without_us(make_copy: Callable[[Any], Any]) -> None:
    original = Picklable()
    timers = [attached(original), attached(original)]
    twin = make_copy(original)
    twin.on_epoch_end(0)
    assert (twin.count, original.count) == (1, 0)
    assert twin.on_epoch_begin(7) == "7"
    assert twin.on_test_end() == "tested"
    original.on_epoch_end(0)
    assert (twin.count, original.count) == (1, 1)
    assert "TimedHook" not in repr(list(vars(twin).values()))
    for timer in timers:
        timer.detach()


def test_detaching_gives_back_what_was_there_before() -> None:
    def own_hook(epoch: int, logs: Any) -> None:
        pass

    lambda_callback = keras.callbacks.LambdaCallback(on_epoch_end=own_hook)
    worker = Worker(ManualClock())
    before = [dict(vars(callback)) for callback in (lambda_callback, worker)]
    timer = attached(lambda_callback, worker)
    assert lambda_callback.on_epoch_end is not own_hook
    timer.detach()
    assert [vars(callback) for callback in (lambda_callback, worker)] == before
    assert lambda_callback.on_epoch_end is own_hook
    timer.detach()
    assert timer.take_epoch() == ()


def test_detaching_leaves_what_somebody_else_put_there() -> None:
    clock = itertools.count(1.0)
    worker, emptied = Worker(ManualClock()), Worker(ManualClock())
    timer = CallbackTimer(clock.__next__)
    timer.attach([worker, emptied], own=None)
    timed = worker.on_epoch_end
    worker.on_epoch_end = theirs = lambda epoch: timed(epoch)  # type: ignore[method-assign, assignment]
    del emptied.on_epoch_end
    timer.detach()
    assert worker.on_epoch_end is theirs
    assert worker.on_epoch_end(1) == "epoch 1"
    assert "on_epoch_end" not in vars(emptied)
    # A hook that was left in place is not timed any more.
    assert next(clock) == 1.0


@pytest.mark.parametrize("first_out", [0, 1])
def test_two_timers_leave_nothing_behind_in_whatever_order_they_go(first_out: int) -> None:
    clock = ManualClock()
    worker = Worker(clock)
    timers = [attached(worker, clock=clock), attached(worker, clock=clock)]
    worker.on_epoch_end(0)
    assert [timer.take_epoch()[0].epoch_seconds for timer in timers] == [1.0, 1.0]
    timers[first_out].detach()
    worker.on_epoch_end(1)
    assert timers[1 - first_out].take_epoch()[0].epoch_seconds == 1.0
    timers[1 - first_out].detach()
    assert "on_epoch_end" not in vars(worker)


def test_a_callback_that_takes_no_attributes_is_not_timed() -> None:
    class Slotted:
        __slots__ = ()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> str:
            return "done"

    slotted, worker = Slotted(), Worker(ManualClock())
    timer = attached(slotted, worker)
    assert slotted.on_epoch_end(0) == "done"
    assert "on_epoch_end" in vars(worker)
    timer.detach()


def test_a_callback_that_watches_its_attributes_notices_nothing() -> None:
    class Watchful(Worker):
        def __setattr__(self, name: str, value: Any) -> None:
            assert not name.startswith("on_")
            super().__setattr__(name, value)

    watchful = Watchful(ManualClock())
    timer = attached(watchful)
    assert "on_epoch_end" in vars(watchful)
    timer.detach()


# In a real `fit`


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_sleeping_callback_is_named_with_its_seconds_wherever_it_stands(position: int) -> None:
    timed = Timed()
    sleeper = Sleeper(on_train_batch_end=0.02)
    slept: list[float] = []
    note = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: slept.append(sleeper.slept_seconds))
    others: list[keras.callbacks.Callback] = [timed, note]
    fit(*others[:position], sleeper, *others[position:], epochs=2)
    assert slept[1] >= BATCHES * 0.02
    slept_seconds = [slept[1], sleeper.slept_seconds - slept[1]]
    for epoch, seconds in zip(timed.epochs, slept_seconds, strict=True):
        assert epoch["Sleeper"].step_seconds == pytest.approx(seconds, rel=0.05)
        assert epoch["Sleeper"].epoch_seconds == 0.0
    assert timed.order[0] == "Sleeper"
    assert "on_train_batch_end" in vars(sleeper)


def test_the_begin_of_an_epoch_counts_for_that_epoch_wherever_the_callback_stands() -> None:
    timed, before, after = Timed(), Sleeper(on_epoch_begin=0.05), Sleeper(on_epoch_begin=0.05)
    fit(before, timed, after, epochs=3)
    for epoch in timed.epochs:
        for name in ("Sleeper", "Sleeper 2"):
            assert epoch[name].epoch_seconds == pytest.approx(0.05, rel=0.4)


def test_hooks_of_validation_and_of_epochs_are_told_apart() -> None:
    timed = Timed()
    sleeper = Sleeper(on_epoch_begin=0.02, on_epoch_end=0.03, on_test_batch_end=0.05, on_test_begin=0.01)
    fit(timed, sleeper)
    seconds = timed.epochs[0]["Sleeper"]
    assert seconds.step_seconds == 0.0
    assert seconds.epoch_seconds == pytest.approx(0.05, rel=0.2)
    assert seconds.validation_seconds == pytest.approx(0.11, rel=0.2)


def test_an_evaluation_by_a_callback_is_that_callbacks_time() -> None:
    class Evaluates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.evaluate(dataset(2), callbacks=[sleeper], verbose=0)

    timed, sleeper = Timed(), Sleeper(on_test_batch_end=0.05)
    model = tiny_model()
    model.fit(dataset(), callbacks=[timed, Evaluates(), sleeper], verbose=0)
    assert "Sleeper" not in timed.epochs[0]
    assert timed.epochs[0]["Evaluates"].epoch_seconds >= sleeper.slept_seconds > 0.1


# Keras's own saving of weights.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_keras_own_callbacks_work_as_ever_and_are_named(tmp_path: Path) -> None:
    def train(*more: keras.callbacks.Callback) -> tuple[keras.Model, dict[str, list[float]], str]:
        keras.utils.set_random_seed(1)
        path = tmp_path / str(len(more))
        model = tiny_model()
        callbacks: list[keras.callbacks.Callback] = [
            *more,
            keras.callbacks.CSVLogger(str(path.with_suffix(".csv"))),
            keras.callbacks.ModelCheckpoint(str(path.with_suffix(".weights.h5")), save_weights_only=True),
            keras.callbacks.ModelCheckpoint(str(path.with_suffix(".keras"))),
            keras.callbacks.EarlyStopping("loss", patience=5),
            keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(1e-3)),
        ]
        history = model.fit(dataset(), epochs=2, validation_data=dataset(2), callbacks=callbacks, verbose=2)
        left_behind = [type(callback).__name__ for callback in callbacks if "TimedHook" in repr(vars(callback))]
        assert left_behind == []
        return model, history.history, path.with_suffix(".csv").read_text()

    timed = Timed()
    plain_model, plain_history, plain_file = train()
    model, history, file = train(timed)
    assert all(map(np.array_equal, model.get_weights(), plain_model.get_weights()))
    assert history == plain_history
    assert file == plain_file
    epoch = timed.epochs[0]
    named = {"CSVLogger", "ModelCheckpoint", "ModelCheckpoint 2", "LambdaCallback", "ProgbarLogger", "History"}
    assert named <= set(epoch)
    assert epoch["ModelCheckpoint 2"].epoch_seconds > epoch["ModelCheckpoint 2"].step_seconds > 0
    assert epoch["LambdaCallback"].step_seconds >= BATCHES * 1e-3
    assert epoch["LambdaCallback"].epoch_seconds == 0.0


def test_callbacks_without_a_list_are_none() -> None:
    boundaries = Boundaries()
    assert boundaries.callbacks == []
    boundaries.attach(Worker(ManualClock()))
    assert boundaries.callbacks == []
