# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import debug_mode

from keras_gpu_watch.knobs import END, Knob
from keras_gpu_watch.pipeline.dataset_objects import MAX_STAGES
from keras_gpu_watch.pipeline.tunable import read_tunable

Dataset = tf.data.Dataset


def numbers(count: int = 8) -> tf.data.Dataset:
    return Dataset.range(count)


def double(number: tf.Tensor) -> tf.Tensor:
    return number * 2


def in_python(number: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.numpy_function(lambda each: each, [number], tf.int64), number.shape)


def random(number: tf.Tensor) -> tf.Tensor:
    return number + tf.random.uniform([], maxval=9, dtype=tf.int64)


def files(number: tf.Tensor) -> tf.data.Dataset:
    return Dataset.from_tensors(number)


def knobs(dataset: Any, **options: Any) -> dict[int, Knob]:
    return {knob.index: knob for knob in read_tunable(dataset, **options).knobs}


def reasons(dataset: Any, **options: Any) -> dict[int, str]:
    return {stage.index: stage.reason for stage in read_tunable(dataset, **options).fixed}


def test_knobs_have_what_was_written() -> None:
    interleaved = numbers().interleave(files, cycle_length=4, num_parallel_calls=2)
    dataset = interleaved.map(double, num_parallel_calls=-1).batch(2).prefetch(-1).map(double).prefetch(3)
    found = [(knob.index, knob.label, knob.kind, knob.written, knob.limit) for knob in knobs(dataset).values()]
    assert found == [
        (1, "interleave(files)", "parallel_calls", 2, 4),
        (2, "map(double)", "parallel_calls", -1, None),
        (3, "batch", "parallel_calls", None, None),
        (4, "prefetch", "buffer_size", -1, None),
        (5, "map(double)", "parallel_calls", None, None),
        (6, "prefetch", "buffer_size", 3, None),
    ]


def test_a_prefetch_can_be_added_where_the_last_stage_is_none() -> None:
    assert END not in knobs(numbers().prefetch(1))
    assert END not in knobs(numbers().prefetch(1).with_options(tf.data.Options()))
    assert knobs(numbers().prefetch(1).batch(2))[END] == Knob(
        index=END, label="prefetch", kind="buffer_size", element_bytes=16.0
    )


def no_automatics(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def test_no_prefetch_is_added_where_training_and_pipeline_took_turns_and_may_share_a_state() -> None:
    assert END not in knobs(no_automatics(numbers().map(in_python).batch(2)))
    assert END in knobs(no_automatics(numbers().map(double).batch(2)))
    assert END in knobs(no_automatics(numbers().map(in_python).batch(2, num_parallel_calls=1)))
    assert END in knobs(numbers().map(in_python).batch(2))


def test_the_threadpool_is_read_from_the_options() -> None:
    options = tf.data.Options()
    options.threading.private_threadpool_size = 3
    assert read_tunable(numbers().with_options(options)).private_threadpool_size == 3
    assert read_tunable(numbers()).private_threadpool_size is None
    assert read_tunable(numbers()).threadpool_is_tunable


OTHER: tf.data.Dataset = numbers(3).shuffle(3)


def printed(number: tf.Tensor) -> tf.Tensor:
    tf.print(number)
    return number


FIXED: dict[str, tuple[Callable[[], tf.data.Dataset], int, str]] = {
    "random": (lambda: numbers().map(random), 1, "random numbers"),
    "random in parallel": (lambda: numbers().map(random, num_parallel_calls=2), 1, "random numbers"),
    "Python": (lambda: numbers().map(in_python), 1, "parallel_python"),
    "a side effect": (lambda: numbers().map(lambda number: printed(number)), 1, "keeps a state"),
    "one call was asked for": (lambda: numbers().map(double, synchronous=True), 1, "synchronous=True"),
    "a cycle of automatic length": (lambda: numbers().interleave(files), 1, "cycle_length"),
    "files of another dataset": (lambda: numbers().interleave(lambda _: OTHER, cycle_length=2), 1, "keeps a state"),
    "before a cache": (lambda: numbers().map(double).cache().batch(2), 1, "a cache"),
    "before a file cache": (lambda: numbers().map(double, num_parallel_calls=2).cache("f").batch(2), 1, "a cache"),
    "prefetch before a cache": (lambda: numbers().prefetch(2).cache(), 1, "a cache"),
    "before an unknown stage": (
        lambda: numbers().map(double).apply(tf.data.experimental.dense_to_ragged_batch(2)).sparse_batch(2, [2]),
        1,
        "`sparse_batch`",
    ),
    "readers": (lambda: tf.data.TFRecordDataset(["f"], num_parallel_reads=2), 0, "readers"),
    "errors": (lambda: numbers().batch(2).ignore_errors(), 1, "ignore_errors"),
    "cut": (lambda: numbers().map(in_python).prefetch(2).take(3), 2, "`take` stops"),
    "cut by a shorter one": (
        lambda: Dataset.zip((numbers().map(in_python).batch(2), numbers(3))),
        2,
        "`zip` stops",
    ),
    "cut by a condition": (
        lambda: numbers().map(in_python).batch(2).take_while(lambda batch: batch[0] < 3),
        2,
        "`take_while` stops",
    ),
    "a shared state": (
        lambda: numbers().map(in_python).batch(2).map(in_python),
        2,
        "`map(in_python)` would run ahead of `map(in_python)`",
    ),
    "no buffer at all": (lambda: numbers().map(in_python).prefetch(0).map(in_python), 2, "share a state"),
}


@pytest.mark.parametrize("name", FIXED)
def test_a_stage_is_fixed_for_a_reason(name: str) -> None:
    build, index, reason = FIXED[name]
    dataset = build()
    assert reason in reasons(dataset)[index]
    assert index not in knobs(dataset)


FREE: dict[str, tuple[Callable[[], tf.data.Dataset], int]] = {
    "Python in parallel": (lambda: numbers().map(in_python, num_parallel_calls=2), 1),
    "after a cache": (lambda: numbers().map(in_python).cache().map(double), 3),
    "all is taken": (lambda: numbers().map(in_python).prefetch(2).take(8), 2),
    "all is taken, whatever there is": (lambda: numbers().map(in_python).prefetch(2).take(-1), 2),
    "equal lengths": (lambda: Dataset.zip((numbers().map(in_python).batch(2), numbers(4))), 2),
    "sampled to the end": (
        lambda: Dataset.sample_from_datasets([numbers().map(in_python).batch(2), numbers().batch(2)]),
        2,
    ),
    "a shuffle that starts once": (lambda: numbers().shuffle(8).batch(2).take(3), 2),
    "states that have nothing in common": (
        lambda: generated().map(double).map(keras.layers.RandomFlip(seed=1)),
        1,
    ),
    "below its own state": (lambda: numbers().batch(2).map(in_python), 1),
    "a prefetch between states": (lambda: numbers().map(in_python).prefetch(1).map(in_python), 2),
}


def generated() -> tf.data.Dataset:
    return Dataset.from_generator(lambda: iter([]), output_signature=tf.TensorSpec([2, 2, 3], tf.float32))


@pytest.mark.parametrize("name", FREE)
def test_a_stage_is_free_where_nothing_depends_on_it(name: str) -> None:
    build, index = FREE[name]
    assert index in knobs(build())


def test_python_functions_are_free_by_their_users_word() -> None:
    dataset = numbers().map(in_python).batch(2).map(in_python).prefetch(1)
    assert list(knobs(dataset)) == [4]
    assert list(knobs(dataset, parallel_python=True)) == [1, 2, 3, 4]
    assert knobs(dataset, parallel_python=True)[1].python == "numpy_function"


def python_and_random(number: tf.Tensor) -> tf.Tensor:
    return random(in_python(number))


def python_and_printing(number: tf.Tensor) -> tf.Tensor:
    return printed(in_python(number))


@pytest.mark.parametrize("function", [python_and_random, python_and_printing, random])
def test_no_word_frees_a_function_with_another_state(function: Callable[[tf.Tensor], tf.Tensor]) -> None:
    assert 1 not in knobs(numbers().map(function), parallel_python=True)


def test_a_dataset_that_is_used_twice_has_one_knob() -> None:
    once = numbers().map(double)
    dataset = Dataset.zip((once, once.batch(1)))
    assert 1 in knobs(dataset)
    assert "the same dataset" in reasons(dataset)[3]
    assert 1 in reasons(Dataset.zip((once, once.cache())))


def test_nothing_is_tunable_in_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = numbers().map(double).prefetch(1)
    monkeypatch.setattr(debug_mode, "DEBUG_MODE", True)
    tunable = read_tunable(dataset)
    assert tunable.knobs == ()
    assert not tunable.threadpool_is_tunable
    assert {stage.index: stage.reason for stage in tunable.fixed} == dict.fromkeys([1, 2], "tf.data's debug mode is on")


def test_a_pipeline_without_end_is_left_alone() -> None:
    dataset = numbers().map(double)
    for _ in range(MAX_STAGES.bit_length()):
        dataset = dataset.concatenate(dataset)
    tunable = read_tunable(dataset)
    assert tunable.knobs == ()
    assert all("more than" in stage.reason for stage in tunable.fixed)


SIZES: dict[str, tuple[Callable[[], tf.data.Dataset], float | None]] = {
    "known": (lambda: Dataset.from_tensors({"a": np.zeros((3, 4), np.float32), "b": np.int64(1)}), 56),
    "batches with a rest": (lambda: numbers().batch(4), 32),
    "batches without": (lambda: numbers().batch(4, drop_remainder=True), 32),
    "mapped batches": (lambda: numbers().batch(4).map(lambda batch: tf.cast(batch, tf.int16)).shuffle(2), 8),
    "padded batches of a known width": (lambda: numbers().batch(3).padded_batch(4, [3]), 96),
    "unknown dimensions": (lambda: numbers().map(lambda number: tf.range(number)), None),
    "no longer batches": (lambda: numbers().batch(4).map(lambda batch: tf.range(batch[0])).unbatch(), 8),
    "rows of unknown width": (lambda: numbers().map(tf.range).padded_batch(4), None),
    "strings": (lambda: Dataset.from_tensors("text"), None),
    "ragged": (lambda: Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])).batch(2), None),
    "windows": (lambda: numbers().window(2), None),
    "nothing": (lambda: Dataset.from_tensors((np.int64(1), None)), None),
}


@pytest.mark.parametrize("name", SIZES)
def test_an_elements_size_is_known_from_its_shape(name: str) -> None:
    build, size = SIZES[name]
    assert knobs(build())[END].element_bytes == size


def program(batch: int = 4, calls: int | None = 2, width: int = 3, name: str = "a") -> tf.data.Dataset:
    def parse(number: tf.Tensor) -> dict[str, tf.Tensor]:
        return {name: tf.fill([width], number)}

    return (
        numbers().shuffle(batch).map(parse, num_parallel_calls=calls).batch(batch, drop_remainder=True).prefetch(batch)
    )


def test_the_shape_stays_whatever_the_settings_are() -> None:
    shape = read_tunable(program()).shape
    assert read_tunable(program(batch=8, calls=5)).shape == shape
    assert read_tunable(program().with_options(tf.data.Options())).shape == shape


def test_the_shape_does_not_depend_on_where_files_lie(tmp_path: Path) -> None:
    shapes = {read_tunable(numbers().snapshot(str(tmp_path / folder)).batch(2)).shape for folder in "ab"}
    assert len(shapes) == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda: program(width=4),
        lambda: program(name="b"),
        lambda: program().prefetch(1),
        lambda: program().take(1),
        lambda: numbers().shuffle(4).map(lambda number: {"a": tf.fill([3], number)}).batch(4).prefetch(4),
    ],
    ids=["another width", "another name", "one more stage", "another stage", "another function"],
)
def test_another_program_has_another_shape(other: Callable[[], tf.data.Dataset]) -> None:
    assert read_tunable(other()).shape != read_tunable(program()).shape


def test_reading_what_is_tunable_changes_no_order() -> None:
    orders = []
    for is_read in (False, True):
        tf.random.set_seed(3)
        dataset = numbers(20).map(double).shuffle(20).batch(2).take(8)
        for _ in range(3):
            if is_read:
                read_tunable(dataset)
            orders.append([batch.numpy().tolist() for batch in dataset])
    assert orders[:3] == orders[3:]
