# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_gpu_watch.findings import Stage
from keras_gpu_watch.pipeline.composites import op_name
from keras_gpu_watch.pipeline.dataset_objects import read_stages
from keras_gpu_watch.watched import watch

D = tf.data.Dataset
EXPERIMENTAL = tf.data.experimental
SCALAR = tf.TensorSpec([], tf.int64)


def same(element: tf.Tensor) -> tf.Tensor:
    return element


def first(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    del right
    return left


def small(element: tf.Tensor) -> tf.Tensor:
    return element < 3


def even(element: tf.Tensor) -> tf.Tensor:
    return tf.cast(element % 2, tf.int64)


def group(key: tf.Tensor, elements: tf.data.Dataset) -> tf.data.Dataset:
    del key
    return elements.batch(2)


def length(element: tf.Tensor) -> tf.Tensor:
    return tf.shape(element)[0]


def open_file(element: tf.Tensor) -> tf.data.Dataset:
    del element
    return tf.data.TFRecordDataset("no file")


def count(state: tf.Tensor, element: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return state + 1, element


def numbers() -> Iterator[int]:
    yield from range(3)


def text_file() -> str:
    path = Path("names.txt")
    path.write_text("a\nb\n")
    return str(path)


def loaded() -> tf.data.Dataset:
    D.range(3).save("saved")
    return D.load("saved")


def generated() -> tf.data.Dataset:
    return D.from_generator(numbers, output_signature=SCALAR)


def ragged() -> tf.data.Dataset:
    return D.range(5).map(tf.range)


def padded_to_four() -> tf.data.Dataset:
    dataset = D.from_tensor_slices({"x": [1, 2]})
    return dataset.apply(tf.data.experimental.pad_to_cardinality(4))


PIPELINES: dict[str, tuple[Callable[[], tf.data.Dataset], str]] = {
    "slices": (lambda: D.from_tensor_slices([1, 2]), "from_tensor_slices"),
    "tensors": (lambda: D.from_tensors([1, 2]), "from_tensors"),
    "generator": (generated, "from_generator(numbers)"),
    "random": (lambda: D.random(3), "random"),
    "counter": (lambda: D.counter().take(2), "counter | take 0"),
    "list": (lambda: EXPERIMENTAL.from_list([1, 2]), "from_list"),
    "load": (loaded, "load"),
    "records": (lambda: tf.data.TFRecordDataset(["a", "b"]), "TFRecordDataset"),
    "lines": (lambda: tf.data.TextLineDataset(text_file()), "TextLineDataset"),
    "fixed": (lambda: tf.data.FixedLengthRecordDataset("a", 4), "FixedLengthRecordDataset"),
    "csv": (lambda: EXPERIMENTAL.CsvDataset("a", [tf.int32]), "CsvDataset"),
    "files in order": (lambda: D.list_files(text_file(), shuffle=False), "from_tensor_slices"),
    "records of listed files": (
        lambda: tf.data.TFRecordDataset(D.list_files(text_file())),
        "from_tensor_slices | shuffle 0 | TFRecordDataset 1",
    ),
    "classic": (
        lambda: D.range(9).shuffle(4).map(same).batch(2).prefetch(1),
        "range | shuffle 0 | map(same) 1 | batch 2 | prefetch 3",
    ),
    "parallel": (lambda: D.range(9).map(same, 2).batch(2, num_parallel_calls=2), "range | map(same) 0 | batch 1"),
    "counting": (
        lambda: D.range(9).cache().repeat(2).skip(1).take(3).shard(2, 0),
        "range | cache 0 | repeat 1 | skip 2 | take 3 | shard 4",
    ),
    "filter": (lambda: D.range(9).filter(small), "range | filter(small) 0"),
    "take_while": (lambda: D.range(9).take_while(small), "range | take_while(small) 0"),
    "scan": (lambda: D.range(9).scan(np.int64(0), count), "range | scan(count) 0"),
    "unique": (lambda: D.range(9).unique(), "range | unique 0"),
    "flat_map": (lambda: D.range(9).flat_map(open_file), "range | flat_map(open_file) 0"),
    "interleave": (lambda: D.range(9).interleave(open_file), "range | interleave(open_file) 0"),
    "ignore_errors": (lambda: D.range(9).ignore_errors(), "range | ignore_errors 0"),
    "rebatch": (lambda: D.range(9).batch(2).rebatch(3), "range | batch 0 | rebatch 1"),
    "unbatch": (lambda: D.range(9).batch(2).unbatch(), "range | batch 0 | unbatch 1"),
    "padded_batch": (lambda: ragged().padded_batch(2), "range | map(range) 0 | padded_batch 1"),
    "ragged_batch": (lambda: ragged().ragged_batch(2), "range | map(range) 0 | ragged_batch 1"),
    "window": (lambda: D.range(9).window(3), "range | window 0"),
    "group_by_window": (
        lambda: D.range(9).group_by_window(even, group, window_size=2),
        "range | group_by_window(even) 0",
    ),
    "bucket": (
        lambda: ragged().bucket_by_sequence_length(length, [2, 3], [2, 2, 2]),
        "range | map(range) 0 | bucket_by_sequence_length(length) 1",
    ),
    "snapshot": (lambda: D.range(9).snapshot("snapshot"), "range | snapshot 0"),
    "sharded snapshot": (lambda: D.range(9).snapshot("snapshot", shard_func=even), "range | snapshot(even) 0"),
    "enumerate": (lambda: D.range(9).map(same).enumerate(start=5), "range | map(same) 0 | enumerate 1"),
    "zip with a range": (lambda: D.zip(D.range(9), D.range(3)), "range | range | zip 0,1"),
    "concatenate": (
        lambda: D.range(2).concatenate(D.range(3).map(same)),
        "range | range | map(same) 1 | concatenate 0,2",
    ),
    "nested zip": (
        lambda: D.zip(D.zip(D.range(2).map(same), D.range(2)).map(first), D.range(3).batch(2)),
        "range | map(same) 0 | range | zip 1,2 | map(first) 3 | range | batch 5 | zip 4,6",
    ),
    "sample": (
        lambda: D.sample_from_datasets([D.range(2), D.range(3).map(same)], [0.5, 0.5]),
        "range | range | map(same) 1 | sample_from_datasets 0,2",
    ),
    "sample by a dataset": (
        lambda: D.sample_from_datasets([D.range(2), D.range(3)], D.from_tensors([0.5, 0.5]).repeat()),
        "range | range | sample_from_datasets 0,1",
    ),
    "choose": (
        lambda: D.choose_from_datasets([D.range(2), D.range(3)], D.range(2)),
        "range | range | choose_from_datasets 0,1",
    ),
    "rejection": (
        lambda: D.range(9).rejection_resample(lambda element: tf.cast(element % 2, tf.int32), [0.5, 0.5]),
        "range | rejection_resample(lambda) 0",
    ),
    "shuffle_and_repeat": (
        lambda: D.range(3).apply(EXPERIMENTAL.shuffle_and_repeat(2)),
        "range | shuffle_and_repeat 0",
    ),
    "assert_cardinality": (
        lambda: D.range(3).apply(EXPERIMENTAL.assert_cardinality(3)),
        "range | assert_cardinality 0",
    ),
    "dense_to_sparse_batch": (
        lambda: D.from_tensors([1]).sparse_batch(2, [1]),
        "from_tensors | sparse_batch 0",
    ),
    "padding": (
        padded_to_four,
        "from_tensor_slices | map(apply_valid_mask) 0 | from_tensors | repeat 2 | concatenate 1,3",
    ),
    "apply": (
        lambda: D.range(9).apply(lambda dataset: dataset.skip(1).concatenate(D.range(3).batch(1).unbatch())),
        "range | skip 0 | range | batch 2 | unbatch 3 | concatenate 1,4",
    ),
    "variant": (
        lambda: EXPERIMENTAL.from_variant(EXPERIMENTAL.to_variant(D.range(3)), SCALAR).map(same),
        "from_variant | map(same) 0",
    ),
    "options": (lambda: D.range(3).with_options(tf.data.Options()).batch(2), "range | batch 0"),
    "options last": (lambda: D.range(3).batch(2).with_options(tf.data.Options()), "range | batch 0"),
    "watched": (lambda: watch(D.range(3).batch(2)), "range | batch 0"),
    "on a watched one": (lambda: watch(D.range(3).batch(2)).map(same), "range | batch 0 | map(same) 1"),
}


def drawn(stages: tuple[Stage, ...]) -> str:
    """The stages in one line, sources first, each with the indices of its inputs."""
    return " | ".join(f"{stage.label} {','.join(map(str, stage.inputs))}".strip() for stage in stages)


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("name", PIPELINES)
def test_stages_are_read_in_the_users_words(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    build, expected = PIPELINES[name]

    summary = read_stages(build())

    assert drawn(summary.stages) == expected
    assert [stage.index for stage in summary.stages] == list(range(len(summary.stages)))
    assert summary.input_kind == "tf.data"
    assert summary.reason is None


@pytest.mark.parametrize(
    ("class_name", "expected"),
    [
        ("_ParallelMapDataset", "map"),
        ("CacheDataset", "cache"),
        ("CsvDatasetV2", "CsvDataset"),
        ("MyDataset", "my"),
        ("_RemoteFileReader", "remote_file_reader"),
    ],
)
def test_a_class_is_said_in_the_users_words(class_name: str, expected: str) -> None:
    assert op_name(class_name) == expected
