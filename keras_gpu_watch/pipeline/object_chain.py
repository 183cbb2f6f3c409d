# SPDX-License-Identifier: Apache-2.0
"""The dataset objects that a pipeline is made of, as TensorFlow chained them: more than the stages that users see."""

from __future__ import annotations

from typing import Any

from keras_gpu_watch.pipeline.composites import inputs_of, inside


def objects_below(dataset: Any) -> list[Any]:
    """Get the dataset objects whose ops an object's own op reads from, or that it is a wrapper around.

    Args:
        dataset: A dataset object.
    """
    inner = inside(dataset)
    if inner is None:
        # It is this map's data under another element spec, but tells only what the map reads from.
        inner = getattr(dataset, "_mapped_dataset", None)
    return inputs_of(dataset) if inner is None else [inner]


def is_wrapper(dataset: Any) -> bool:
    """Tell whether an object has no op of its own, or one that does nothing.

    Args:
        dataset: A dataset object.
    """
    return inside(dataset) is not None or hasattr(dataset, "_mapped_dataset")


def objects_up_to(dataset: Any) -> list[Any]:
    """List the objects of a pipeline, each once, inputs before what reads from them.

    Args:
        dataset: The dataset object that comes last.
    """
    listed: list[Any] = []
    seen: set[int] = set()
    waiting = [(dataset, False)]
    while waiting:
        current, is_ready = waiting.pop()
        if is_ready:
            listed.append(current)
        elif id(current) not in seen:
            seen.add(id(current))
            waiting.append((current, True))
            waiting.extend((below, False) for below in reversed(objects_below(current)))
    return listed
