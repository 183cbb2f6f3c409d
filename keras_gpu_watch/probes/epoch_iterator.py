# SPDX-License-Identifier: Apache-2.0
"""The dataset that `fit` keeps to itself: stamped for the time of a run, where nothing else can tell its waits."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

_LOCAL = "epoch_iterator"
"""What `fit` calls the object that makes an iterator of its data for each epoch."""
_DATASET = "_distributed_dataset"
"""That object's attribute for the dataset."""


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


def _is_of_a_pool(holder: Any) -> bool:
    """Whether the dataset is a `PyDataset`'s, and Keras has switched tf.data's statistics off as it does for a pool."""
    is_py_dataset = hasattr(getattr(holder, "data_adapter", None), "py_dataset")
    return is_py_dataset and getattr(holder, _DATASET).options().autotune.enabled is False
