# SPDX-License-Identifier: Apache-2.0
"""Makes our iterators as checkpointable as the user's: no less, and no more."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_gpu_watch.pipeline.object_chain import objects_up_to


def save_as_stateful_as(dataset: tf.data.Dataset, iterator: Any) -> None:
    """Let an iterator be saved where one of a dataset could be: the clock in our stamp counts as external state else.

    The state of the user's own stages is judged first, by his own policy; then ours is saved without that check.
    Where TensorFlow has no such method, checkpoints work as they always do.

    Args:
        dataset: The user's dataset.
        iterator: An iterator over its elements.
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
    for part in objects_up_to(dataset):
        for wrapped in part._functions():
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


def _is_stateful(graph: tf.Graph) -> bool:
    operations = (operation.op_def for operation in graph.get_operations())
    nested = (function.signature for function in graph.as_graph_def().library.function)
    return any(definition.is_stateful for definition in [*operations, *nested])
