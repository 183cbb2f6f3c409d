# SPDX-License-Identifier: Apache-2.0
"""Input pipelines for the tuner: each as somebody might have written it, and with any other settings of its knobs.

Their elements are pairs of a row of inputs and a target, so that nothing has to be mapped behind the stages at issue.
"""

from __future__ import annotations

import functools
import itertools
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf
from workloads import MapFunction, crunch, now_and_then, numbers, reads, spin

AUTOTUNE = tf.data.AUTOTUNE
PICTURE_WIDTH = 64
"""Of what a training takes; files hold larger ones."""
FILES = 8
RECORDS_PER_FILE = 16
SPARE_THREADS = 2
"""Of a pool, beyond one for each call: for the stages that take their turn in it."""

Pair = tuple[tf.Tensor, tf.Tensor]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All knobs of a pipeline, in tf.data's own terms."""

    calls: tuple[int | None, ...]
    """`num_parallel_calls` of each stage that has it, sources first."""
    prefetch: int | None = None
    """Buffer of a prefetch at the end; `None`: there is none."""
    pool: int | None = None
    """`private_threadpool_size`."""

    def finish(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Set what does not belong to a single stage."""
        if self.prefetch is not None:
            dataset = dataset.prefetch(self.prefetch)
        if self.pool is None:
            return dataset
        options = tf.data.Options()
        options.threading.private_threadpool_size = self.pool
        return dataset.with_options(options)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Settings to choose the best from."""

    calls: tuple[tuple[int, ...], ...]
    """For each stage."""
    prefetches: tuple[int, ...] = (1, 4, AUTOTUNE)

    def points(self) -> list[Settings]:
        """All combinations with the shared pool, and with one that has a thread for each call; the largest first."""
        return [
            Settings(calls=calls, prefetch=prefetch, pool=sum(calls) + SPARE_THREADS if own_pool else None)
            for own_pool in (True, False)
            for calls in itertools.product(*(sorted(each, reverse=True) for each in self.calls))
            for prefetch in self.prefetches
        ]

    def corners(self) -> Grid:
        """Of each knob only the ends."""
        calls = tuple((each[0], each[-1]) for each in self.calls)
        return Grid(calls=calls, prefetches=(self.prefetches[0], self.prefetches[-1]))


Build = Callable[[Settings, int], tf.data.Dataset]
"""Takes settings and a number of batches."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline and the training that reads it."""

    build: Build
    written: Settings
    grid: Grid
    step_seconds: float
    steps: int = 40

    @property
    def automatic(self) -> Settings:
        """Everything left to AUTOTUNE."""
        return Settings(calls=(AUTOTUNE,) * len(self.written.calls), prefetch=AUTOTUNE)


COMPUTING = ((1, 2, 4, 8),)
WAITING = ((2, 8, 32, 128),)


def wait(seconds: float) -> MapFunction:
    """For a map: sleeps as for a disk or a network, without any state, so that calls may run beside each other."""

    def sleep(element: np.ndarray) -> np.ndarray:
        time.sleep(seconds)
        return element

    def work(element: tf.Tensor) -> tf.Tensor:
        done = tf.numpy_function(sleep, [element], element.dtype, stateful=False)
        return tf.ensure_shape(done, element.shape)

    return work


def _pair(number: tf.Tensor) -> Pair:
    """Each element of a number or of a batch of them as a row of inputs, and as a target."""
    column = tf.expand_dims(number, -1)
    return column, column


def _mapped(kind: Callable[[float], MapFunction], seconds: float, batch: int) -> Build:
    """A source of numbers, a map whose work takes `seconds`, and a batch."""

    def build(settings: Settings, batches: int) -> tf.data.Dataset:
        work = kind(seconds)

        def load(number: tf.Tensor) -> Pair:
            return _pair(work(number))

        dataset = numbers(batches * batch).map(load, num_parallel_calls=settings.calls[0])
        return settings.finish(dataset.batch(batch, drop_remainder=True))

    return build


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Removed when the process ends."""
    return tempfile.TemporaryDirectory()


def _picture(seed: int, rows: int) -> np.ndarray:
    """Smooth colours and a little noise, as in a photograph."""
    generator = np.random.default_rng(seed)
    waves = np.sin(np.linspace(0, 9 + seed % 3, rows))[:, None, None] * np.cos(np.linspace(0, 7, 512))[None, :, None]
    noise = generator.normal(0, 12, (rows, 512, 3))
    return np.clip(128 + 90 * waves + noise, 0, 255).astype(np.uint8)


@functools.cache
def _jpeg_files(rows: int) -> list[str]:
    paths = [str(Path(_folder().name) / f"{number}.jpg") for number in range(FILES)]
    for number, path in enumerate(paths):
        tf.io.write_file(path, tf.io.encode_jpeg(_picture(number, rows)))
    return paths


def _row(picture: tf.Tensor) -> Pair:
    small = tf.image.resize(picture, (PICTURE_WIDTH, PICTURE_WIDTH)) / 255
    return tf.reshape(small, [PICTURE_WIDTH**2 * 3]), tf.reduce_mean(small, keepdims=True)[0, 0]


def _decode(path: tf.Tensor) -> Pair:
    return _row(tf.io.decode_jpeg(tf.io.read_file(path), channels=3))


def _jpegs(settings: Settings, batches: int) -> tf.data.Dataset:
    files = _jpeg_files(rows=384)
    paths = tf.data.Dataset.from_tensor_slices([files[number % FILES] for number in range(4 * batches)])
    return settings.finish(paths.map(_decode, num_parallel_calls=settings.calls[0]).batch(4, drop_remainder=True))


@functools.cache
def _record_files() -> list[str]:
    paths = [str(Path(_folder().name) / f"{number}.tfrecord") for number in range(FILES)]
    for number, path in enumerate(paths):
        picture = tf.train.Feature(bytes_list=tf.train.BytesList(value=[_picture(number, rows=512).tobytes()]))
        example = tf.train.Example(features=tf.train.Features(feature={"picture": picture}))
        with tf.io.TFRecordWriter(path) as writer:
            for _ in range(RECORDS_PER_FILE):
                writer.write(example.SerializeToString())
    return paths


def _parse(record: tf.Tensor) -> Pair:
    features = tf.io.parse_single_example(record, {"picture": tf.io.FixedLenFeature([], tf.string)})
    picture = tf.reshape(tf.io.decode_raw(features["picture"], tf.uint8), [512, 512, 3])
    return _row(tf.cast(picture, tf.float32))


def _records(settings: Settings, batches: int) -> tf.data.Dataset:
    reading, parsing = settings.calls
    paths = tf.data.Dataset.from_tensor_slices(_record_files())
    repeats = math.ceil(4 * batches / (FILES * RECORDS_PER_FILE))
    records = paths.repeat(repeats).interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=reading)
    examples = records.map(_parse, num_parallel_calls=parsing).batch(4, drop_remainder=True)
    return settings.finish(examples.take(batches))


def _bursts(settings: Settings, batches: int) -> tf.data.Dataset:
    work = now_and_then(0.100, 0.003, 20)

    def load(batch: tf.Tensor) -> Pair:
        return _pair(work(batch))

    return settings.finish(numbers(4 * batches).batch(4).map(load, num_parallel_calls=settings.calls[0]))


def _two_stages(settings: Settings, batches: int) -> tf.data.Dataset:
    waits, computes = wait(0.020), crunch(0.0004)

    def load(number: tf.Tensor) -> tf.Tensor:
        return waits(number)

    def augment(number: tf.Tensor) -> Pair:
        return _pair(computes(number))

    loading, augmenting = settings.calls
    dataset = numbers(4 * batches).map(load, num_parallel_calls=loading)
    return settings.finish(dataset.map(augment, num_parallel_calls=augmenting).batch(4, drop_remainder=True))


def _slow_files(settings: Settings, batches: int) -> tf.data.Dataset:
    files = numbers(batches).interleave(reads(0.040, 4), cycle_length=16, num_parallel_calls=settings.calls[0])
    return settings.finish(files.batch(4, drop_remainder=True).map(_pair))


PIPELINES: dict[str, Pipeline] = {
    "JPEG decode": Pipeline(
        build=_jpegs,
        written=Settings(calls=(None,)),
        grid=Grid(calls=COMPUTING),
        step_seconds=0.003,
    ),
    "TFRecord parse": Pipeline(
        build=_records,
        written=Settings(calls=(None, None)),
        grid=Grid(calls=((1, 4), (1, 2, 4)), prefetches=(1, AUTOTUNE)),
        step_seconds=0.003,
    ),
    "reads of 5 ms": Pipeline(
        build=_mapped(wait, 0.005, batch=8),
        written=Settings(calls=(2,), prefetch=2),
        grid=Grid(calls=WAITING),
        step_seconds=0.004,
        steps=30,
    ),
    "reads of 50 ms": Pipeline(
        build=_mapped(wait, 0.050, batch=4),
        written=Settings(calls=(2,), prefetch=2),
        grid=Grid(calls=WAITING),
        step_seconds=0.004,
        steps=24,
    ),
    "bursts": Pipeline(
        build=_bursts,
        written=Settings(calls=(None,), prefetch=1),
        grid=Grid(calls=((1, 4),), prefetches=(1, 4, 16, 64, AUTOTUNE)),
        step_seconds=0.010,
        steps=60,
    ),
    "fixed bad numbers": Pipeline(
        build=_mapped(crunch, 0.0025, batch=4),
        written=Settings(calls=(1,), prefetch=1, pool=1),
        grid=Grid(calls=COMPUTING),
        step_seconds=0.004,
    ),
    "Python-bound": Pipeline(
        build=_mapped(spin, 0.0025, batch=16),
        written=Settings(calls=(None,), prefetch=2),
        grid=Grid(calls=((1, 4),), prefetches=(1, AUTOTUNE)),
        step_seconds=0.002,
        steps=30,
    ),
    "already optimal": Pipeline(
        build=_mapped(wait, 0.005, batch=8),
        written=Settings(calls=(16,), prefetch=4, pool=18),
        grid=Grid(calls=WAITING),
        step_seconds=0.006,
    ),
    "two stages": Pipeline(
        build=_two_stages,
        written=Settings(calls=(2, 2), prefetch=2),
        grid=Grid(calls=((2, 8, 32), (1, 2)), prefetches=(2, AUTOTUNE)),
        step_seconds=0.004,
        steps=30,
    ),
    "slow files": Pipeline(
        build=_slow_files,
        written=Settings(calls=(2,), prefetch=2),
        grid=Grid(calls=((2, 4, 8, 16),)),
        step_seconds=0.004,
    ),
}
