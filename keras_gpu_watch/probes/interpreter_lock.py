# SPDX-License-Identifier: Apache-2.0
"""How often Python code of other threads holds the interpreter lock, seen by a thread that has to wait anyway."""

from __future__ import annotations

import math
import random
import sys
import threading
from collections.abc import Callable

from keras_gpu_watch.clock import Clock, monotonic

NO_LOCK = "this Python runs without an interpreter lock"
NOT_COUNTED = "this system does not count how often a thread waits"
LONGEST_PAUSE_SECONDS = 0.1
SHORTEST_PAUSE_SECONDS = 1e-3
"""A shorter pause may be over before the thread has been put to sleep."""


class InterpreterLock:
    """Looks at the lock whenever a pause of one thread ends.

    A thread that wakes up needs the lock. If another one holds it, the thread is put to sleep a second time, and Linux
    counts that. Being late would be no sign: on a busy machine a thread is late with the lock free, and work that holds
    it for a millisecond at a time makes nobody late by much.

    Args:
        clock: The monotonic clock.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._looks = self._held = 0
        # Not the user's generator, whose sequence must not change.
        self._random = random.Random(0)
        self._sleeps = _sleep_counter()
        self._reason = NOT_COUNTED if self._sleeps is None else None
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            self._reason = NO_LOCK

    def wait(self, event: threading.Event, seconds: float) -> None:
        """Wait for `event`, and look at the lock now and then.

        Args:
            event: Ends the wait.
            seconds: Longest duration of the wait.
        """
        end_seconds = self._clock() + seconds
        while not event.is_set() and (left_seconds := end_seconds - self._clock()) > 0:
            # Of uneven length, or they would keep step with a training that has the same pace.
            pause_seconds = min(LONGEST_PAUSE_SECONDS * self._random.uniform(0.5, 1.0), left_seconds)
            self._pause(event, pause_seconds)

    def take_percent(self) -> float:
        """Share of the looks since the last time this was asked at which the lock was held.

        Returns:
            0..100; NaN without a look.

        Raises:
            RuntimeError: If it can't be told on this system.
        """
        if self._reason is not None:
            raise RuntimeError(self._reason)
        held, looks = self._held, self._looks
        self._held = self._looks = 0
        return 100.0 * held / looks if looks else math.nan

    def _pause(self, event: threading.Event, seconds: float) -> None:
        if self._sleeps is None or seconds < SHORTEST_PAUSE_SECONDS:
            event.wait(seconds)
            return
        before = self._sleeps()
        is_over = event.wait(seconds)
        sleeps = self._sleeps() - before
        if is_over:
            return
        if sleeps == 0:
            # Some sandboxes have the counter and never move it.
            self._reason = self._reason or NOT_COUNTED
        self._looks += 1
        self._held += sleeps > 1


def _sleep_counter() -> Callable[[], int] | None:
    """What counts how often the calling thread was put to sleep; `None` where nothing does."""
    try:
        from resource import RUSAGE_THREAD, getrusage
    except ImportError:
        return None
    return lambda: getrusage(RUSAGE_THREAD).ru_nvcsw
