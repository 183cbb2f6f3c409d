# SPDX-License-Identifier: Apache-2.0
"""`watch`: the user's dataset, whose own iterators carry stamps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_gpu_watch.guard import logger
from keras_gpu_watch.probes.stamp import Stamper
from keras_gpu_watch.probes.stamp_source import DATASET_ATTRIBUTE, STAMPS_ATTRIBUTE, WATCHED_ATTRIBUTE


class WatchedDataset(tf.data.Dataset):  # type: ignore[misc]
    """The user's own dataset in every respect but one: an iterator made directly from it is stamped.

    Under any further transformation, or in a strategy, it is the user's dataset and nothing else.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._user_dataset = dataset
        self._stamper: Stamper | None = None
        self._stamping_failed = False
        setattr(self, WATCHED_ATTRIBUTE, True)
        super().__init__(tf.data.experimental.to_variant(dataset))

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._user_dataset]

    @property
    def element_spec(self) -> Any:
        """The user's element spec, untouched."""
        return self._user_dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        if not tf.executing_eagerly() or self._stamping_failed:
            return iter(self._user_dataset)
        try:
            return self._stamped_iterator()
        # A door: whatever goes wrong in our stamp, the user gets his own iterator.
        except Exception as error:  # noqa: BLE001
            self._stamping_failed = True
            logger.error("keras-gpu-watch: stamping failed; the dataset is used as it is.", exc_info=error)
            return iter(self._user_dataset)

    def _stamped_iterator(self) -> Iterator[Any]:
        if self._stamper is None:
            self._stamper = Stamper(self._user_dataset)
        iterator: Iterator[Any]
        iterator, ring = self._stamper.iterator()
        setattr(iterator, STAMPS_ATTRIBUTE, ring)
        setattr(iterator, DATASET_ATTRIBUTE, self._user_dataset)
        _save_as_stateful_as_the_user(iterator, self._user_dataset)
        return iterator

    def __getattr__(self, name: str) -> Any:
        # What the user or Keras hung on the dataset (`class_names`, `file_paths`) stays readable.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._user_dataset, name)


def watch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Time every batch of a dataset exactly, from inside the pipeline.

    Put it last: `model.fit(watch(dataset), callbacks=[GPUWatch("logs")])`. Elements, their order, cardinality,
    `element_spec`, options and speed stay as they are. Anything built on top of the result (`.take`, `.zip`, a
    distribution strategy) is built on your own dataset and is not stamped.

    Args:
        dataset: A `tf.data.Dataset`, of elements of any structure. Watching a watched dataset changes nothing.

    Returns:
        A `tf.data.Dataset` of the same elements.

    Raises:
        TypeError: If `dataset` is not a `tf.data.Dataset`. A dataset that a strategy has distributed already
            is refused too: watch it before it is distributed.
    """
    if isinstance(dataset, WatchedDataset):
        return dataset
    if isinstance(dataset, tf.data.Dataset):
        return WatchedDataset(dataset)
    remedy = ""
    if "Distributed" in type(dataset).__name__:
        remedy = " Put `watch` around the dataset before it is distributed."
    raise TypeError(
        f"Invalid value for argument `dataset`. Received: {type(dataset).__name__}. "
        f"Expected: a tf.data.Dataset.{remedy}"
    )


def _save_as_stateful_as_the_user(iterator: Any, dataset: tf.data.Dataset) -> None:
    """Make the iterator as checkpointable as the user's: the clock in our stamp counts as external state otherwise.

    The state of the user's own stages is judged first, by his own policy; then ours is saved without that check.
    Where TensorFlow has no such method, checkpoints work as they always do.
    """
    if not hasattr(iterator, "_serialize_to_tensors") or not hasattr(iterator, "_iterator_resource"):
        return
    # Not the iterator itself, which would then live until the garbage collector comes by.
    resource = iterator._iterator_resource
    policies = tf.data.experimental.ExternalStatePolicy

    def serialize() -> dict[str, tf.Tensor]:
        if (dataset.options().experimental_external_state_policy or policies.FAIL) == policies.FAIL:
            _refuse_external_state(dataset)
        ignore = int(policies.IGNORE.value)
        return {"_STATE": tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=ignore)}

    iterator._serialize_to_tensors = serialize


def _refuse_external_state(dataset: tf.data.Dataset) -> None:
    """Raise what TensorFlow raises on saving an iterator of a dataset that depends on state outside of it.

    Each function with stateful ops is judged by TensorFlow in a map of its own. A new iterator of the dataset would be
    no judge: a shuffle in it draws a seed, which changes later epochs, and hides what lies below.
    """
    waiting = [dataset]
    while waiting:
        stage = waiting.pop()
        for wrapped in stage._functions():
            function = wrapped.function
            if not _is_stateful(function.graph):
                continue
            variant = tf.raw_ops.MapDataset(
                input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(0)),
                other_arguments=function.captured_inputs,
                f=function,
                output_types=[tf.int64],
                output_shapes=[[]],
            )
            iter(tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.int64)))._serialize_to_tensors()
        waiting.extend(stage._inputs())


def _is_stateful(graph: tf.Graph) -> bool:
    operations = (operation.op_def for operation in graph.get_operations())
    nested = (function.signature for function in graph.as_graph_def().library.function)
    return any(definition.is_stateful for definition in [*operations, *nested])
