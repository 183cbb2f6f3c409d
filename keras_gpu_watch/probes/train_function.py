# SPDX-License-Identifier: Apache-2.0
"""Looks into a Keras train function: the tracings behind it, and the wrappers on top of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

TrainFunction = Callable[[Any], Any]
TIMER_ATTRIBUTE = "_keras_gpu_watch_timer"
"""Attribute of a wrapper: its timer."""


def trace_counter(function: TrainFunction) -> Callable[[], int]:
    """Counts the tracings of the `tf.function`s behind a train function.

    Keras keeps them in the closure of a plain function; a custom `make_train_function` may put a `tf.function` there
    itself. Where none is found (`run_eagerly`) the count stays 0.

    Args:
        function: `model.train_function`.
    """
    # Another timer's wrapper may stand between.
    parts = [part for layer in _layers(function) for part in (layer, *_cells(layer))]
    counters = [
        part.experimental_get_tracing_count for part in parts if hasattr(part, "experimental_get_tracing_count")
    ]
    if len(counters) == 1:
        return counters[0]  # type: ignore[no-any-return]
    return lambda: sum(count() for count in counters)


class TimedFunction:
    """Keeps the train function of one model timed, whoever replaces it in mid-training.

    Args:
        wrap: Makes the timed function of a train function; `StepTimer.wrap`.
    """

    def __init__(self, wrap: Callable[[TrainFunction], TrainFunction]) -> None:
        self._wrap = wrap
        self._own: Any = None
        self._timed: Any = None

    def is_in_place(self, model: Any) -> bool:
        """Whether the model's train function is the one that was put there."""
        return model.train_function is self._timed

    def put(self, model: Any) -> None:
        """Time the model's train function, if it has one and it is not timed already."""
        function = model.train_function
        # There is none after `compile()` in mid-training, and another one after `make_train_function(force=True)`.
        if not callable(function) or (self._timed is not None and is_wrapped_by(function, self._timed)):
            return
        self._own = function
        self._timed = model.train_function = self._wrap(function)

    def take_off(self, model: Any) -> None:
        """Give the model its own function back, unless somebody else has replaced ours."""
        if self._timed is not None and self.is_in_place(model):
            model.train_function = without_closed_wrappers(self._own)
        self._own = self._timed = None


def is_wrapped_by(function: TrainFunction, wrapper: TrainFunction) -> bool:
    """Whether `wrapper` is `function` or stands somewhere below it."""
    return any(layer is wrapper for layer in _layers(function))


def without_closed_wrappers(function: TrainFunction) -> TrainFunction:
    """The train function below the wrappers, on top of `function`, of timers that are closed."""
    while (timer := getattr(function, TIMER_ATTRIBUTE, None)) is not None and timer.closed:
        function = function.__wrapped__  # type: ignore[attr-defined]
    return function


def _layers(function: Any) -> Iterator[Any]:
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def _cells(function: Any) -> list[Any]:
    return [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_filled(cell)]


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
