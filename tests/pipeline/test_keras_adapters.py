# SPDX-License-Identifier: Apache-2.0
"""What Keras makes of the inputs of `fit`, taken from the iterators that real trainings read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters.tf_dataset_adapter import make_class_weight_map_fn

from keras_gpu_watch.findings import PipelineSummary
from keras_gpu_watch.pipeline.dataset_objects import input_kind, read_stages

FILE = Path(__file__).name
X, Y = np.zeros((8, 3), "float32"), np.zeros((8, 1), "float32")


class Images(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        del index
        return X[:2], Y[:2]


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    while True:
        yield X[:2], Y[:2]


def read_in_fit(*data: Any, **arguments: Any) -> PipelineSummary:
    """What is read of the dataset that a training's iterator was made from."""
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
    model.compile(loss="mse", jit_compile=False)
    model.make_train_function()
    step = model.train_function
    datasets: list[tf.data.Dataset] = []

    def train_function(iterator: Any) -> Any:
        datasets.append(iterator._dataset)
        return step(iterator)

    model.train_function = train_function
    model.fit(*data, steps_per_epoch=2, verbose=0, **arguments)
    assert input_kind(datasets[0]) == read_stages(datasets[0]).input_kind
    return read_stages(datasets[0])


def ops(summary: PipelineSummary) -> list[str]:
    return [stage.op for stage in summary.stages]


@pytest.mark.parametrize("shuffle", [True, False, "batch"])
def test_arrays(shuffle: bool | str) -> None:
    summary = read_in_fit(X, Y, batch_size=2, shuffle=shuffle)

    assert summary.input_kind == "arrays"
    assert ops(summary)[0] == "range"
    assert ops(summary)[-2:] == ["map", "prefetch"]
    assert {stage.added_by for stage in summary.stages} == {"keras"}


def test_arrays_with_class_weights_are_still_arrays() -> None:
    assert read_in_fit(X, Y, batch_size=2, class_weight={0: 1.0, 1: 2.0}).input_kind == "arrays"


def test_a_py_dataset_is_called_by_its_class() -> None:
    summary = read_in_fit(Images())
    source = summary.stages[0]

    assert summary.input_kind == "PyDataset"
    assert (ops(summary)[0], ops(summary)[-1]) == ("from_generator", "prefetch")  # Keras 3.5 shuffles in between.
    assert (source.function, source.python, source.added_by) == ("Images", "py_dataset", "keras")
    assert str(source.source).startswith(f"{FILE}:")


def test_a_py_dataset_with_workers_is_read_alike() -> None:
    summary = read_in_fit(Images(workers=2))

    assert summary.input_kind == "PyDataset"
    assert (summary.stages[0].function, summary.stages[0].python) == ("Images", "py_dataset")


def test_a_generator_is_called_by_its_function() -> None:
    summary = read_in_fit(batches())
    source = summary.stages[0]

    assert summary.input_kind == "generator"
    assert ops(summary) == ["from_generator", "prefetch"]
    assert (source.function, source.python, source.added_by) == ("batches", "from_generator", "keras")


def test_a_dataset_stays_the_users() -> None:
    summary = read_in_fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(2).prefetch(tf.data.AUTOTUNE))

    assert summary.input_kind == "tf.data"
    assert ops(summary) == ["from_tensor_slices", "batch", "prefetch"]
    assert {stage.added_by for stage in summary.stages} == {"user"}


def test_class_weights_add_a_map_and_a_prefetch_of_keras() -> None:
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2).prefetch(tf.data.AUTOTUNE)
    summary = read_in_fit(dataset, class_weight={0: 1.0, 1: 2.0})

    assert summary.input_kind == "tf.data"
    assert ops(summary) == ["from_tensor_slices", "batch", "prefetch", "map", "prefetch"]
    assert [stage.added_by for stage in summary.stages] == ["user", "user", "user", "keras", "keras"]


def test_what_the_user_puts_behind_a_map_of_keras_stays_his() -> None:
    weighted = tf.data.Dataset.from_tensor_slices((X, Y)).map(make_class_weight_map_fn({0: 1.0, 1: 2.0}))

    for dataset in (weighted.prefetch(3), weighted.skip(1)):
        assert [stage.added_by for stage in read_stages(dataset).stages] == ["user", "keras", "user"]


def test_a_generator_inside_tf_data_is_the_users() -> None:
    signature = (tf.TensorSpec([2, 3]), tf.TensorSpec([2, 1]))
    summary = read_in_fit(tf.data.Dataset.from_generator(batches, output_signature=signature))

    assert summary.input_kind == "tf.data"
    assert (summary.stages[0].function, summary.stages[0].added_by) == ("batches", "user")


def test_images_from_a_directory_are_decoded_by_keras(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        keras.utils.save_img(tmp_path / name / "1.png", np.zeros((4, 4, 3)))
    dataset = keras.utils.image_dataset_from_directory(tmp_path, image_size=(4, 4), batch_size=2, verbose=False)

    summary = read_stages(dataset.map(lambda x, y: (x / 255.0, y)))
    loads = [stage for stage in summary.stages if stage.op == "map" and stage.added_by == "keras"]

    assert summary.input_kind == "tf.data"
    assert any(str(stage.source).startswith("image_dataset_utils.py:") for stage in loads)
    assert (summary.stages[-1].source or "").startswith(FILE)
    assert summary.stages[-1].added_by == "user"
    assert {"from_tensor_slices", "zip", "shuffle", "batch", "prefetch"} <= set(ops(summary))
