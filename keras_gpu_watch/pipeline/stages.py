# SPDX-License-Identifier: Apache-2.0
"""The input pipeline in one epoch: the user's stages joined with what tf.data's model of the live iterator counts."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

from keras_gpu_watch.findings import PipelineSummary
from keras_gpu_watch.pipeline.blame import blame
from keras_gpu_watch.pipeline.dataset_objects import read_stages
from keras_gpu_watch.pipeline.live_model import read_model
from keras_gpu_watch.pipeline.matching import match
from keras_gpu_watch.pipeline.model_tree import LiveModel
from keras_gpu_watch.pipeline.stage_figures import measured_stages
from keras_gpu_watch.pipeline.tally import EpochTally

NO_MODEL = "tf.data keeps no model of this iterator: its autotuning is off, or TensorFlow is older than 2.18"
_DATASET = "_keras_gpu_watch_dataset"
_STAMPS = "_keras_gpu_watch_stamps"


class PipelineProbe:
    """Looks at the live iterator now and then, and sums up each epoch.

    The figures rest on what the counters grew by between an epoch's first look and its last, so that first fillings and
    warm-up are out; on all since the iterator's begin where there was one look only.

    Args:
        read: Reads the stages of a dataset from its objects.
    """

    def __init__(self, read: Callable[[Any], PipelineSummary] = read_stages) -> None:
        self._read = read
        self._written = PipelineSummary(input_kind="unknown")
        self._tally = EpochTally(())
        self._model: LiveModel | None = None
        self._polls = 0
        # Neither the user's dataset nor the iterator may live longer because of us.
        self._dataset: Callable[[], Any] = _nothing
        self._iterator: Callable[[], Any] = _nothing

    def poll(self, iterator: Any) -> None:
        """Look at the live iterator; it does not move.

        Args:
            iterator: What `fit` fetches from.
        """
        self._polls += 1
        self._read_objects(iterator)
        model = read_model(iterator)
        if model is not None:
            is_stamped = getattr(iterator, _STAMPS, None) is not None
            found = match(self._tally.stages, model, is_stamped=is_stamped)
            self._tally.look(found, model, is_same_iterator=self._iterator() is iterator)
            self._model = model
            self._iterator = weakref.ref(iterator)

    def take_epoch(self, step_seconds: float | None, input_wait_seconds: float | None) -> PipelineSummary | None:
        """Close the epoch and sum it up.

        Args:
            step_seconds: Mean time of a steady batch other than its wait; `None`: not known.
            input_wait_seconds: Mean wait for a steady batch; `None`: not known.

        Returns:
            The epoch's summary; `None` when nothing was looked at.
        """
        tally, model, polls = self._tally, self._model, self._polls
        self._tally, self._model, self._polls = EpochTally(tally.stages), None, 0
        if not polls:
            return None
        if model is None:
            return dataclasses.replace(self._written, reason=self._written.reason or NO_MODEL)
        measured = dataclasses.replace(
            self._written,
            stages=measured_stages(tally),
            cpu_budget=model.cpu_budget,
            ram_budget_bytes=model.ram_budget_bytes,
            polls=tally.looks,
        )
        return blame(measured, step_seconds, input_wait_seconds)

    def _read_objects(self, iterator: Any) -> None:
        """Read the dataset's objects, once for each dataset; its sums begin anew."""
        dataset = getattr(iterator, _DATASET, None)
        if dataset is None:
            dataset = getattr(iterator, "_dataset", None)
        if dataset is None or self._dataset() is dataset:
            return
        self._dataset = weakref.ref(dataset)
        self._written = self._read(dataset)
        self._tally = EpochTally(self._written.stages)


def _nothing() -> None:
    return None
