# SPDX-License-Identifier: Apache-2.0
"""The moments at which `fit` moves on, independent of the order of the callbacks, and whether `fit` still runs."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from keras_gpu_watch.clock import Clock, monotonic

BOUNDARIES = ("on_epoch_begin", "on_test_end", "on_train_end")
_BEGUN = "_keras_gpu_watch_train_begin_seconds"


class Boundaries:
    """Stamps the calls of Keras's callback list before any callback runs.

    A hook of ours would come before or after other people's, depending on the order in which the user listed them.
    The callback list is found on the stack (it called us) and its methods are shadowed on the instance. Where
    there is none, as in a loop that calls the hooks by hand, the hooks' own times are used.

    Args:
        clock: The monotonic clock.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._stamps: dict[str, float] = {}
        self._list: Any = None
        self._shadows: dict[str, Callable[..., Any]] = {}
        self._driver: FrameType | None = None
        self._thread_id = threading.get_ident()

    def attach(self, callback: Any) -> float:
        """Find who is calling `callback`'s `on_train_begin`; call it from there.

        Args:
            callback: The callback whose hook is running.

        Returns:
            When that call began, if `note_train_begin` prepared it, else now.
        """
        frame = _frame_of_list(callback, "on_train_begin")
        if frame is None:
            return self._clock()
        callback_list = frame.f_locals["self"]
        driver = frame.f_back
        # What `note_train_begin` put in between is no `fit`.
        while driver is not None and driver.f_code.co_filename == __file__:
            driver = driver.f_back
        self._driver = driver
        self._shadow(callback_list)
        return vars(callback_list).get(_BEGUN) or self._clock()

    @property
    def callbacks(self) -> list[Any]:
        """What the callback list holds; nothing where no list was found."""
        return list(self._list.callbacks) if self._list is not None else []

    @property
    def driver(self) -> FrameType | None:
        """The call, of `fit` in most cases, that drives the callback list; `None` where no list was found."""
        return self._driver

    def take(self, name: str) -> float:
        """When boundary `name` was reached: the stamp if there is one, else now."""
        return self._stamps.pop(name, None) or self._clock()

    def driver_is_running(self) -> bool:
        """Whether the `fit` that called us is still on its thread's stack; `True` when it is not known."""
        if self._driver is None:
            return True
        frame = sys._current_frames().get(self._thread_id)
        while frame is not None:
            if frame is self._driver:
                return True
            frame = frame.f_back
        return False

    def detach(self) -> None:
        """Give the callback list its own methods back, and forget the frame."""
        for name, shadow in self._shadows.items():
            # Another watcher may have put its own on top.
            if vars(self._list).get(name) is shadow:
                delattr(self._list, name)
        self._shadows = {}
        self._list = self._driver = None

    def _shadow(self, callback_list: Any) -> None:
        self._list = callback_list
        for name in BOUNDARIES:
            if callable(getattr(callback_list, name, None)):
                self._shadows[name] = self._stamping(name, getattr(callback_list, name))
                setattr(callback_list, name, self._shadows[name])

    def _stamping(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        stamps, clock = self._stamps, self._clock

        @functools.wraps(method)
        def stamped(*args: Any, **kwargs: Any) -> Any:
            stamps[name] = clock()
            return method(*args, **kwargs)

        return stamped


def note_train_begin(callback: Any, clock: Clock = monotonic) -> None:
    """Have the callback list that is taking `callback` in note when its own `on_train_begin` is called.

    When `callback`'s hook is called, those before it in the list have had their turn already.

    Args:
        callback: The callback whose `set_model` is running.
        clock: The monotonic clock.
    """
    frame = _frame_of_list(callback, "set_model")
    if frame is None:
        return
    callback_list = frame.f_locals["self"]
    method = callback_list.on_train_begin

    @functools.wraps(method)
    def stamped(*args: Any, **kwargs: Any) -> Any:
        setattr(callback_list, _BEGUN, clock())
        return method(*args, **kwargs)

    callback_list.on_train_begin = stamped


def _frame_of_list(callback: Any, method: str) -> FrameType | None:
    """The running call of `method` on the list that holds `callback`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == method and _holds(frame.f_locals.get("self"), callback):
            return frame
        frame = frame.f_back
    return None


def _holds(owner: Any, callback: Any) -> bool:
    callbacks = getattr(owner, "callbacks", None)
    return isinstance(callbacks, list) and any(item is callback for item in callbacks)
