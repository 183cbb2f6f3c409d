# SPDX-License-Identifier: Apache-2.0
"""What keeps a dataset from being built anew, and with it all that it reads from."""

from __future__ import annotations

from typing import Any

from keras_gpu_watch.pipeline.composites import op_name
from keras_gpu_watch.pipeline.hidden_settings import why_hidden
from keras_gpu_watch.pipeline.object_chain import is_wrapper, objects_below, objects_up_to
from keras_gpu_watch.pipeline.reissue import can_reissue

_KEEPERS = {
    "cache": "what is before a cache runs in one epoch only, and a new cache would be empty",
    "snapshot": "what is before a snapshot runs until it is written, and must not differ from what was written",
    "save": "what is before `save` runs once",
}
"""Stages that hold elements, by their word."""


def find_barriers(dataset: Any) -> dict[int, str]:
    """Find the objects whose op can't be issued again, or whose result could not be handed on to the end.

    Args:
        dataset: The dataset object that comes last.

    Returns:
        By `id` of the object, the reason as a clause.
    """
    passing: dict[int, str] = {}
    barriers: dict[int, str] = {}
    for current in reversed(objects_up_to(dataset)):
        above = passing.get(id(current))
        own = above or _why_not(current)
        if own is not None:
            barriers[id(current)] = own
            for below in objects_below(current):
                passing.setdefault(id(below), above or _as_seen_from_below(current, own))
    return barriers


def _why_not(dataset: Any) -> str | None:
    if is_wrapper(dataset):
        return None
    if can_reissue(dataset):
        return why_hidden(dataset)
    return "that kind of stage can't be built anew"


def _as_seen_from_below(dataset: Any, reason: str) -> str:
    op = op_name(type(dataset).__name__)
    if op in _KEEPERS:
        return _KEEPERS[op]
    return f"it is before `{op}`, and {reason}" if can_reissue(dataset) else f"it is before `{op}`: {reason}"
