# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow keeps of a dataset out of Python's sight, read from the dataset's graph."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_gpu_watch.pipeline.held_data import held_bytes

MAX_HELD_BYTES = 2**26
"""The graph has a copy of all data below."""
HIDDEN = {
    "_ShuffleDataset": "ShuffleDatasetV3",
    "_ParallelInterleaveDataset": "ParallelInterleaveDatasetV4",
    "_IgnoreErrorsDataset": "IgnoreErrorsDataset",
}
"""The op of each class that has hidden settings."""
_IGNORE_STATE = 1
_known: weakref.WeakKeyDictionary[Any, HiddenSettings] = weakref.WeakKeyDictionary()
"""Where they were looked up before: they never change."""


@dataclass(frozen=True, slots=True)
class HiddenSettings:
    """Of one dataset."""

    node: Any
    """The `NodeDef` of its op."""
    seed_generator: tf.Tensor | None
    """The live one of a shuffle: whoever draws from it continues the dataset's own sequence of orders."""


def why_hidden(dataset: Any) -> str | None:
    """Tell why a dataset's hidden settings stay hidden, as a clause; `None`: there are none, or they can be read.

    Args:
        dataset: A dataset object.
    """
    if type(dataset).__name__ not in HIDDEN or dataset in _known:
        return None
    held = held_bytes(dataset)
    if held is None:
        return "how large its data is can't be told"
    return "its data is too large to look into" if held > MAX_HELD_BYTES else None


def read_hidden_settings(dataset: Any) -> HiddenSettings:
    """Read them; nothing runs, and no element is read.

    Args:
        dataset: A dataset object of one of the classes in `HIDDEN`, of which `why_hidden` knows nothing.

    Raises:
        ValueError: If its graph is not what it should be.
    """
    if dataset not in _known:
        _known[dataset] = _read(dataset)
    return _known[dataset]


def _read(dataset: Any) -> HiddenSettings:
    serialized = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        external_state_policy=_IGNORE_STATE,
        strip_device_assignment=False,
    )
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    nodes = {node.name: node for node in graph.node}
    # An empty graph is what TensorFlow silently gives for too much data.
    (result,) = [node for node in graph.node if node.op == "_Retval"]
    node = nodes[result.input[0]]
    if node.op != HIDDEN[type(dataset).__name__]:
        raise ValueError(f"expected a {HIDDEN[type(dataset).__name__]}, found a {node.op}")
    is_shuffle = node.op == "ShuffleDatasetV3"
    return HiddenSettings(node, _handle(nodes[node.input[-1]]) if is_shuffle else None)


def _handle(node: Any) -> tf.Tensor:
    return tf.io.parse_tensor(node.attr["value"].tensor.SerializeToString(), tf.resource)
