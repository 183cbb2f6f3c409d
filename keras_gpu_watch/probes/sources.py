# SPDX-License-Identifier: Apache-2.0
"""Finds, for the iterator that `fit` hands to the train function, the best source of input waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_gpu_watch.probes.gap_source import GapSource
from keras_gpu_watch.probes.stamp_source import STAMPS_ATTRIBUTE, WATCHED_ATTRIBUTE, StampSource
from keras_gpu_watch.probes.wait_source import UnknownWaits, WaitSource

NOT_LAST = (
    "watch(...) is not the last thing done to the dataset (a transformation or class_weight stands on top of it), so "
    "tf.data's own gap times are used: write fit(watch(dataset)), with class weights as the dataset's third element"
)
DISTRIBUTED = "input waits are not measured under a distribution strategy yet; step times are"


def choose_source(iterator: Any, batches_per_call: int, note: Callable[[str], None]) -> WaitSource | None:
    """A new source of waits.

    Args:
        iterator: What the train function was called with.
        batches_per_call: `steps_per_execution`.
        note: Takes a sentence for the user.

    Returns:
        Stamps where the dataset is watched, tf.data's gaps elsewhere, a source that knows nothing under a strategy;
        `None` for what is not an iterator of `fit`, as the generator that `train_on_batch` makes.
    """
    # Here, because with another backend than TensorFlow this package must not load it.
    from keras_gpu_watch.probes import iterator_model

    if iterator_model.is_distributed_iterator(iterator):
        return UnknownWaits(DISTRIBUTED)
    if not iterator_model.is_plain_iterator(iterator):
        return None

    def gaps() -> GapSource:
        size = iterator_model.element_size(iterator)
        return GapSource(iterator_model.model_reader(iterator), size, batches_per_call)

    ring = getattr(iterator, STAMPS_ATTRIBUTE, None)
    if ring is not None:
        return StampSource(ring, batches_per_call, second_opinion=gaps)
    if _watched_below(iterator):
        note(NOT_LAST)
    return gaps()


def _watched_below(iterator: Any) -> bool:
    """Whether a watched dataset stands somewhere below the iterator's last stage."""
    waiting = [getattr(iterator, "_dataset", None)]
    while waiting:
        dataset = waiting.pop()
        if getattr(dataset, WATCHED_ATTRIBUTE, False):
            return True
        inputs = getattr(dataset, "_inputs", None)
        waiting.extend(inputs() if inputs is not None else [])
    return False
