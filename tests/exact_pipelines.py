# SPDX-License-Identifier: Apache-2.0
"""Kinds of input pipelines, tiny, whose elements must not change when their knobs are turned.

A kind is built in a folder of its own, from seeds that were set before. What it keeps from one epoch to the next is
part of it: a counter in Python, a variable that its user changes, the seeds of its shuffles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

AUTOTUNE = tf.data.AUTOTUNE
Dataset = tf.data.Dataset


class Kind:
    """One kind of pipeline: how it is built, and what its user does between two epochs."""

    def __init__(self, build: Callable[[Path], Any]) -> None:
        self.build = build

    def __call__(self, folder: Path) -> tuple[tf.data.Dataset, Callable[[], None]]:
        folder.mkdir(parents=True)
        keras.utils.set_random_seed(7)
        built = self.build(folder)
        return built if isinstance(built, tuple) else (built, lambda: None)


KINDS: dict[str, Kind] = {}


def kind(build: Callable[..., Any]) -> Callable[..., Any]:
    KINDS[build.__name__.replace("_", " ")] = Kind(build)
    return build


def plain(element: Any) -> Any:
    """An element as something that compares, types and all."""
    if isinstance(element, tf.RaggedTensor):
        return ("ragged", element.to_list())
    if isinstance(element, tf.SparseTensor):
        return ("sparse", tf.sparse.to_dense(element).numpy().tolist())
    if isinstance(element, dict):
        return {key: plain(value) for key, value in element.items()}
    if isinstance(element, tuple | list):
        return tuple(plain(value) for value in element)
    return (element.dtype.name, element.numpy().tolist())


def numbers(count: int = 24) -> tf.data.Dataset:
    return Dataset.range(count)


def double(number: tf.Tensor) -> tf.Tensor:
    return number * 2


def is_even(number: tf.Tensor) -> tf.Tensor:
    return number % 2 == 0


def counting() -> Callable[[np.ndarray], np.ndarray]:
    """Adds how often it was called before: the order of its calls shows."""
    calls = iter(range(10**9))

    def add(number: np.ndarray) -> np.ndarray:
        return np.asarray(number) + 1000 * np.int64(next(calls))

    return add


def in_numpy(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[tf.Tensor], tf.Tensor]:
    def call(number: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(function, [number], tf.int64), number.shape)

    return call


def noisy(number: np.ndarray) -> np.ndarray:
    """Draws from the one generator that all Python code shares."""
    return np.asarray(number) + 1000 * np.random.randint(0, 1000, np.shape(number))


def _apart(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Keeps TensorFlow from making one stage of a map and a batch, which would read ahead by itself."""
    options = tf.data.Options()
    options.experimental_optimization.map_and_batch_fusion = False
    return dataset.with_options(options)


@kind
def seeded_shuffle(folder: Path) -> tf.data.Dataset:
    return numbers().map(double, num_parallel_calls=2).shuffle(24, seed=3).map(double).batch(4).prefetch(1)


@kind
def shuffle_by_the_global_seed(folder: Path) -> tf.data.Dataset:
    return numbers().map(double).shuffle(10).batch(4, num_parallel_calls=2)


@kind
def same_order_each_epoch(folder: Path) -> tf.data.Dataset:
    return numbers().map(double).shuffle(24, seed=3, reshuffle_each_iteration=False).map(double).batch(4)


@kind
def two_shuffles(folder: Path) -> tf.data.Dataset:
    return numbers().map(double).shuffle(7, seed=1).map(double, num_parallel_calls=3).shuffle(9).batch(4).prefetch(2)


@kind
def memory_cache(folder: Path) -> tf.data.Dataset:
    once = numbers().map(in_numpy(counting())).cache()
    return once.shuffle(24, seed=1).map(double).batch(4).prefetch(AUTOTUNE)


@kind
def file_cache(folder: Path) -> tf.data.Dataset:
    once = numbers().map(in_numpy(counting())).cache(str(folder / "cache"))
    return once.map(double, num_parallel_calls=2).shuffle(24, seed=1).batch(4)


@kind
def snapshot(folder: Path) -> tf.data.Dataset:
    return (
        numbers().map(double).snapshot(str(folder / "snapshot"), compression="").map(double).shuffle(9, seed=1).batch(4)
    )


def _uneven(number: tf.Tensor) -> tf.data.Dataset:
    return Dataset.range(number % 5).map(lambda inner: number * 100 + inner)


@kind
def interleave(folder: Path) -> tf.data.Dataset:
    return numbers().interleave(_uneven, cycle_length=4, block_length=2).map(double).batch(4)


@kind
def parallel_interleave(folder: Path) -> tf.data.Dataset:
    uneven = numbers().map(double).shuffle(24, seed=2).interleave(_uneven, cycle_length=3, num_parallel_calls=2)
    return uneven.shuffle(10, seed=4).batch(4).prefetch(1)


@kind
def interleave_of_automatic_length(folder: Path) -> tf.data.Dataset:
    return numbers().map(double).interleave(_uneven, num_parallel_calls=AUTOTUNE, deterministic=True).batch(4)


@kind
def interleave_of_another_dataset(folder: Path) -> tf.data.Dataset:
    inner = numbers(5).shuffle(5, seed=3)
    return Dataset.range(6).map(double).interleave(lambda _: inner, cycle_length=3).batch(4)


@kind
def flat_map(folder: Path) -> tf.data.Dataset:
    return numbers().map(double).flat_map(_uneven).shuffle(9, seed=1).map(double).batch(4)


@kind
def generator(folder: Path) -> tf.data.Dataset:
    add = counting()

    def generate() -> Iterator[np.ndarray]:
        yield from (add(np.asarray(number)) for number in range(24))

    source = Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int64))
    return source.map(double).shuffle(9, seed=1).batch(4)


@kind
def py_function(folder: Path) -> tf.data.Dataset:
    add = counting()

    def call(number: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.py_function(lambda inner: add(inner.numpy()), [number], tf.int64), [])

    return numbers().map(double).map(call).map(double).shuffle(9, seed=1).batch(4)


@kind
def numpy_function(folder: Path) -> tf.data.Dataset:
    return numbers().map(double).map(in_numpy(counting())).batch(4).map(double, num_parallel_calls=2)


@kind
def python_code_that_shares_its_random_numbers(folder: Path) -> tf.data.Dataset:
    return _apart(numbers().map(in_numpy(noisy))).batch(4).map(in_numpy(noisy)).prefetch(2)


@kind
def python_code_in_two_branches(folder: Path) -> tf.data.Dataset:
    branches = [_apart(numbers().map(in_numpy(noisy))).batch(4) for _ in range(2)]
    return Dataset.zip(tuple(branches))


@kind
def python_code_before_a_take(folder: Path) -> tf.data.Dataset:
    return _apart(numbers(60).map(in_numpy(counting()))).batch(4).take(5)


@kind
def repeated_shuffle_before_a_take(folder: Path) -> tf.data.Dataset:
    return _apart(numbers().shuffle(24, seed=3).repeat()).batch(4).take(6)


@kind
def shuffle_before_a_take(folder: Path) -> tf.data.Dataset:
    return numbers().shuffle(24, seed=3).map(double).batch(4).take(4)


@kind
def one_shuffle_in_two_branches(folder: Path) -> tf.data.Dataset:
    shuffled = numbers(8).map(double).shuffle(8, seed=3)
    return Dataset.zip((shuffled.repeat(3).batch(4), shuffled.repeat(3).batch(4)))


@kind
def lookup_table(folder: Path) -> tf.data.Dataset:
    initializer = tf.lookup.KeyValueTensorInitializer(np.arange(24), np.arange(24)[::-1].copy())
    table = tf.lookup.StaticHashTable(initializer, default_value=-1)
    return numbers().map(double).map(table.lookup).shuffle(9, seed=1).map(table.lookup).batch(4)


@kind
def variable_that_changes(folder: Path) -> tuple[tf.data.Dataset, Callable[[], None]]:
    variable = tf.Variable(1, dtype=tf.int64)
    dataset = numbers().map(lambda number: number * variable).shuffle(24, seed=1)
    return dataset.map(lambda number: number + variable).batch(4), lambda: variable.assign_add(1)


@kind
def variable_that_one_stage_writes_and_another_reads(folder: Path) -> tf.data.Dataset:
    variable = tf.Variable(0, dtype=tf.int64)

    def write(number: tf.Tensor) -> tf.Tensor:
        return number + variable.assign_add(1) * 100

    return numbers().map(lambda number: number + variable.read_value() * 10_000).map(write).batch(4)


def _images(count: int = 12) -> tf.data.Dataset:
    return Dataset.from_tensor_slices(np.arange(count * 27, dtype=np.float32).reshape(count, 3, 3, 3))


@kind
def keras_random_layer(folder: Path) -> tf.data.Dataset:
    flip = keras.layers.RandomFlip(seed=3)
    scale = keras.layers.Rescaling(0.5)
    images = _images().map(scale).shuffle(12, seed=1).map(lambda image: flip(image, training=True))
    return images.map(scale).batch(4)


@kind
def keras_random_layers_on_batches(folder: Path) -> tf.data.Dataset:
    layers = [keras.layers.RandomFlip(seed=3), keras.layers.RandomTranslation(0.4, 0.4, seed=4)]

    def augment(images: tf.Tensor) -> tf.Tensor:
        return functools.reduce(lambda images, layer: layer(images, training=True), layers, images)

    return _images().map(double).batch(4).map(augment).prefetch(2)


@kind
def random_numbers_with_a_seed(folder: Path) -> tf.data.Dataset:
    def add(number: tf.Tensor) -> tf.Tensor:
        return tf.cast(number, tf.float32) + tf.random.uniform([], seed=5)

    return numbers().map(double, num_parallel_calls=2).map(add).map(double).batch(4)


@kind
def random_generator(folder: Path) -> tf.data.Dataset:
    generator = tf.random.Generator.from_seed(3)

    def add(number: tf.Tensor) -> tf.Tensor:
        return tf.cast(number, tf.float32) + generator.uniform([])

    return numbers().map(double).map(add).batch(4).map(double)


@kind
def random_dataset(folder: Path) -> tf.data.Dataset:
    return Dataset.random(seed=3, rerandomize_each_iteration=True).take(24).map(double).batch(4)


@kind
def ragged_batches(folder: Path) -> tf.data.Dataset:
    rows = numbers().map(lambda number: tf.range(number % 5)).shuffle(9, seed=1)
    return rows.ragged_batch(4).map(double)


@kind
def ragged_slices(folder: Path) -> tf.data.Dataset:
    rows = Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3], [], [4, 5, 6], [7]]))
    return rows.shuffle(5, seed=1).batch(2).map(double).prefetch(1)


@kind
def sparse(folder: Path) -> tf.data.Dataset:
    rows = Dataset.from_tensor_slices(tf.sparse.from_dense(np.eye(8, dtype=np.float32)))
    return rows.map(lambda row: row * 2.0).shuffle(8, seed=1).batch(3)


@kind
def padded_batches(folder: Path) -> tf.data.Dataset:
    rows = numbers().map(lambda number: {"row": tf.range(number % 5), "number": number})
    values = {"row": np.int64(-1), "number": None}
    return rows.shuffle(9, seed=1).padded_batch(4, padding_values=values).map(lambda batch: batch)


@kind
def dictionaries(folder: Path) -> tf.data.Dataset:
    rows = Dataset.from_tensor_slices({"image": np.ones((24, 2)), "more": {"id": np.arange(24)}})
    return rows.batch(3).unbatch().map(lambda row: {**row, "double": row["more"]["id"] * 2}).shuffle(9, seed=1).batch(4)


@kind
def nested_zip(folder: Path) -> tf.data.Dataset:
    first, second = numbers().map(double), numbers(12).map(double).batch(1, num_parallel_calls=2)
    return Dataset.zip((first, (second, {"third": numbers(12)}))).shuffle(9, seed=1).batch(4)


@kind
def concatenate(folder: Path) -> tf.data.Dataset:
    first, second = (numbers(8).map(double).shuffle(8, seed=seed) for seed in (1, 2))
    return first.concatenate(second).map(double).batch(3)


@kind
def concatenate_by_apply(folder: Path) -> tf.data.Dataset:
    first, second = (numbers(8).map(double).shuffle(8, seed=seed) for seed in (1, 2))
    return first.apply(lambda inner: inner.concatenate(second)).map(double).batch(3)


@kind
def filters(folder: Path) -> tf.data.Dataset:
    return numbers().map(lambda number: number + 1).filter(is_even).shuffle(9, seed=1).batch(4)


@kind
def filter_that_counts(folder: Path) -> tf.data.Dataset:
    add = in_numpy(counting())
    return numbers().map(double).filter(lambda number: add(number) // 1000 % 3 != 0).batch(4)


@kind
def windows(folder: Path) -> tf.data.Dataset:
    return numbers().map(double).window(5, shift=3).flat_map(lambda window: window.batch(5)).shuffle(4, seed=1)


@kind
def cut_to_pieces(folder: Path) -> tf.data.Dataset:
    pieces = numbers(40).map(double).skip(3).shard(2, 1).take_while(lambda number: number < 70).repeat(2)
    return pieces.map(double).unique().batch(3, drop_remainder=True).rebatch(2).map(double)


@kind
def running_sums(folder: Path) -> tf.data.Dataset:
    sums = numbers().map(double).scan(np.int64(0), lambda total, number: (total + number, total + number))
    return sums.enumerate().map(lambda index, total: index + total).shuffle(9, seed=1).batch(4)


@kind
def grouped(folder: Path) -> tf.data.Dataset:
    rows = numbers().map(lambda number: tf.range(number % 7))
    buckets = rows.bucket_by_sequence_length(tf.size, [3, 5], [2, 2, 2], pad_to_bucket_boundary=False)
    return buckets.map(double).shuffle(4, seed=1)


@kind
def grouped_by_window(folder: Path) -> tf.data.Dataset:
    groups = numbers().map(double).group_by_window(lambda number: number % 3, lambda _, window: window.batch(4), 4)
    return groups.map(double).prefetch(1)


@kind
def chosen_from(folder: Path) -> tf.data.Dataset:
    choice = numbers().map(lambda number: number % 2)
    parts = [numbers(12).map(double).shuffle(9, seed=1), numbers(12).map(double, num_parallel_calls=2)]
    return Dataset.choose_from_datasets(parts, choice).map(double).batch(4)


@kind
def sampled_from(folder: Path) -> tf.data.Dataset:
    parts = [numbers(12).map(double), numbers(9).map(double).shuffle(9, seed=1)]
    sample = Dataset.sample_from_datasets(parts, weights=[0.3, 0.7], seed=3, rerandomize_each_iteration=True)
    return sample.map(double).batch(4)


@kind
def errors_left_out(folder: Path) -> tf.data.Dataset:
    checked = numbers().map(double).map(lambda number: tf.debugging.check_numerics(10 / (number % 6), "zero"))
    return checked.ignore_errors().shuffle(9, seed=1).batch(4)


@kind
def errors_left_out_of_batches(folder: Path) -> tf.data.Dataset:
    checked = numbers().map(lambda number: tf.debugging.check_numerics(10 / (number % 7), "zero"))
    return checked.batch(4).map(double).ignore_errors()


@kind
def text_files(folder: Path) -> tf.data.Dataset:
    for file in range(4):
        (folder / f"{file}.txt").write_text("".join(f"{file} {line}\n" for line in range(3 + file)))
    files = Dataset.list_files(str(folder / "*.txt"), seed=3)
    return files.interleave(tf.data.TextLineDataset, cycle_length=2).shuffle(5, seed=1).map(tf.strings.upper).batch(3)


@kind
def records(folder: Path) -> tf.data.Dataset:
    paths = [str(folder / f"{file}.tfrecord") for file in range(3)]
    for file, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for number in range(5 + file):
                writer.write(tf.io.serialize_tensor(np.int64(10 * file + number)).numpy())
    read = tf.data.TFRecordDataset(paths, num_parallel_reads=2)
    return read.map(lambda record: tf.io.parse_tensor(record, tf.int64)).shuffle(9, seed=1).batch(3)


@kind
def options_of_the_user(folder: Path) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = 2
    options.experimental_optimization.map_parallelization = False
    return numbers().map(double).with_options(options).shuffle(9, seed=1).map(double).batch(4)


@kind
def no_automatics(folder: Path) -> tf.data.Dataset:
    options = tf.data.Options()
    options.autotune.enabled = False
    return numbers().map(double).map(in_numpy(counting())).batch(4).with_options(options)


@kind
def names_and_known_length(folder: Path) -> tf.data.Dataset:
    named = numbers().map(double, name="first").filter(is_even, name="second").batch(4, name="third")
    return named.apply(tf.data.experimental.assert_cardinality(6))


@kind
def looked_at_before(folder: Path) -> tf.data.Dataset:
    dataset = numbers().map(double).shuffle(24, seed=3).map(double).batch(4)
    list(dataset)
    next(iter(dataset))
    return dataset
