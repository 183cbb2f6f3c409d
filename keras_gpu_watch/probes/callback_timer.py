# SPDX-License-Identifier: Apache-2.0
"""What each of the other callbacks' hooks take, without a trace on the callbacks once the run is over."""

from __future__ import annotations

import functools
import math
import operator
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

from keras_gpu_watch.clock import Clock, monotonic
from keras_gpu_watch.findings import CallbackSeconds

HOOKS = {
    "step_seconds": ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end"),
    "epoch_seconds": ("on_epoch_begin", "on_epoch_end"),
    "validation_seconds": ("on_test_begin", "on_test_end", "on_test_batch_begin", "on_test_batch_end"),
}
"""The hooks that are timed, by the field of `CallbackSeconds` that they count for."""
_NO_OWN = object()
"""Stands for the attribute of an instance that has none: its hook is its class's method."""
_KERAS = ("keras.", "tf_keras.")
_OF_METHODS = ("__self__", "__func__", "__code__", "__defaults__", "__kwdefaults__")


class CallbackTimer:
    """Times hooks by standing in for them on each callback's instance.

    A hook that runs within another one (`on_batch_end` within `on_train_batch_end`, an evaluation that some callback
    starts) belongs to the outer one. Hooks that a callback does not override are left alone.

    Args:
        clock: The monotonic clock.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self._stopwatch = _Stopwatch(clock)
        self._hooks: dict[str, list[_TimedHook]] = {}

    def attach(self, callbacks: Iterable[Any], own: Any) -> None:
        """Time these callbacks, until `detach`.

        Args:
            callbacks: What Keras's list of callbacks holds.
            own: The callback that is not timed.
        """
        used: Counter[str] = Counter()
        # The same instance may be listed twice.
        for callback in {id(callback): callback for callback in callbacks if callback is not own}.values():
            kind = type(callback).__name__
            used[kind] += 1
            name = kind if used[kind] == 1 else f"{kind} {used[kind]}"
            self._hooks[name] = []
            for part, hooks in HOOKS.items():
                self._stand_in(callback, hooks, part, self._hooks[name])

    def take_epoch(self, end_seconds: float = math.inf) -> tuple[CallbackSeconds, ...]:
        """What the hooks took since the last time this was asked.

        Args:
            end_seconds: When the epoch ended. An `on_epoch_begin` of other callbacks that was called since belongs to
                the next one, whatever their order.

        Returns:
            The callbacks whose hooks took any time, the slowest first.
        """
        found = [(sum(seconds.values()), name, seconds) for name, seconds in self._take_seconds(end_seconds).items()]
        found.sort(key=operator.itemgetter(0), reverse=True)
        return tuple(CallbackSeconds(name=name, **seconds) for total, name, seconds in found if total > 0)

    def detach(self) -> None:
        """Give the callbacks their own hooks back, and let go of them."""
        for hooks in self._hooks.values():
            for hook in hooks:
                hook.step_aside()
        self._hooks = {}

    def _take_seconds(self, end_seconds: float) -> dict[str, dict[str, float]]:
        taken = {name: dict.fromkeys(HOOKS, 0.0) for name in self._hooks}
        with self._stopwatch.lock:
            for name, hooks in self._hooks.items():
                for hook in hooks:
                    taken[name][hook.part] += hook.take_seconds(end_seconds)
        return taken

    def _stand_in(self, callback: Any, names: Iterable[str], part: str, hooks: list[_TimedHook]) -> None:
        for name in names:
            if _is_overridden(callback, name):
                hook = _TimedHook(callback, name, part, self._stopwatch)
                # Noted at once: if a later one fails, this one can still be given back.
                if hook.take_over():
                    hooks.append(hook)


def _is_overridden(callback: Any, name: str) -> bool:
    """Whether a callback has such a hook, and it is not the one of Keras's base class, which does nothing."""
    method = getattr(callback, name, None)
    bases = [kind for kind in type(callback).__mro__ if kind.__module__.startswith(_KERAS) and name in vars(kind)]
    return callable(method) and not (bases and getattr(method, "__func__", None) is vars(bases[-1])[name])


class _Stopwatch:
    """What the hooks of one timer share."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self.thread = _Thread()


class _Thread(threading.local):
    is_inside_a_hook = False


class _TimedHook:
    """One hook of one callback, timed; in all that can be asked of it, it is the hook itself.

    A function would not do: the callback could no longer be pickled while it is in place.
    """

    def __init__(self, callback: Any, name: str, part: str, stopwatch: _Stopwatch) -> None:
        method = getattr(callback, name)
        functools.update_wrapper(self, method)
        # Copied: a `__getattr__` would make each look at an attribute below three times as slow.
        vars(self).update({each: getattr(method, each) for each in _OF_METHODS if hasattr(method, each)})
        self.part = part
        """Field of `CallbackSeconds`."""
        self._seconds = self._newest_seconds = 0.0
        self._newest_begin = -math.inf
        self._callback = callback
        self._name = name
        self._method = method
        self._stopwatch = stopwatch
        self._own = getattr(callback, "__dict__", {}).get(name, _NO_OWN)
        self._is_closed = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        stopwatch = self._stopwatch
        thread = stopwatch.thread
        if thread.is_inside_a_hook or self._is_closed:
            return self._method(*args, **kwargs)
        thread.is_inside_a_hook = True
        begin = stopwatch.clock()
        try:
            return self._method(*args, **kwargs)
        finally:
            with stopwatch.lock:
                self._newest_begin, self._newest_seconds = begin, stopwatch.clock() - begin
                self._seconds += self._newest_seconds
            thread.is_inside_a_hook = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies of the callback are not timed; they get what they would have had without us.
        if self._own is _NO_OWN:
            return getattr, (self._callback, self._name)
        return operator.itemgetter(0), ((self._own,),)

    def take_over(self) -> bool:
        """Stand in for the hook; whether the callback can take that."""
        try:
            # Not `setattr`, which the callback's class may have defined for purposes of its own.
            vars(self._callback)[self._name] = self
        except TypeError:
            # It has `__slots__`.
            return False
        return True

    def step_aside(self) -> None:
        """Give the callback its own hook back, unless somebody else has replaced this one."""
        self._is_closed = True
        attributes = vars(self._callback)
        if attributes.get(self._name) is not self:
            return
        own = self._own
        # Another timer that stood below has stepped aside before.
        while isinstance(own, _TimedHook) and own._is_closed:
            own = own._own
        if own is _NO_OWN:
            del attributes[self._name]
        else:
            attributes[self._name] = own

    def take_seconds(self, end_seconds: float) -> float:
        """Time since this was last asked, without a newest call that began after `end_seconds`; under the lock."""
        kept = self._newest_seconds if self._newest_begin >= end_seconds else 0.0
        seconds, self._seconds = self._seconds - kept, kept
        return seconds
