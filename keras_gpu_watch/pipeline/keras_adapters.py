# SPDX-License-Identifier: Apache-2.0
"""Datasets that Keras made from arrays, a `PyDataset` or a generator: what the user's own object behind them is."""

from __future__ import annotations

import gc
from itertools import chain
from types import GeneratorType, MethodType
from typing import Any

from keras_gpu_watch.pipeline.user_functions import captured, library_module, unwrapped

_ADAPTERS = "keras.src.trainers.data_adapters."
_KINDS = {
    "array_data_adapter": "arrays",
    "py_dataset_adapter": "PyDataset",
    "generator_data_adapter": "generator",
    "torch_data_loader_adapter": "generator",
    "grain_dataset_adapter": "generator",
}
"""By the module of Keras whose functions stand in the pipeline, what `fit` was given."""
_HELD_AS = ("py_dataset", "_dataloader", "_dataset")
"""How Keras's adapters call the user's object."""
_PARTS_OF_A_CHAIN = 3
"""Its iterator, the tuple under that, and what is chained."""


def adapter_kind(function: Any) -> str | None:
    """Tell what `fit` was given, from a function that stands in the pipeline; `None`: it is no adapter's."""
    module = library_module(function) or ""
    return _KINDS.get(module.removeprefix(_ADAPTERS)) if module.startswith(_ADAPTERS) else None


def adapted_object(function: Any) -> Any:
    """Find the user's object that one of Keras's adapters reads from.

    Args:
        function: The function that an adapter gave to `from_generator`.

    Returns:
        A `PyDataset`, a generator, a data loader; `None` where it can't be found.
    """
    held = function.__self__ if isinstance(function, MethodType) else captured(unwrapped(function)).get("self")
    for name in _HELD_AS:
        if hasattr(held, name):
            return getattr(held, name)
    restored = getattr(held, "generator", None)
    return _chained_generator(restored) if isinstance(restored, chain) else captured(restored).get("generator")


def _chained_generator(restored: chain[Any]) -> Any:
    """The user's generator in the chain by which Keras 3.5 puts the batches it had looked at back first."""
    near: list[Any] = [restored]
    for _ in range(_PARTS_OF_A_CHAIN):
        near = gc.get_referents(*near)
        generators = [each for each in near if isinstance(each, GeneratorType)]
        if generators:
            return generators[0]
    return None
