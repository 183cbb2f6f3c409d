# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_gpu_watch.findings import Stage
from keras_gpu_watch.pipeline.dataset_objects import read_stages
from keras_gpu_watch.pipeline.user_functions import MAX_NAME_LENGTH, function_name, function_source, user_function

D = tf.data.Dataset
FILE = Path(__file__).name


def decode(element: Any, scale: int = 1) -> Any:
    return element * scale


@tf.function
def traced(element: Any) -> Any:
    return element


@tf.autograph.experimental.do_not_convert
def not_converted(element: Any) -> Any:
    return element


def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*arguments: Any) -> Any:
        return function(*arguments)

    return inner


@decorator
@decorator
def decorated(element: Any) -> Any:
    return element


def make_nested() -> Callable[..., Any]:
    def nested(element: Any) -> Any:
        return element

    return nested


class Augmenter:
    def __call__(self, element: Any) -> Any:
        return element

    def flip(self, element: Any) -> Any:
        return element

    @tf.function
    def rotate(self, element: Any) -> Any:
        return element

    @staticmethod
    def crop(element: Any) -> Any:
        return element


class Doubling(keras.layers.Layer):
    def call(self, element: Any) -> Any:
        return element * 2


def line_of(text: str) -> int:
    """The line of this file that starts with a text."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


def mapped(function: Callable[..., Any]) -> Stage:
    return read_stages(D.from_tensors(tf.ones([2, 2])).map(function)).stages[-1]


FUNCTIONS: dict[str, tuple[Callable[[], Callable[..., Any]], str, str]] = {
    "function": (lambda: decode, "decode", "def decode("),
    "partial": (lambda: functools.partial(functools.partial(decode, scale=1), scale=2), "decode", "def decode("),
    "tf.function": (lambda: traced, "traced", "@tf.function"),
    "not converted": (lambda: not_converted, "not_converted", "@tf.autograph.experimental.do_not_convert"),
    "converted": (lambda: tf.autograph.to_graph(decode), "decode", "def decode("),
    "decorated": (lambda: decorated, "decorated", "@decorator"),
    "nested": (make_nested, "nested", "def nested("),
    "method": (lambda: Augmenter().flip, "Augmenter.flip", "def flip("),
    "partial of a method": (lambda: functools.partial(Augmenter().flip), "Augmenter.flip", "def flip("),
    "static method": (lambda: Augmenter.crop, "Augmenter.crop", "@staticmethod"),
    "callable object": (Augmenter, "Augmenter", "def __call__("),
    "layer": (Doubling, "Doubling", "def call("),
    "concrete function": (
        lambda: tf.function(decode).get_concrete_function(tf.TensorSpec([2, 2])),
        "decode",
        "return element * scale",
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_called_and_placed_as_the_user_wrote_it(name: str) -> None:
    make, expected, line = FUNCTIONS[name]

    stage = mapped(make())

    assert (stage.function, stage.source) == (expected, f"{FILE}:{line_of(line)}")
    assert stage.added_by == "user"


def test_a_method_under_tf_function_is_found() -> None:
    augmenter = Augmenter()  # TensorFlow holds it weakly.

    assert mapped(augmenter.rotate).function == "Augmenter.rotate"


def test_a_lambda_has_its_line() -> None:
    stage = mapped(lambda element: element + 1)

    expected = line_of("stage = mapped(lambda element: element + 1)")
    assert (stage.function, stage.source) == ("lambda", f"{FILE}:{expected}")


def test_an_operation_of_tensorflow_that_the_user_picked_is_the_users_stage() -> None:
    stage = mapped(tf.math.square)

    assert (stage.function, stage.added_by) == ("square", "user")


def test_a_layer_of_keras_has_no_line_in_the_users_files() -> None:
    stage = mapped(keras.layers.Rescaling(2.0))

    assert (stage.function, stage.source, stage.added_by) == ("Rescaling", None, "user")


def test_a_built_in_function_has_a_name_and_no_line() -> None:
    stage = mapped(abs)

    assert (stage.function, stage.source) == ("abs", None)


@pytest.mark.parametrize("name", ["größe_📏", "<b>[red]&amp;", "a\nb\x1b[31m", "", "x" * 10_000])
def test_a_strange_name_is_kept_but_cut(name: str) -> None:
    def function(element: Any) -> Any:
        return element

    function.__qualname__ = name

    assert function_name(function) == name[:MAX_NAME_LENGTH]


def test_a_file_name_is_shown_without_its_folders_whatever_the_system() -> None:
    for path in ("/home/me/train.py", r"C:\Users\me\train.py", "train.py"):
        scope: dict[str, Any] = {}
        exec(compile("def f(x):\n    return x", path, "exec"), scope)

        assert function_source(scope["f"]) == "train.py:1"


def test_an_object_that_answers_to_every_attribute_is_shown_by_its_class() -> None:
    class Anything:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __call__(self, element: Any) -> Any:
            return element

    assert function_name(Anything()) == "Anything"
    assert str(function_source(Anything())).startswith(FILE)


def test_a_function_that_wraps_itself_does_not_keep_us() -> None:
    def endless() -> None:
        pass

    endless.__wrapped__ = endless  # type: ignore[attr-defined]

    assert function_name(endless) == "endless"


def test_a_generator_is_called_by_its_function() -> None:
    def batches() -> Iterator[int]:
        yield 1

    assert function_name(batches()) == "batches"
    assert function_source(batches()) == f"{FILE}:{line_of('def batches(')}"


def test_the_users_function_is_found_inside_a_librarys() -> None:
    dataset = D.range(9).group_by_window(decode, lambda _, elements: elements.batch(2), window_size=2)

    held = dataset._functions()[0]._func

    assert held is not decode
    assert user_function(held) is decode


def test_a_library_is_known_by_where_the_function_is_written_not_by_its_name() -> None:
    def make() -> Callable[..., Any]:
        def grab_batch(element: Any) -> Any:
            return element

        grab_batch.__module__ = "keras.src.trainers.data_adapters.array_data_adapter"
        return grab_batch

    summary = read_stages(D.range(3).map(make()))

    assert summary.input_kind == "tf.data"
    assert summary.stages[-1].added_by == "user"
    assert "keras" in sys.modules
