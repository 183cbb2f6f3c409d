# SPDX-License-Identifier: Apache-2.0
"""A key of a pipeline's stages without their settings, which stays the same from one run of a program to the next."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_gpu_watch.findings import Stage
from keras_gpu_watch.pipeline.composites import StageObject

_BATCHING = ("batch", "padded_batch", "ragged_batch", "sparse_batch", "rebatch", "map_and_batch")
_DIGEST_BYTES = 8


def shape_key(stages: Sequence[Stage], found: Sequence[StageObject]) -> str:
    """Make the key of a pipeline.

    Args:
        stages: As read from the objects.
        found: The same, as objects.

    Returns:
        Hexadecimal digits. Calls, buffers and batch sizes don't count.
    """
    batched: list[bool] = []
    for stage in stages:
        batched.append(stage.op in _BATCHING or any(batched[below] for below in stage.inputs))
    described = [
        [stage.op, stage.inputs, stage.function, _elements(each.dataset.element_spec, is_batched)]
        for stage, each, is_batched in zip(stages, found, batched, strict=True)
    ]
    return hashlib.blake2b(json.dumps(described).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _elements(spec: Any, is_batched: bool) -> str:
    return str(tf.nest.map_structure(lambda part: _tensor(part, is_batched), spec))


def _tensor(spec: Any, is_batched: bool) -> str:
    """Kind, type and dimensions, less the one that may be a batch's."""
    dtype, shape = getattr(spec, "dtype", None), getattr(spec, "shape", None)
    dimensions = (
        "?" if not isinstance(shape, tf.TensorShape) or shape.rank is None else list(shape)[1 if is_batched else 0 :]
    )
    return f"{type(spec).__name__} {getattr(dtype, 'name', '')} {dimensions}"
