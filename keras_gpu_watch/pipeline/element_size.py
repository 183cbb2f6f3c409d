# SPDX-License-Identifier: Apache-2.0
"""How many bytes an element of a stage has, as far as its shape is known before the pipeline runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_gpu_watch.findings import Stage

_KEEP_BATCHES = ("map", "prefetch", "shuffle", "filter", "take", "skip", "shard", "repeat", "cache", "take_while")
"""Stages whose elements are batches if those of their input are."""
_BATCHING = ("batch", "padded_batch")


def element_bytes(spec: Any, batch_size: int | None) -> float | None:
    """Add up what the tensors of one element take.

    Args:
        spec: The stage's `element_spec`.
        batch_size: What stands for an unknown first dimension.

    Returns:
        Bytes; `None` where a shape is not known, or is no matter of shapes as with strings.
    """
    total = 0.0
    for part in tf.nest.flatten(spec):
        if not isinstance(part, tf.TensorSpec) or part.shape.rank is None or not _has_fixed_size(part.dtype):
            return None
        dimensions = list(part.shape)
        if dimensions and dimensions[0] is None:
            dimensions[0] = batch_size
        if None in dimensions:
            return None
        total += part.dtype.size * math.prod(dimensions)
    return total


def batch_size_at(stages: Sequence[Stage], index: int) -> int | None:
    """Find the size of the batches that a stage gives.

    Args:
        stages: All stages.
        index: Of the stage.

    Returns:
        Elements; `None` where it gives none, or their size is not known.
    """
    stage = stages[index]
    while stage.op in _KEEP_BATCHES and len(stage.inputs) == 1:
        stage = stages[stage.inputs[0]]
    return stage.batch_size if stage.op in _BATCHING else None


def _has_fixed_size(dtype: tf.DType) -> bool:
    return bool(dtype.is_numpy_compatible) and dtype not in (tf.string, tf.resource, tf.variant)
