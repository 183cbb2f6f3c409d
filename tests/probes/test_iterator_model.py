# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_gpu_watch.probes import iterator_model
from keras_gpu_watch.probes.gap_source import GAPS_KEPT, ElementSize


def numbers(count: int = 8) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(np.arange(count, dtype=np.float32))


def read(iterator: Any) -> Any:
    reading = iterator_model.model_reader(iterator)()
    assert reading is not None
    return reading


def test_batches_and_bytes_are_counted() -> None:
    iterator = iter(numbers(10).batch(4))
    next(iterator)
    next(iterator)
    assert (read(iterator).elements, read(iterator).bytes) == (2, 32)
    next(iterator)
    assert (read(iterator).elements, read(iterator).bytes) == (3, 40)


def test_a_gap_is_the_time_between_two_fetches() -> None:
    iterator = iter(numbers().batch(1))
    asked = []
    for _ in range(5):
        begin = time.perf_counter()
        next(iterator)
        asked.append((begin, time.perf_counter()))
        time.sleep(0.02)
    gaps = read(iterator).gap_seconds
    longest = [after[1] - before[0] for before, after in itertools.pairwise(asked)]
    assert len(gaps) == 4
    assert all(0.02 <= gap <= bound for gap, bound in zip(gaps, longest, strict=True))


def test_the_fetch_that_finds_the_end_leaves_a_gap_and_no_element() -> None:
    iterator = iter(numbers(3))
    assert len(list(iterator)) == 3
    assert read(iterator).elements == 3
    assert len(read(iterator).gap_seconds) == 3


def test_the_newest_gaps_are_kept() -> None:
    iterator = iter(numbers(300))
    for _ in range(150):
        next(iterator)
    time.sleep(0.05)
    next(iterator)
    gaps = read(iterator).gap_seconds
    assert len(gaps) == GAPS_KEPT
    assert int(np.argmax(gaps)) == GAPS_KEPT - 1


def test_without_autotuning_there_is_no_model() -> None:
    options = tf.data.Options()
    options.autotune.enabled = False
    iterator = iter(numbers().with_options(options))
    next(iterator)
    assert iterator_model.model_reader(iterator)() is None


def test_an_older_tensorflow_without_models_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tf.data.experimental, "get_model_proto")
    assert iterator_model.model_reader(iter(numbers()))() is None


def test_looking_at_a_model_fetches_nothing() -> None:
    iterator = iter(numbers(4))
    reader = iterator_model.model_reader(iterator)
    for expected in range(4):
        reader()
        assert float(next(iterator)) == expected


def test_kinds_of_iterators_are_told_apart() -> None:
    plain = iter(numbers())
    distributed = iter(tf.distribute.OneDeviceStrategy("/CPU:0").experimental_distribute_dataset(numbers().batch(2)))
    kinds = [
        (iterator_model.is_plain_iterator(each), iterator_model.is_distributed_iterator(each))
        for each in (plain, distributed, iter([1]))
    ]
    assert kinds == [(True, False), (False, True), (False, False)]


def generated(*specs: Any) -> tf.data.Dataset:
    signature = specs if len(specs) > 1 else specs[0]
    return tf.data.Dataset.from_generator(lambda: iter([]), output_signature=signature)


@pytest.mark.parametrize(
    ("dataset", "size"),
    [
        (numbers().batch(4), ElementSize(4, None)),
        (numbers().batch(4, drop_remainder=True), ElementSize(4, 4)),
        (tf.data.Dataset.zip((numbers(), tf.data.Dataset.range(8))).batch(4), ElementSize(12, None)),
        (numbers(), ElementSize(None, None)),
        (tf.data.Dataset.from_tensor_slices(["a", "b"]).batch(2), ElementSize(None, None)),
        (tf.data.Dataset.from_tensor_slices(["a", "b"]).batch(2, drop_remainder=True), ElementSize(None, 2)),
        (generated(tf.TensorSpec([None, None], tf.float32)), ElementSize(None, None)),
        (generated(tf.TensorSpec(None, tf.float32)), ElementSize(None, None)),
        (generated(tf.RaggedTensorSpec([None, None], tf.float32)), ElementSize(None, None)),
        (generated(tf.TensorSpec([None, 2, 3], tf.float16), tf.TensorSpec([None], tf.bool)), ElementSize(13, None)),
        (numbers().batch(4).map(lambda number: (number, None)), ElementSize(4, None)),
    ],
    ids=[
        "batch",
        "static batch",
        "two components",
        "scalars",
        "strings",
        "static strings",
        "unknown dimension",
        "unknown rank",
        "ragged",
        "small types",
        "with None",
    ],
)
def test_the_size_of_an_example_is_found_where_it_is_fixed(dataset: tf.data.Dataset, size: ElementSize) -> None:
    assert iterator_model.element_size(iter(dataset)) == size


@pytest.mark.parametrize("name", ["batch", "static", "two components", "with None"])
def test_examples_in_real_batches_are_counted_from_the_model(name: str) -> None:
    dataset = {
        "batch": numbers(11).batch(4),
        "static": numbers(12).batch(4, drop_remainder=True),
        "two components": tf.data.Dataset.zip((numbers(11), tf.data.Dataset.range(11))).batch(4),
        "with None": numbers(11).batch(4).map(lambda number: (number, None)),
    }[name]
    iterator = iter(dataset)
    size = iterator_model.element_size(iterator)
    for _ in iterator:
        pass
    reading = read(iterator)
    assert size.examples(reading.elements, reading.bytes) == (12 if name == "static" else 11)


def test_a_static_batch_of_zero_examples_counts_as_zero() -> None:
    assert ElementSize(4, 0).examples(3, 0) == 0
