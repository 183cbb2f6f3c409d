# SPDX-License-Identifier: Apache-2.0
"""`watch`: the user's dataset, whose own iterators carry stamps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_gpu_watch.findings import AUTOTUNE
from keras_gpu_watch.guard import logger
from keras_gpu_watch.knobs import END, Knobs, Tunable
from keras_gpu_watch.pipeline.rebuild import CannotRebuild, rebuild
from keras_gpu_watch.pipeline.saving import save_as_stateful_as
from keras_gpu_watch.pipeline.tunable import read_tunable
from keras_gpu_watch.probes.stamp import Stamper, needs_prefetch
from keras_gpu_watch.probes.stamp_source import (
    DATASET_ATTRIBUTE,
    KNOBS_ATTRIBUTE,
    STAMPS_ATTRIBUTE,
    TUNABLE_ATTRIBUTE,
    WATCHED_ATTRIBUTE,
)

_NO_STAMPS = "the dataset is used as it is, because it could not be stamped"


class WatchedDataset(tf.data.Dataset):  # type: ignore[misc]
    """The user's own dataset in every respect but one: an iterator made directly from it is stamped.

    It may also be made from the same pipeline with other knobs: the same elements, ready sooner. Under any further
    transformation, or in a strategy, it is the user's dataset and nothing else.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._user_dataset = dataset
        self._stamper: Stamper | None = None
        self._stamping_failed = False
        self._knobs = Knobs()
        self._parallel_python = False
        self._tuned_stamper: Stamper | None = None
        self._failure: str | None = None
        self._has_told = False
        self._tunables: dict[bool, Tunable] = {}
        setattr(self, WATCHED_ATTRIBUTE, True)
        super().__init__(tf.data.experimental.to_variant(dataset))

    @property
    def knobs(self) -> Knobs:
        """Settings of the next iterator; empty: the user's own."""
        return self._knobs

    @property
    def failure(self) -> str | None:
        """Why the knobs have no effect; `None`: they have, as far as is known."""
        return _NO_STAMPS if self._stamping_failed else self._failure

    def set_knobs(self, knobs: Knobs, *, parallel_python: bool = False) -> None:
        """Change the settings from the next iterator on.

        Args:
            knobs: What differs from the user's settings; empty: nothing, his own dataset is used.
            parallel_python: Whether he says that several calls of his Python functions may run at a time.
        """
        if (knobs, parallel_python) != (self._knobs, self._parallel_python):
            self._knobs, self._parallel_python = knobs, parallel_python
            self._tuned_stamper = None
            self._failure = None

    def tunable(self, *, parallel_python: bool = False) -> Tunable:
        """Tell what may be changed.

        Args:
            parallel_python: As for `set_knobs`.
        """
        if parallel_python not in self._tunables:
            self._tunables[parallel_python] = read_tunable(self._user_dataset, parallel_python=parallel_python)
        return self._tunables[parallel_python]

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._user_dataset]

    @property
    def element_spec(self) -> Any:
        """The user's element spec, untouched."""
        return self._user_dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        if not tf.executing_eagerly() or self._stamping_failed:
            return iter(self._user_dataset)
        if not self._knobs.is_empty and self._failure is None:
            try:
                return self._stamped_iterator(self._tuned(), self._knobs)
            # A door: whatever goes wrong with other knobs, the user's own are there.
            except Exception as error:  # noqa: BLE001
                self._give_up_knobs(error)
        try:
            return self._stamped_iterator(self._own(), Knobs())
        # A door: whatever goes wrong in our stamp, the user gets his own iterator.
        except Exception as error:  # noqa: BLE001
            self._stamping_failed = True
            logger.error("keras-gpu-watch: stamping failed; the dataset is used as it is.", exc_info=error)
            return iter(self._user_dataset)

    def _own(self) -> Stamper:
        if self._stamper is None:
            self._stamper = Stamper(self._user_dataset)
        return self._stamper

    def _tuned(self) -> Stamper:
        if self._tuned_stamper is None:
            knobs = self._knobs
            if END not in knobs.buffer_sizes and needs_prefetch(self._user_dataset):
                # As TensorFlow would for his own: it can't look into one that is built anew.
                knobs = dataclasses.replace(knobs, buffer_sizes={**knobs.buffer_sizes, END: AUTOTUNE})
            rebuilt = rebuild(self._user_dataset, knobs, parallel_python=self._parallel_python)
            self._tuned_stamper = self._own().over(rebuilt)
        return self._tuned_stamper

    def _stamped_iterator(self, stamper: Stamper, knobs: Knobs) -> Iterator[Any]:
        iterator: Iterator[Any]
        iterator, ring = stamper.iterator()
        setattr(iterator, STAMPS_ATTRIBUTE, ring)
        setattr(iterator, DATASET_ATTRIBUTE, self._user_dataset)
        setattr(iterator, TUNABLE_ATTRIBUTE, self)
        setattr(iterator, KNOBS_ATTRIBUTE, knobs)
        save_as_stateful_as(self._user_dataset, iterator)
        return iterator

    def _give_up_knobs(self, error: Exception) -> None:
        self._failure = str(error)
        self._tuned_stamper = None
        if not self._has_told:
            self._has_told = True
            is_ours = not isinstance(error, CannotRebuild)
            logger.error(
                "keras-gpu-watch: the input pipeline is not changed: %s", error, exc_info=error if is_ours else None
            )

    def __getattr__(self, name: str) -> Any:
        # What the user or Keras hung on the dataset (`class_names`, `file_paths`) stays readable.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._user_dataset, name)


def watch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Time every batch of a dataset exactly, from inside the pipeline.

    Put it last: `model.fit(watch(dataset), callbacks=[GPUWatch("logs")])`. Elements, their order, cardinality,
    `element_spec`, options and speed stay as they are. Anything built on top of the result (`.take`, `.zip`, a
    distribution strategy) is built on your own dataset and is not stamped.

    Args:
        dataset: A `tf.data.Dataset`, of elements of any structure. Watching a watched dataset changes nothing.

    Returns:
        A `tf.data.Dataset` of the same elements.

    Raises:
        TypeError: If `dataset` is not a `tf.data.Dataset`. A dataset that a strategy has distributed already
            is refused too: watch it before it is distributed.
    """
    if isinstance(dataset, WatchedDataset):
        return dataset
    if isinstance(dataset, tf.data.Dataset):
        return WatchedDataset(dataset)
    remedy = ""
    if "Distributed" in type(dataset).__name__:
        remedy = " Put `watch` around the dataset before it is distributed."
    raise TypeError(
        f"Invalid value for argument `dataset`. Received: {type(dataset).__name__}. "
        f"Expected: a tf.data.Dataset.{remedy}"
    )
