# SPDX-License-Identifier: Apache-2.0
"""The door to tf.data's model of a live iterator."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_gpu_watch.pipeline.model_tree import Knob, LiveModel, Node

# Classes of nodes in tf.data's `model.proto` whose names begin with `ASYNC`.
_ASYNCHRONOUS = (2, 4, 6)


def read_model(iterator: Any) -> LiveModel | None:
    """Look at an iterator's model; the iterator does not move.

    Args:
        iterator: What `fit` fetches from.

    Returns:
        The model, or `None` where there is none: not an iterator of tf.data, autotuning off, a PyDataset with workers,
        TensorFlow before 2.18.
    """
    get_model = getattr(tf.data.experimental, "get_model_proto", None)
    if get_model is None or not isinstance(iterator, tf.data.Iterator):
        return None
    try:
        model = get_model(iterator)
    except (tf.errors.NotFoundError, tf.errors.UnimplementedError):
        return None
    budgets = model.optimization_params
    return LiveModel(
        nodes={number: _node(proto) for number, proto in model.nodes.items()},
        output=model.output,
        cpu_budget=float(budgets.cpu_budget) or None,
        ram_budget_bytes=float(budgets.ram_budget) or None,
    )


def _node(proto: Any) -> Node:
    return Node(
        id=proto.id,
        name=proto.name,
        inputs=tuple(proto.inputs),
        elements=proto.num_elements,
        own_seconds=proto.processing_time * 1e-9,
        bytes_given=proto.bytes_produced,
        buffered_elements=proto.buffered_elements,
        buffered_bytes=proto.buffered_bytes,
        inputs_per_element=proto.ratio or None,
        is_asynchronous=proto.node_class in _ASYNCHRONOUS,
        knobs={knob.name: _knob(knob) for knob in proto.parameters},
    )


def _knob(proto: Any) -> Knob:
    # Of a knob that AUTOTUNE turns, `value` is the model's next wish and `state_value` what the iterator works with;
    # of any other `state_value` may be 0.
    return Knob(value=proto.state_value if proto.state_value > 0 else proto.value, limit=proto.max)
