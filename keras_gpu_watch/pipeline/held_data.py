# SPDX-License-Identifier: Apache-2.0
"""How much data a pipeline's dataset objects hold, so that nobody copies it by mistake."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_gpu_watch.pipeline.composites import is_endless_range
from keras_gpu_watch.pipeline.function_graphs import every_graph
from keras_gpu_watch.pipeline.object_chain import objects_up_to

_STRING_BYTES = 24
"""Of a string tensor's element, besides its characters."""
_WITHOUT_DATA = (tf.resource, tf.variant)


def held_bytes(dataset: Any) -> int | None:
    """Estimate the data in a dataset and in all that it reads from.

    Args:
        dataset: A dataset object.

    Returns:
        Bytes of the tensors that its objects hold, that their functions captured or have as constants; `None` where
        there is a dataset that does not show what it holds.
    """
    total, seen = 0, set[int]()
    for part in objects_up_to(dataset):
        if not _is_open(part):
            return None
        for tensor in _tensors(part):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                total += _tensor_bytes(tensor)
        total += _constant_bytes(part)
    return total


def captures_dataset(wrappers: Any) -> bool:
    """Tell whether functions read another dataset, which does not show what it holds or does.

    Args:
        wrappers: TensorFlow's `StructuredFunctionWrapper`s.
    """
    return any(tensor.dtype == tf.variant for wrapper in wrappers for tensor in wrapper.function.captured_inputs)


def _is_open(dataset: Any) -> bool:
    """Whether TensorFlow made it and keeps what it is made of."""
    if type(dataset).__name__ == "_VariantDataset":
        return is_endless_range(dataset)
    return not captures_dataset(_functions(dataset))


def _functions(dataset: Any) -> list[Any]:
    return list(dataset._functions()) if hasattr(dataset, "_functions") else []


def _tensors(dataset: Any) -> Iterator[tf.Tensor]:
    held = [value for value in vars(dataset).values() if isinstance(value, (tf.Tensor, list, tuple, dict))]
    held += [value for value in vars(dataset).values() if isinstance(value, (tf.RaggedTensor, tf.SparseTensor))]
    captured = [tensor for wrapper in _functions(dataset) for tensor in wrapper.function.captured_inputs]
    for value in tf.nest.flatten([held, captured], expand_composites=True):
        if isinstance(value, tf.Tensor) and value.dtype not in _WITHOUT_DATA:
            yield value


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
