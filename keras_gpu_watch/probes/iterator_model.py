# SPDX-License-Identifier: Apache-2.0
"""The door to a live iterator: what kind it is, its tf.data model, the size of its elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_gpu_watch.probes.gap_source import ElementSize, ModelReading


def is_plain_iterator(iterator: Any) -> bool:
    """Whether it is an iterator made by `iter(dataset)`, as `fit` makes without a strategy."""
    return isinstance(iterator, tf.data.Iterator)


def is_distributed_iterator(iterator: Any) -> bool:
    """Whether it is an iterator of a distribution strategy."""
    return isinstance(iterator, tf.distribute.DistributedIterator)


def model_reader(iterator: Any) -> Callable[[], ModelReading | None]:
    """A function that looks at the iterator's model (15-40 us a look for small pipelines).

    It answers `None` where there is no model: autotuning off, a PyDataset with workers, TensorFlow before 2.18.

    Args:
        iterator: A `tf.data.Iterator`.
    """
    get_model = getattr(tf.data.experimental, "get_model_proto", None)

    def read() -> ModelReading | None:
        if get_model is None:
            return None
        try:
            model = get_model(iterator)
        except (tf.errors.NotFoundError, tf.errors.UnimplementedError):
            return None
        root = model.nodes[model.output]
        return ModelReading(
            elements=root.num_elements,
            bytes=root.bytes_produced,
            gap_seconds=np.array(model.gap_times, np.float64) * 1e-6,
        )

    return read


def element_size(iterator: Any) -> ElementSize:
    """How to tell the number of examples in a batch of this iterator.

    Args:
        iterator: A `tf.data.Iterator`.

    Returns:
        The bytes of one example where every component has a batch dimension and otherwise static dimensions of a
        fixed-size type, and the batch dimension where it is static.
    """
    # `None` in an element such as `(x, None)`: only newer TensorFlow has a public name for its class.
    specs = [spec for spec in tf.nest.flatten(iterator.element_spec) if type(spec).__name__ != "NoneTensorSpec"]
    if not specs or not all(isinstance(spec, tf.TensorSpec) and spec.shape.rank for spec in specs):
        return ElementSize(bytes_per_example=None, batch_dimension=None)
    fixed = all(spec.shape[1:].is_fully_defined() and spec.dtype.size for spec in specs)
    fixed = fixed and not any(spec.dtype in (tf.string, tf.variant, tf.resource) for spec in specs)
    size = sum(spec.shape[1:].num_elements() * spec.dtype.size for spec in specs) if fixed else None
    return ElementSize(bytes_per_example=size, batch_dimension=specs[0].shape[0])
