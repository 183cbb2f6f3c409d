# SPDX-License-Identifier: Apache-2.0
"""The returned values of a step, on the host: reading them waits for the device, as Keras does next anyway."""

from __future__ import annotations

from typing import Any


def to_host(outputs: Any) -> Any:
    """Convert a train function's logs the way Keras's callback list is about to.

    Keras turns every value that `float()` takes into a Python float before the first callback sees it. Doing it here
    puts the wait for the device inside the step, and costs nothing twice: Keras finds floats.

    Args:
        outputs: What the train function returned.

    Returns:
        A dict of the same keys with numbers converted; anything else unchanged, waited for.
    """
    if type(outputs) is dict:
        return {key: _number(value) for key, value in outputs.items()}
    _wait_for(outputs)
    return outputs


def _number(value: Any) -> Any:
    if type(value) is dict:
        return to_host(value)
    try:
        return float(value)
    # Keras leaves alone whatever `float` refuses, for whatever reason.
    except Exception:  # noqa: BLE001
        _wait_for(value)
        return value


def _wait_for(value: Any) -> None:
    read = getattr(value, "numpy", None)
    if read is not None:
        try:
            read()
        # An error of the device is the user's: it comes up again where he reads the value.
        except Exception:  # noqa: BLE001
            return


def on_accelerator(values: Any) -> bool:
    """Whether some tensor or variable lives on a GPU or TPU.

    Args:
        values: One, or a dict or list of them.
    """
    if isinstance(values, dict):
        return any(on_accelerator(value) for value in values.values())
    if isinstance(values, list | tuple):
        return any(on_accelerator(value) for value in values)
    device = str(getattr(values, "device", None) or "")
    return "GPU" in device or "TPU" in device
