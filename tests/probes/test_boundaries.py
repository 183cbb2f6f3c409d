# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import threading
from typing import Any

import keras
import pytest
from trainings import dataset, tiny_model

from keras_gpu_watch.probes.boundaries import BOUNDARIES, Boundaries, note_train_begin


class Steps:
    """A clock that counts how often it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


class Tick(keras.callbacks.Callback):
    """Reads the clock in every boundary's hook."""

    def __init__(self, clock: Steps) -> None:
        super().__init__()
        for name in ("on_train_begin", *BOUNDARIES):
            setattr(self, name, lambda *arguments, **keywords: clock())


class Taker(keras.callbacks.Callback):
    """Holds boundaries as the package's own callback does, and keeps what it took and when it was asked."""

    def __init__(self, clock: Steps) -> None:
        super().__init__()
        self.clock = clock
        self.boundaries = Boundaries(clock)
        self.begin = 0.0
        self.taken: list[tuple[str, float, float]] = []
        self.running: list[bool] = []

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        note_train_begin(self, self.clock)

    def on_train_begin(self, logs: Any = None) -> None:
        self.begin = self.boundaries.attach(self)
        self.running.append(self.boundaries.driver_is_running())

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._take("on_epoch_begin")

    def on_test_end(self, logs: Any = None) -> None:
        self._take("on_test_end")

    def on_train_end(self, logs: Any = None) -> None:
        self._take("on_train_end")

    def _take(self, name: str) -> None:
        asked = self.clock.now
        self.taken.append((name, self.boundaries.take(name), asked))


def fit(callbacks: list[keras.callbacks.Callback]) -> None:
    tiny_model().fit(dataset(2), epochs=2, validation_data=dataset(1), callbacks=callbacks, verbose=0)


@pytest.mark.parametrize("before", [0, 1, 5])
def test_boundaries_come_before_every_callback_in_whatever_order(before: int) -> None:
    clock = Steps()
    taker = Taker(clock)
    ticks: list[keras.callbacks.Callback] = [Tick(clock) for _ in range(5)]
    fit([*ticks[:before], taker, *ticks[before:]])
    assert [name for name, _, _ in taker.taken] == [
        "on_epoch_begin",
        "on_test_end",
        "on_epoch_begin",
        "on_test_end",
        "on_train_end",
    ]
    # Each callback before ours has read the clock once in between.
    assert [asked - stamp for _, stamp, asked in taker.taken] == [before] * 5
    assert taker.begin == 1


def test_a_stamp_is_taken_once() -> None:
    clock = Steps()
    taker = Taker(clock)
    fit([taker])
    assert taker.boundaries.take("on_train_end") == clock.now


def test_hooks_called_by_hand_use_their_own_time() -> None:
    clock = Steps()
    taker = Taker(clock)
    taker.on_train_begin()
    assert taker.begin == 1
    taker.on_epoch_begin(0)
    assert taker.taken == [("on_epoch_begin", 2, 1)]
    assert taker.boundaries.driver_is_running()


def test_a_callback_list_made_by_hand_is_found() -> None:
    clock = Steps()
    tick, taker = Tick(clock), Taker(clock)
    callbacks = keras.callbacks.CallbackList([tick, taker], model=tiny_model())
    callbacks.on_train_begin()
    callbacks.on_epoch_begin(0)
    assert taker.taken[0][2] - taker.taken[0][1] == 1
    taker.boundaries.detach()


def test_detaching_gives_the_list_its_own_methods_back() -> None:
    taker = Taker(Steps())
    callbacks = keras.callbacks.CallbackList([taker], model=tiny_model())
    callbacks.on_train_begin()
    assert set(BOUNDARIES) <= set(vars(callbacks))
    taker.boundaries.detach()
    assert not set(BOUNDARIES) & set(vars(callbacks))
    taker.boundaries.detach()


def test_detaching_leaves_what_somebody_else_put_on_top() -> None:
    taker = Taker(Steps())
    callbacks = keras.callbacks.CallbackList([taker], model=tiny_model())
    callbacks.on_train_begin()

    def theirs(*arguments: Any, **keywords: Any) -> None:
        pass

    callbacks.on_epoch_begin = theirs
    taker.boundaries.detach()
    assert callbacks.on_epoch_begin is theirs


def test_two_watchers_in_one_list_get_a_stamp_each() -> None:
    clock = Steps()
    first, second = Taker(clock), Taker(clock)
    fit([first, second])
    for taker in (first, second):
        assert len(taker.taken) == 5
        assert all(stamp <= asked for _, stamp, asked in taker.taken)
        gaps = [later - earlier for (_, earlier, _), (_, later, _) in itertools.pairwise(taker.taken)]
        assert min(gaps) > 0


def test_the_driver_runs_until_fit_is_left() -> None:
    taker = Taker(Steps())
    fit([taker])
    assert taker.running == [True]
    assert not taker.boundaries.driver_is_running()


def test_the_driver_is_seen_from_another_thread() -> None:
    taker = Taker(Steps())
    seen: list[bool] = []

    class Asks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            thread = threading.Thread(target=lambda: seen.append(taker.boundaries.driver_is_running()))
            thread.start()
            thread.join()

    fit([taker, Asks()])
    assert seen == [True, True]
    thread = threading.Thread(target=lambda: seen.append(taker.boundaries.driver_is_running()))
    thread.start()
    thread.join()
    assert seen[-1] is False
