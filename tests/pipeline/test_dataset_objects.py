# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from keras_gpu_watch.findings import Stage
from keras_gpu_watch.pipeline import dataset_objects
from keras_gpu_watch.pipeline.dataset_objects import input_kind, read_stages

AUTOTUNE = tf.data.AUTOTUNE
D = tf.data.Dataset
SCALAR = tf.TensorSpec([], tf.int64)


def same(element: tf.Tensor) -> tf.Tensor:
    return element


def open_file(element: tf.Tensor) -> tf.data.Dataset:
    del element
    return tf.data.TFRecordDataset("no file")


def drawn(stages: tuple[Stage, ...]) -> str:
    return " | ".join(f"{stage.label} {','.join(map(str, stage.inputs))}".strip() for stage in stages)


def last(dataset: tf.data.Dataset) -> Stage:
    return read_stages(dataset).stages[-1]


def test_sizes_are_read_as_written() -> None:
    stages = read_stages(D.range(90).shuffle(40).batch(8).rebatch([3, 3]).prefetch(7)).stages

    assert [stage.buffer_size for stage in stages] == [None, 40, None, None, 7]
    assert [stage.batch_size for stage in stages] == [None, None, 8, 3, None]


def test_a_batch_of_changing_size_has_no_size() -> None:
    assert last(D.range(90).batch(8).rebatch([3, 4])).batch_size is None


def test_what_is_left_to_autotune_is_minus_one() -> None:
    stages = read_stages(D.range(9).interleave(open_file, num_parallel_calls=AUTOTUNE).prefetch(AUTOTUNE)).stages

    assert (stages[1].num_parallel_calls, stages[1].cycle_length) == (-1, -1)
    assert stages[2].buffer_size == -1


@pytest.mark.parametrize(("written", "read"), [(None, None), (1, 1), (6, 6), (AUTOTUNE, -1)])
def test_parallel_calls_of_a_map_are_read_as_written(written: int | None, read: int | None) -> None:
    assert last(D.range(9).map(same, num_parallel_calls=written)).num_parallel_calls == read


@pytest.mark.parametrize(("written", "read"), [(None, None), (3, 3), (AUTOTUNE, -1)])
def test_parallel_reads_of_files_are_its_parallel_calls(written: int | None, read: int | None) -> None:
    stage = last(tf.data.TFRecordDataset(["a", "b"], buffer_size=4096, num_parallel_reads=written))

    assert stage.num_parallel_calls == read
    assert stage.buffer_size is None  # Of a reader it would be bytes.


@pytest.mark.parametrize("deterministic", [None, True, False])
def test_deterministic_is_read_as_written(deterministic: bool | None) -> None:
    stage = last(D.range(9).map(same, num_parallel_calls=2, deterministic=deterministic))

    assert stage.deterministic is deterministic


def test_the_cycle_of_an_interleave_is_read() -> None:
    stage = last(D.range(9).interleave(open_file, cycle_length=5, num_parallel_calls=3))

    assert (stage.cycle_length, stage.num_parallel_calls) == (5, 3)


def test_the_older_parallel_interleave_has_a_call_for_each_place_of_its_cycle() -> None:
    stage = last(D.range(9).apply(tf.data.experimental.parallel_interleave(open_file, cycle_length=3)))

    assert (stage.op, stage.cycle_length, stage.num_parallel_calls) == ("interleave", 3, 3)


def test_a_dataset_that_is_used_twice_appears_twice() -> None:
    shared = D.range(3).map(same)

    assert drawn(read_stages(D.zip(shared, shared)).stages) == "range | map(same) 0 | range | map(same) 2 | zip 1,3"


def test_the_private_threadpool_is_read_from_options_anywhere_in_the_pipeline() -> None:
    options = tf.data.Options()
    options.threading.private_threadpool_size = 5
    dataset = D.range(3).with_options(options).map(same).with_options(tf.data.Options())

    assert read_stages(dataset).private_threadpool_size == 5
    assert read_stages(D.range(3)).private_threadpool_size is None


def test_two_hundred_stages_are_all_read() -> None:
    dataset = functools.reduce(lambda below, _: below.map(same), range(200), D.range(3))

    stages = read_stages(dataset).stages

    assert len(stages) == 201
    assert [stage.inputs for stage in stages] == [(), *((below,) for below in range(200))]


def test_of_too_long_a_pipeline_the_end_is_read_and_the_rest_named_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_objects, "MAX_STAGES", 3)

    summary = read_stages(D.range(9).map(same).skip(1).batch(2).prefetch(1))

    assert drawn(summary.stages) == "skip | batch 0 | prefetch 1"
    assert summary.reason == "it has more than 3 stages"
    assert read_stages(D.range(9).skip(1).batch(2)).reason is None


def test_a_dataset_joined_to_itself_again_and_again_does_not_keep_us() -> None:
    dataset = functools.reduce(lambda below, _: below.concatenate(below), range(40), D.range(3))

    assert read_stages(dataset).reason == "it has more than 1000 stages"


def test_a_class_that_is_not_known_is_shown_by_its_name() -> None:
    class _FancyReaderDataset(tf.data.Dataset):
        def __init__(self) -> None:
            super().__init__(tf.data.experimental.to_variant(D.range(3)))

        def _inputs(self) -> list[tf.data.Dataset]:
            return []

        @property
        def element_spec(self) -> tf.TensorSpec:
            return SCALAR

    assert drawn(read_stages(_FancyReaderDataset().batch(2)).stages) == "fancy_reader | batch 0"


def test_what_is_no_dataset_has_no_stages_and_a_reason() -> None:
    summary = read_stages(object())

    assert summary.stages == ()
    assert summary.reason == "object does not show its stages"
    assert summary.input_kind == "unknown"


def test_reading_neither_iterates_nor_keeps_the_dataset() -> None:
    calls: list[int] = []

    def counted() -> Iterator[int]:
        calls.append(1)
        yield 0

    dataset = D.from_generator(counted, output_signature=SCALAR).map(same).prefetch(1)
    kept = weakref.ref(dataset)
    read_stages(dataset)
    input_kind(dataset)
    assert not calls

    del dataset
    gc.collect()
    assert kept() is None


def test_a_dataset_built_in_a_graph_is_read_too() -> None:
    with tf.Graph().as_default():
        stages = read_stages(D.range(9).map(same, num_parallel_calls=3).batch(4)).stages

    assert drawn(stages) == "range | map(same) 0 | batch 1"
    assert (stages[1].num_parallel_calls, stages[2].batch_size) == (3, 4)


@pytest.mark.parametrize(("workers", "calls"), [(1, None), (4, 4)])
def test_the_workers_of_a_pydataset_are_its_calls_at_a_time(workers: int, calls: int | None) -> None:
    class Rows(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            return np.zeros((2, 1), np.float32), np.zeros((2, 1), np.float32)

    adapter = PyDatasetAdapter(Rows(workers=workers), shuffle=False)

    source = read_stages(adapter.get_tf_dataset()).stages[0]

    assert (source.python, source.num_parallel_calls) == ("py_dataset", calls)
