# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from trainings import tiny_model

from keras_gpu_watch.guard import Guard
from keras_gpu_watch.probes.step_timer import StepTimer
from keras_gpu_watch.probes.train_function import is_wrapped_by, trace_counter, without_closed_wrappers


def make_timer() -> StepTimer:
    return StepTimer(Guard(print), lambda iterator, batches: None, lambda chunk: None, print)


def test_tracings_are_counted_in_what_keras_makes() -> None:
    model = tiny_model()
    model.make_train_function()
    function = model.train_function
    count = trace_counter(function)
    assert count() == 0
    values = np.zeros((8, 1), np.float32)
    iterator = iter(tf.data.Dataset.from_tensor_slices((values, values)).batch(4))
    function(iterator)
    assert count() >= 1
    before = count()
    function(iterator)
    assert count() == before


def test_without_a_traced_function_the_count_stays_zero() -> None:
    model = tiny_model(run_eagerly=True)
    model.make_train_function()
    values = np.zeros((8, 1), np.float32)
    model.train_function(iter(tf.data.Dataset.from_tensor_slices((values, values)).batch(4)))
    assert trace_counter(model.train_function)() == 0


def test_a_function_without_a_closure_or_with_an_empty_cell_is_counted_as_zero() -> None:
    def outer() -> Any:
        def inner(iterator: Any) -> Any:
            return later

        if trace_counter(inner)() == 0:
            later = 1
        return later

    assert outer() == 1
    assert trace_counter(len)() == 0


def test_wrappers_are_told_apart_and_closed_ones_taken_off() -> None:
    first, second = make_timer(), make_timer()

    def own(iterator: Any) -> Any:
        return {}

    below = first.wrap(own)
    above = second.wrap(below)
    assert is_wrapped_by(above, below)
    assert not is_wrapped_by(below, above)
    first.close()
    assert without_closed_wrappers(above) is above
    assert without_closed_wrappers(below) is own
    second.close()
    assert without_closed_wrappers(above) is own
