# SPDX-License-Identifier: Apache-2.0
"""Work of a known cost for input pipelines: it sleeps, it computes, or it holds Python's interpreter lock.

Each function here makes a map function of elements that keeps the element as it is. The work depends on the element,
so that TensorFlow can neither start it early nor fold it away.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from ground_truth import BATCH

MapFunction = Callable[[tf.Tensor], tf.Tensor]
_IMAGE_WIDTH = 512


def nap(seconds: float) -> MapFunction:
    """Sleeps in Python, without the interpreter lock: work that waits for something else."""

    def sleep(element: np.ndarray) -> np.ndarray:
        time.sleep(seconds)
        return element

    return _in_python(sleep)


def spin(seconds: float) -> MapFunction:
    """Computes in Python: `seconds` of one core's time, and nobody else runs Python meanwhile."""
    rounds = round(seconds / _seconds_per_round())

    def compute(element: np.ndarray) -> np.ndarray:
        _count(rounds)
        return element

    return _in_python(compute)


def crunch(seconds: float) -> MapFunction:
    """Computes in C++ on one core: decodes a JPEG whose size makes it take `seconds`."""
    rows = max(1, round(seconds / _seconds_per_row()))
    # Two of them, chosen by the element: the decoding of a constant would be done once.
    images = tf.stack([_jpeg(rows, seed) for seed in (0, 1)])

    def decode(element: tf.Tensor) -> tf.Tensor:
        picture = tf.io.decode_jpeg(tf.gather(images, tf.cast(tf.reshape(element, [-1])[0], tf.int64) % 2))
        return element + tf.cast(tf.reduce_min(picture) * 0, element.dtype)

    return decode


def reads(seconds: float, count: int) -> Callable[[tf.Tensor], tf.data.Dataset]:
    """For `interleave`: a "file" of `count` elements that takes `seconds` to open, waiting outside of Python."""

    def read(element: tf.Tensor) -> tf.data.Dataset:
        file = tf.data.Dataset.from_tensors(tf.fill([count], element))
        variant = tf.raw_ops.SleepDataset(
            input_dataset=tf.data.experimental.to_variant(file),
            sleep_microseconds=tf.constant(round(seconds * 1e6), tf.int64),
            output_types=[element.dtype],
            output_shapes=[[count]],
        )
        return tf.data.experimental.from_variant(variant, tf.TensorSpec([count], element.dtype)).unbatch()

    return read


def now_and_then(slow_seconds: float, fast_seconds: float, every: int) -> MapFunction:
    """Sleeps `slow_seconds` for one batch in `every`, else `fast_seconds`; for batches of consecutive numbers."""

    def sleep(element: np.ndarray) -> np.ndarray:
        time.sleep(slow_seconds if int(element[0]) % (every * BATCH) == 0 else fast_seconds)
        return element

    return _in_python(sleep)


def numbers(count: int) -> tf.data.Dataset:
    """The numbers from 0, as floats."""
    return tf.data.Dataset.from_tensor_slices(np.arange(count, dtype=np.float32))


def trainable(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Batches of numbers as inputs and equal targets."""

    def pair(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        column = tf.ensure_shape(tf.reshape(batch, [-1, 1]), [None, 1])
        return column, column

    return dataset.map(pair)


def generator(seconds: float, batches: int, work: Callable[[float], Any] = time.sleep) -> tf.data.Dataset:
    """Batches from a Python generator that works for `seconds` on each."""

    def produce() -> Iterator[np.ndarray]:
        for number in range(batches):
            work(seconds)
            yield np.full(BATCH, number, np.float32)

    return tf.data.Dataset.from_generator(produce, output_signature=tf.TensorSpec([BATCH], tf.float32))


def spin_for(seconds: float) -> None:
    """Holds the interpreter lock for `seconds` of computing."""
    _count(round(seconds / _seconds_per_round()))


def _in_python(function: Callable[[np.ndarray], np.ndarray]) -> MapFunction:
    def work(element: tf.Tensor) -> tf.Tensor:
        done = tf.numpy_function(function, [element], element.dtype)
        return tf.ensure_shape(done, element.shape)

    return work


def _count(rounds: int) -> int:
    total = 0
    for number in range(rounds):
        total += number
    return total


@functools.cache
def _seconds_per_round() -> float:
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        _count(20_000)
        times.append(time.perf_counter() - begin)
    return float(np.median(times)) / 20_000


@functools.cache
def _seconds_per_row() -> float:
    image = _jpeg(512, 0)
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        tf.io.decode_jpeg(image)
        times.append(time.perf_counter() - begin)
    return float(np.median(times)) / 512


@functools.cache
def _jpeg(rows: int, seed: int) -> tf.Tensor:
    noise = np.random.default_rng(seed).integers(0, 255, (rows, _IMAGE_WIDTH, 3), dtype=np.uint8)
    return tf.io.encode_jpeg(noise)
