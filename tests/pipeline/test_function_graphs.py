# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_gpu_watch.findings import Stage
from keras_gpu_watch.pipeline import function_graphs
from keras_gpu_watch.pipeline.dataset_objects import read_stages

D = tf.data.Dataset
MapFunction = Callable[[tf.Tensor], Any]


def python(element: np.ndarray) -> np.ndarray:
    return element


def numbers() -> Iterator[int]:
    yield 1


def by_numpy(element: tf.Tensor) -> tf.Tensor:
    return tf.numpy_function(python, [element], tf.int64)


def by_numpy_without_state(element: tf.Tensor) -> tf.Tensor:
    return tf.numpy_function(python, [element], tf.int64, stateful=False)


def by_python(element: tf.Tensor) -> tf.Tensor:
    return tf.py_function(python, [element], tf.int64)


@tf.function
def inside_a_function(element: tf.Tensor) -> tf.Tensor:
    return by_numpy(element)


def inside_a_branch(element: tf.Tensor) -> tf.Tensor:
    return tf.cond(element > 1, lambda: inside_a_function(element), lambda: element)


def inside_a_loop(element: tf.Tensor) -> tf.Tensor:
    body = lambda value: (tf.ensure_shape(by_python(value), []),)  # noqa: E731
    return tf.while_loop(lambda value: value < 3, body, [element])


def inside_an_inner_dataset(element: tf.Tensor) -> tf.Tensor:
    return D.range(element).map(by_python).reduce(np.int64(0), lambda state, _: state)


def pure(element: tf.Tensor) -> tf.Tensor:
    return tf.cond(element > 1, lambda: element * 2, lambda: tf.identity(element))


def checked(element: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_greater(element, element - 1)]):
        return tf.identity(element)


def stateless_random(element: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform([], seed=[element, 1])


def clock(element: tf.Tensor) -> tf.Tensor:
    return tf.cast(element, tf.float64) + tf.timestamp()


def flipped(element: tf.Tensor) -> tf.Tensor:
    return tf.image.random_flip_left_right(tf.fill([2, 2, 1], element))


def reading_a_variable() -> MapFunction:
    variable = tf.Variable(tf.zeros([3], tf.int64))
    return lambda element: element + variable[0] + tf.gather(variable, element)


def writing_a_variable() -> MapFunction:
    variable = tf.Variable(0, dtype=tf.int64)
    return lambda element: variable.assign_add(element)


def looking_up() -> MapFunction:
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.range(3, dtype=tf.int64), tf.range(3)), default_value=0
    )
    return table.lookup


def drawing_from_a_generator() -> MapFunction:
    generator = tf.random.Generator.from_seed(1)
    return lambda element: element + generator.uniform([], maxval=3, dtype=tf.int64)


def augmenting() -> MapFunction:
    layer = keras.Sequential([keras.layers.RandomFlip(), keras.layers.RandomRotation(0.1)])
    return lambda element: layer(tf.fill([1, 4, 4, 3], tf.cast(element, tf.float32)), training=True)


def normalizing() -> MapFunction:
    layer = keras.layers.Normalization(mean=[1.0] * 4, variance=[2.0] * 4)
    return lambda element: layer(tf.fill([1, 4], tf.cast(element, tf.float32)))


def traits(stage: Stage) -> tuple[str | None, bool | None, bool | None]:
    return stage.python, stage.is_stateful, stage.is_random


def mapped(function: MapFunction) -> Stage:
    return read_stages(D.range(3).map(function)).stages[-1]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (pure, (None, False, False)),
        (checked, (None, False, False)),
        (stateless_random, (None, False, False)),
        (clock, (None, True, False)),
        (flipped, (None, True, True)),
        (by_numpy, ("numpy_function", True, None)),
        (by_numpy_without_state, ("numpy_function", False, False)),
        (by_python, ("py_function", True, None)),
        (inside_a_branch, ("numpy_function", True, None)),
        (inside_a_loop, ("py_function", True, None)),
        (inside_an_inner_dataset, ("py_function", True, None)),
        (lambda element: flipped(tf.cast(by_numpy(element), tf.int64)), ("numpy_function", True, True)),
    ],
)
def test_what_a_function_does_is_seen_in_its_graph(
    function: MapFunction, expected: tuple[str | None, bool | None, bool | None]
) -> None:
    assert traits(mapped(function)) == expected


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (reading_a_variable, (None, False, False)),
        (writing_a_variable, (None, True, False)),
        (looking_up, (None, False, False)),
        (drawing_from_a_generator, (None, True, True)),
        (augmenting, (None, True, True)),
        (normalizing, (None, False, False)),
    ],
)
def test_state_is_what_a_function_changes_not_what_it_reads(
    make: Callable[[], MapFunction], expected: tuple[str | None, bool | None, bool | None]
) -> None:
    assert traits(mapped(make())) == expected


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (lambda element: tf.data.TFRecordDataset("no file"), (None, False, False)),
        (lambda element: D.from_tensors(element).map(by_python), ("py_function", True, None)),
        (lambda element: D.from_tensors(element).repeat(3).shuffle(3), (None, True, True)),
        (
            lambda element: D.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64)),
            ("from_generator", True, None),
        ),
    ],
)
def test_datasets_that_an_interleave_opens_are_looked_into(
    inner: MapFunction, expected: tuple[str | None, bool | None, bool | None]
) -> None:
    assert traits(read_stages(D.range(3).interleave(inner)).stages[-1]) == expected


def test_every_function_of_a_stage_counts() -> None:
    dataset = D.range(9).group_by_window(lambda element: element, lambda _, group: group.map(by_python), window_size=2)

    assert traits(read_stages(dataset).stages[-1]) == ("py_function", True, None)


def test_a_stage_without_a_function_has_nothing_to_tell() -> None:
    assert traits(read_stages(D.range(3).shuffle(2)).stages[-1]) == (None, None, None)


def test_a_generator_is_python_with_state() -> None:
    dataset = D.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64))

    assert traits(read_stages(dataset).stages[-1]) == ("from_generator", True, None)


def test_a_graph_too_large_to_look_at_is_not_called_pure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_graphs, "_MAX_OPERATIONS", 5)

    assert traits(mapped(lambda element: element + 1 + 2 + 3)) == (None, None, None)
