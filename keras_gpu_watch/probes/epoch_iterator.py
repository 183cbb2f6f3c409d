# SPDX-License-Identifier: Apache-2.0
"""The dataset that `fit` keeps to itself: stamped for the time of a run, where nothing else can tell its waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from keras_gpu_watch.probes.stamp_source import WATCHED_ATTRIBUTE

_LOCAL = "epoch_iterator"
"""What `fit` calls the object that makes an iterator of its data for each epoch."""
_DATASET = "_distributed_dataset"
"""That object's attribute for the dataset."""
_TF_DATA_ADAPTER = "TFDatasetAdapter"
"""Keras's class for the datasets that users give."""


@dataclass(frozen=True, slots=True)
class FitInput:
    """What `fit` reads from, as far as it may be tuned."""

    dataset: Any = None
    """The watched dataset."""
    reason: str | None = None
    """Why there is none that can be tuned, and what to type instead; `None` also where nothing is known of it."""


class PoolStamp:
    """Stamps the dataset that Keras makes of a `PyDataset` with a pool of workers.

    Newer versions of Keras switch tf.data's statistics off for those, and the user never gets hold of the dataset.

    Args:
        stamp: Gives the stamped dataset of a dataset.
    """

    def __init__(self, stamp: Callable[[Any], Any]) -> None:
        self._stamp = stamp
        self._holder: Any = None
        self._own: Any = None
        self._stamped: Any = None

    def put(self, driver: FrameType | None) -> bool:
        """Stamp the input of a `fit` that has not made its first iterator yet.

        Args:
            driver: The call of `fit`, or of whatever drives the callbacks.

        Returns:
            Whether there was such a dataset.
        """
        holder = find_dataset_holder(driver)
        if holder is None or not _is_of_a_pool(holder):
            return False
        own = getattr(holder, _DATASET)
        self._stamped = self._stamp(own)
        self._holder, self._own = holder, own
        setattr(holder, _DATASET, self._stamped)
        return True

    def take_off(self) -> None:
        """Put the dataset itself back, unless somebody else has replaced ours."""
        if self._holder is not None and getattr(self._holder, _DATASET, None) is self._stamped:
            setattr(self._holder, _DATASET, self._own)
        self._holder = self._own = self._stamped = None


def find_dataset_holder(driver: FrameType | None) -> Any | None:
    """The object from which `fit` takes the iterator of each epoch.

    Args:
        driver: The call of `fit`.

    Returns:
        `None` where it holds no plain `tf.data.Dataset`: in other loops, with other versions of Keras, and under a
        distribution strategy.
    """
    holder = None if driver is None else driver.f_locals.get(_LOCAL)
    kinds = type(getattr(holder, _DATASET, None)).__mro__
    return holder if any(kind.__name__ == "DatasetV2" for kind in kinds) else None


def read_fit_input(driver: FrameType | None) -> FitInput:
    """Find the watched dataset that a `fit` was given, before it makes the first iterator.

    Args:
        driver: The call of `fit`; `None` gives an empty answer.
    """
    if driver is None or _LOCAL not in driver.f_locals:
        return FitInput()
    holder = find_dataset_holder(driver)
    if holder is None:
        return FitInput(reason="under a distribution strategy, the input pipeline is another one")
    dataset = getattr(holder, _DATASET)
    if getattr(dataset, WATCHED_ATTRIBUTE, False):
        return FitInput(dataset)
    if driver.f_locals.get("class_weight") is not None:
        return FitInput(
            reason="with class_weight, Keras puts a stage of its own behind the watched dataset. Give the weights in "
            "the dataset: watch(dataset.map(lambda x, y: (x, y, tf.gather(weights, y))))"
        )
    kind = type(getattr(holder, "data_adapter", None)).__name__
    if kind != _TF_DATA_ADAPTER:
        return FitInput(reason="the data is not a tf.data.Dataset. Type: model.fit(watch(dataset), ...)")
    return FitInput(reason="the dataset is not watched, or not last. Type: model.fit(watch(dataset), ...)")


def _is_of_a_pool(holder: Any) -> bool:
    """Whether the dataset is a `PyDataset`'s, and Keras has switched tf.data's statistics off as it does for a pool."""
    is_py_dataset = hasattr(getattr(holder, "data_adapter", None), "py_dataset")
    return is_py_dataset and getattr(holder, _DATASET).options().autotune.enabled is False
