# SPDX-License-Identifier: Apache-2.0
"""The returned values of a step: reading one of them waits until the device is done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class DeviceWait:
    """Waits for a train function's work by reading one of its values.

    Keras reads all of them right after, so the time is the same; it is only spent inside the step, where it belongs.
    The values are handed on as they are: converting them here too would cost Keras 8 us a value, because it recognizes
    a tensor much faster than it rules one out.

    Values on the CPU are there when the train function returns: nothing is read.
    """

    def __init__(self) -> None:
        self.seen_on_device: bool | None = None
        """Whether a value of the first step lived on an accelerator; `None` before it."""
        self._path: tuple[Any, ...] = ()

    def __call__(self, values: Any) -> None:
        """Wait.

        Args:
            values: What the train function returned: a tensor, or a dict of them, perhaps nested.
        """
        if self.seen_on_device is None:
            self._choose(values)
        if not self.seen_on_device:
            return
        try:
            chosen = self._chosen(values)
        except (KeyError, TypeError):
            # This step returned something else than the ones before.
            self._choose(values)
            chosen = self._chosen(values)
        # A device's error is the user's: it comes up again where Keras or a callback reads the value.
        try:
            chosen.numpy()
        except Exception:  # noqa: BLE001
            return

    def _chosen(self, values: Any) -> Any:
        for key in self._path:
            values = values[key]
        return values

    def _choose(self, values: Any) -> None:
        leaves = dict(_leaves(values))
        on_device = [path for path, leaf in leaves.items() if on_accelerator(leaf)]
        self.seen_on_device = bool(on_device or self.seen_on_device)
        self._path = next(iter(on_device), ())


def _leaves(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(values, dict):
        for key, value in values.items():
            yield from _leaves(value, (*path, key))
    elif hasattr(values, "numpy"):
        yield path, values


def on_accelerator(value: Any) -> bool:
    """Whether a tensor or variable lives on a GPU or TPU."""
    device = str(getattr(value, "device", None) or "")
    return "GPU" in device or "TPU" in device
