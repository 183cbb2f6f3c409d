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
