# SPDX-License-Identifier: Apache-2.0
"""How much data a pipeline's dataset objects hold, so that nobody copies it by mistake."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from keras_gpu_watch.pipeline.composites import is_endless_range
from keras_gpu_watch.pipeline.function_graphs import every_graph
from keras_gpu_watch.pipeline.object_chain import objects_up_to

_STRING_BYTES = 24
"""Of a string tensor's element, besides its characters."""
_ITSELF = "_variant_tensor_attr"
_HOLDING = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor, list, tuple, dict)


def held_bytes(dataset: Any) -> int | None:
    """Estimate the data in a dataset and in all that it reads from.

    Args:
        dataset: A dataset object.

    Returns:
        Bytes of the tensors that its objects hold, that their functions captured or have as constants; `None` where
        something does not show what it holds: another dataset, or ragged and sparse data, which are encoded.
    """
    parts = objects_up_to(dataset)
    if not all(_is_open(part) for part in parts):
        return None
    tensors = {id(tensor): tensor for part in parts for tensor in _tensors(part)}
    if any(tensor.dtype == tf.variant for tensor in tensors.values()):
        return None
    held = sum(_tensor_bytes(tensor) for tensor in tensors.values() if tensor.dtype != tf.resource)
    return held + sum(_constant_bytes(part) for part in parts)


def captures_dataset(wrappers: Any) -> bool:
    """Tell whether functions read another dataset, which does not show what it holds or does.

    Args:
        wrappers: TensorFlow's `StructuredFunctionWrapper`s.
    """
    return any(tensor.dtype == tf.variant for wrapper in wrappers for tensor in wrapper.function.captured_inputs)


def _is_open(dataset: Any) -> bool:
    """Whether TensorFlow keeps what it is made of."""
    return type(dataset).__name__ != "_VariantDataset" or is_endless_range(dataset)


def _functions(dataset: Any) -> list[Any]:
    return list(dataset._functions()) if hasattr(dataset, "_functions") else []


def _tensors(dataset: Any) -> list[tf.Tensor]:
    held = [value for name, value in vars(dataset).items() if name != _ITSELF and isinstance(value, _HOLDING)]
    captured = [tensor for wrapper in _functions(dataset) for tensor in wrapper.function.captured_inputs]
    flat = tf.nest.flatten([held, captured], expand_composites=True)
    return [value for value in flat if isinstance(value, tf.Tensor)]


def _tensor_bytes(tensor: tf.Tensor) -> int:
    if tensor.dtype == tf.string:
        return int(tf.reduce_sum(tf.strings.length(tensor))) + _STRING_BYTES * int(tf.size(tensor))
    return int(tensor.dtype.size) * int(tf.size(tensor))


def _constant_bytes(dataset: Any) -> int:
    graphs = [wrapper.function.graph for wrapper in _functions(dataset)]
    operations = (operation for graph in every_graph(graphs) for operation in graph.get_operations())
    return sum(_constant_size(operation) for operation in operations if operation.type == "Const")


def _constant_size(operation: Any) -> int:
    dtype = operation.outputs[0].dtype
    if dtype == tf.string:
        return int(operation.get_attr("value").ByteSize())
    return int(dtype.size * math.prod(operation.outputs[0].shape))
